"""Helper functions that find, make and free entries in the hash tables of dynamic variables
(DynamicLayout has the layout).

A bucket is a cache line, which contains a control word and a tag for each entry, followed by the
entries.  All CPUs and the host share a variable's table.  An existing entry is found without a
lock:

* A compare-and-exchange sets an entry's tag from 0 to the key's hash and the state BUSY, so an
  entry has one owner.  The tag becomes LIVE when the key is written.  Searches look only at LIVE
  entries.
* A key has only one inserter at a time.  The key of a thread's own variable contains the thread,
  which runs on one CPU.  Inserters into an associative array take the lock of the key's first
  bucket.  They try LOCK_TRIES times; then the assignment is counted as a drop.
* A freed entry of an associative array is DIRTY: a clause on another CPU may have found the entry
  just before.  The consumer frees the entry when every clause that ran then has ended.  An entry of
  a thread's own variable is free at once.

A key's entry is in one of DYNAMIC_PROBES consecutive buckets, starting with the bucket that its
hash names.  A bucket's control word says whether an insertion has passed the bucket because it was
full; a search ends at the first bucket that no insertion has passed.

Each variable has helper functions of its own, in which sizes and addresses are constants.  Their
parameter is the key itself if the key is one word, else the key's address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kinst.codegen.firing import GOLDEN, Firing, Unit
from kinst.codegen.ssa import IrFunction, IrLocal, IrValue, const
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import StructType
from kinst.core.layout import STATE_DYNAMIC_DIRTY, STATE_DYNAMIC_DROPS, STATE_DYNAMIC_RINSING
from kinst.core.records import (
    DYNAMIC_BUSY,
    DYNAMIC_DIRTY,
    DYNAMIC_LINE,
    DYNAMIC_LIVE,
    DYNAMIC_LOCKED,
    DYNAMIC_PASSED,
    DYNAMIC_PROBES,
    DYNAMIC_RINSING,
    DYNAMIC_STATE,
    DynamicLayout,
)

UNROLLED = 4  # words of a key that are hashed and compared without a loop


@dataclass(slots=True)
class DynamicTable:
    """Generator of code that uses the hash table of one dynamic variable, in a function whose first
    parameter is the key.
    """

    unit: Unit
    layout: DynamicLayout
    code: IrFunction

    @property
    def steps(self) -> int:
        return min(DYNAMIC_PROBES, self.layout.buckets)

    def word(self, at: IrValue | int) -> IrValue:
        """Emit LLVM IR that loads a word of the key; return the word.

        Args:
            at: byte offset of the word in the key, a multiple of 8.
        """
        key = self.code.params[0]
        if self.layout.key_words == 1:
            return key
        address = self.code.add(key, at) if isinstance(at, int) else self.code.op("add", key, at)
        return self.code.load(64, address)

    def line(self, bucket: IrValue) -> IrValue:
        """Emit LLVM IR that computes the address of a bucket, which begins with the cache line of
        the tags of its entries; return the address.

        Args:
            bucket: number of the bucket.
        """
        machine = self.unit.machine
        base = machine.address(machine.scratch.dynamic + self.layout.area)
        return self.code.add(self.code.op("mul", bucket, self.layout.stride), base)

    def entry(self, line: IrValue, at: IrValue | int) -> IrValue:
        """Emit LLVM IR that computes the address of the entry that a tag belongs to; return the
        address.

        Args:
            line: address of the bucket.
            at: byte offset of the tag from the bucket's start.
        """
        size = self.layout.entry_size
        if isinstance(at, int):
            return self.code.add(line, DYNAMIC_LINE + (at // 8 - 1) * size)
        offset = self.code.op("mul", self.code.op("lshr", at, 3), size)
        return self.code.add(self.code.op("add", line, offset), DYNAMIC_LINE - size)

    def hash(self) -> tuple[IrValue, IrValue]:
        """Emit LLVM IR that hashes the key; return the tag of a LIVE entry with this key, and the
        number of the key's first bucket.
        """
        code, words = self.code, self.layout.key_words

        def mix(before: IrValue, word: IrValue) -> IrValue:
            mixed = code.op("mul", code.op("xor", before, word), GOLDEN)
            return code.op("xor", mixed, code.op("lshr", mixed, 32))

        if words <= UNROLLED:
            mixed = const(GOLDEN)
            for i in range(words):
                mixed = mix(mixed, self.word(8 * i))
        else:
            value, at = code.local(64, GOLDEN), code.local(64)
            again, done = code.fresh("hash"), code.fresh("hashed")
            code.jump(again)
            code.block(again)
            here = code.get(at)
            mixed = mix(code.get(value), self.word(here))
            code.set(value, mixed)
            following = code.add(here, 8)
            code.set(at, following)
            code.branch(code.icmp("ult", following, 8 * words), again, done)
            code.block(done)
        tag = code.op("or", code.op("and", mixed, const(~DYNAMIC_STATE)), DYNAMIC_LIVE)
        high = code.op("mul", code.op("lshr", mixed, 32), self.layout.buckets)
        return tag, code.op("lshr", high, 32)

    def compare(self, entry: IrValue, equal: str, unequal: str) -> None:
        """Emit LLVM IR that compares an entry's key with the function's parameter, and jumps to
        the label `equal` or `unequal`.

        Args:
            entry: address of the entry.
        """
        code, words = self.code, self.layout.key_words
        if words <= UNROLLED:
            for i in range(words):
                same = code.icmp("eq", code.load(64, code.add(entry, 8 * i)), self.word(8 * i))
                going = equal if i == words - 1 else code.fresh("same")
                code.branch(same, going, unequal)
                if going != equal:
                    code.block(going)
            return
        at = code.local(64)
        code.set(at, const(0))
        again, same_label = code.fresh("compare"), code.fresh("same")
        code.jump(again)
        code.block(again)
        here = code.get(at)
        theirs = code.load(64, code.op("add", entry, here))
        following = code.add(here, 8)
        code.set(at, following)
        code.branch(code.icmp("eq", theirs, self.word(here)), same_label, unequal)
        code.block(same_label)
        code.branch(code.icmp("ult", following, 8 * words), again, equal)

    def walk(
        self,
        first: IrValue,
        each: Callable[[IrValue, IrValue | int, IrValue, str], None],
        after: Callable[[IrValue, str], None],
        end: str,
    ) -> None:
        """Emit a loop over the tags in the buckets that can hold a key; after the last bucket, the
        loop jumps to the label `end`.

        Args:
            first: number of the key's first bucket.
            each: each(line, offset, tag, next) emits the code for one tag; this code must end with
                a branch. `line` is the address of the bucket, `offset` the tag's byte offset in the
                bucket, `next` the label of the code for the next tag.
            after: after(line, further) emits the code after a bucket's last tag; this code must end
                with a branch. `further` is the label of the code for the next bucket.
            end: label to jump to after the last bucket.
        """
        code = self.code
        bucket, step = code.local(64), code.local(64)
        line_label, further_label = code.fresh("line"), code.fresh("further")
        code.set(bucket, first)
        code.set(step, const(0))
        code.jump(line_label)
        code.block(line_label)
        line = self.line(code.get(bucket))
        if self.layout.key_words <= UNROLLED:
            for at in range(8, DYNAMIC_LINE, 8):
                following = code.fresh("next")
                each(line, at, code.load_atomic(code.add(line, at)), following)
                code.block(following)
        else:
            self._tags(line, each)
        after(line, further_label)
        code.block(further_label)
        done = code.add(code.get(step), 1)
        code.set(step, done)
        beyond = code.add(code.get(bucket), 1)
        last = code.icmp("eq", beyond, self.layout.buckets)
        code.set(bucket, code.select(last, const(0), beyond))
        code.branch(code.icmp("ult", done, self.steps), line_label, end)

    def _tags(
        self, line: IrValue, each: Callable[[IrValue, IrValue | int, IrValue, str], None]
    ) -> None:
        """Emit a loop over the tags of one bucket.

        walk() uses the loop for long keys, for which the code is too large to repeat for each tag.

        Args:
            line: address of the bucket.
            each: each(line, offset, tag, next) emits the code for one tag, as in walk().
        """
        code = self.code
        at = code.local(64)
        tag_label, next_label, end = (code.fresh(n) for n in ("tag", "next", "after"))
        code.set(at, const(8))
        code.jump(tag_label)
        code.block(tag_label)
        here = code.get(at)
        each(line, here, code.load_atomic(code.op("add", line, here)), next_label)
        code.block(next_label)
        following = code.add(code.get(at), 8)
        code.set(at, following)
        code.branch(code.icmp("ult", following, DYNAMIC_LINE), tag_label, end)
        code.block(end)

    def tag_address(self, line: IrValue, at: IrValue | int) -> IrValue:
        """Emit LLVM IR that computes the address of a tag; return the address.

        Args:
            line: address of the bucket.
            at: byte offset of the tag from the bucket's start.
        """
        code = self.code
        return code.add(line, at) if isinstance(at, int) else code.op("add", line, at)

    def search(self, tag: IrValue, first: IrValue, missing: str) -> tuple[IrValue, IrValue]:
        """Emit LLVM IR that searches for the key's LIVE entry; return the addresses of the entry's
        tag and of the entry.

        Args:
            tag: the tag of a LIVE entry with this key (hash()).
            first: number of the key's first bucket (hash()).
            missing: label to jump to if the key has no entry.
        """
        code = self.code
        found = code.fresh("found")
        places, entries = code.local(64), code.local(64)

        def each(line: IrValue, at: IrValue | int, there: IrValue, following: str) -> None:
            same = code.fresh("match")
            code.branch(code.icmp("eq", there, tag), same, following)
            code.block(same)
            code.fence("acquire")
            entry = self.entry(line, at)
            code.set(places, self.tag_address(line, at))
            code.set(entries, entry)
            self.compare(entry, found, following)

        def after(line: IrValue, further: str) -> None:
            passed = code.op("and", code.load_atomic(line), DYNAMIC_PASSED)
            code.branch(code.icmp("eq", passed, 0), missing, further, likely=True)

        self.walk(first, each, after, missing)
        code.block(found)
        return code.get(places), code.get(entries)


LOCK_TRIES = 4096  # far less than a millisecond with interrupts off


def call_find(firing: Firing, layout: DynamicLayout, key: IrValue) -> IrValue:
    """Emit a call that looks up a dynamic variable's entry; return the entry's address, or 0 if the
    key has no entry.

    Args:
        key: the key if it is one word, else its address.
    """
    write = partial(_write_find, layout)
    return firing.code.call(firing.unit.helper(f"find_{layout.index}", write), (key,))


def call_obtain(firing: Firing, layout: DynamicLayout, key: IrValue) -> IrValue:
    """Emit a call that looks up a dynamic variable's entry and makes the entry if it is missing;
    return the entry's address.

    The first word of a new entry's value is 0.  If the table has no room, the emitted code counts a
    drop and returns 0.

    Args:
        key: the key if it is one word, else its address.
    """
    helper = firing.unit.helper(f"obtain_{layout.index}", partial(_write_obtain, layout))
    return firing.code.call(helper, (key, firing.state))


def release(firing: Firing, layout: DynamicLayout, entry: IrValue) -> None:
    """Emit LLVM IR that frees an entry of a thread-local variable. The entry is free at once, since
    only its own thread uses it.

    Args:
        entry: address of the entry.
    """
    code, machine = firing.code, firing.unit.machine
    table = machine.address(machine.scratch.dynamic + layout.area)
    offset = code.op("sub", entry, table)
    bucket = code.op("udiv", offset, layout.stride)
    line = code.op("mul", bucket, layout.stride)
    within = code.op("sub", code.op("sub", offset, line), DYNAMIC_LINE)
    tag = code.add(code.op("mul", code.op("udiv", within, layout.entry_size), 8), 8)
    tag_address = code.op("add", code.add(line, table), tag)
    code.store_atomic(const(0), tag_address, "release")


def call_remove(firing: Firing, layout: DynamicLayout, key: IrValue) -> None:
    """Emit a call that frees a dynamic variable's entry if the key has one.

    Args:
        key: the key if it is one word, else its address.
    """
    helper = firing.unit.helper(f"remove_{layout.index}", partial(_write_remove, layout))
    firing.code.call(helper, (key,))


def _write_find(layout: DynamicLayout, unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function find(key), which returns the address of the key's entry, or 0."""
    code = unit.function(name, 1)
    table = DynamicTable(unit, layout, code)
    _, entry = table.search(*table.hash(), "missing")
    code.ret(entry)
    code.block("missing")
    code.ret(const(0))
    return code


def _write_remove(layout: DynamicLayout, unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function remove(key), which frees the key's entry, or does nothing if the key
    has no entry.
    """
    code = unit.function(name, 1, 0)
    table = DynamicTable(unit, layout, code)
    tag, first = table.hash()
    tag_address, _ = table.search(tag, first, "missing")
    if layout.shared:
        dirty = code.op("xor", tag, DYNAMIC_LIVE ^ DYNAMIC_DIRTY)
        code.exchange_if(tag_address, tag, dirty)
    else:
        code.store_atomic(const(0), tag_address, "release")
    code.ret()
    code.block("missing")
    code.ret()
    return code


def _write_obtain(layout: DynamicLayout, unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function obtain(key, address of the state page), which finds or makes the
    key's entry and returns its address.

    It counts a drop and returns 0 if it cannot make the entry: no entry that may hold the key is
    free, or other CPUs hold the lock of the key's first bucket for too long.
    """
    code = unit.function(name, 2)
    table = DynamicTable(unit, layout, code)
    tag, first = table.hash()
    _, entry = table.search(tag, first, "absent")
    code.ret(entry)
    code.block("absent")
    home = table.line(first)
    if layout.shared:
        _lock(code, home)
        # Another CPU may have made the entry in the meantime.
        _, entry = table.search(tag, first, "still_absent")
        _unlock(code, home)
        code.ret(entry)
        code.block("still_absent")
    seen = code.local(64)
    tag_address, entry = _claim(table, tag, first, seen)
    for i in range(layout.key_words) if layout.key_words <= UNROLLED else ():
        code.store(table.word(8 * i), code.add(entry, 8 * i))
    if layout.key_words > UNROLLED:
        _copy_words(table, entry)
    _clear_value(table, entry)
    code.store_atomic(tag, tag_address, "release")
    if layout.shared:
        _unlock(code, home)
    code.ret(entry)
    code.block("full")
    if layout.shared:
        _unlock(code, home)
    dirty = code.op("and", code.get(seen), 1 << DYNAMIC_DIRTY)
    rinsing = code.op("and", code.get(seen), 1 << DYNAMIC_RINSING)
    at = code.select(
        code.icmp("ne", rinsing, 0), const(STATE_DYNAMIC_RINSING), const(STATE_DYNAMIC_DROPS)
    )
    at = code.select(code.icmp("ne", dirty, 0), const(STATE_DYNAMIC_DIRTY), at)
    code.increment(code.op("add", code.params[1], at))
    code.ret(const(0))
    if layout.shared:
        code.block("busy")
        code.increment(code.add(code.params[1], STATE_DYNAMIC_DROPS))
        code.ret(const(0))
    return code


def _clear_value(table: DynamicTable, entry: IrValue) -> None:
    """Emit LLVM IR that clears the value of a new entry: its first word or, for a structure, all
    bytes, since members may be stored one by one.
    """
    code, field = table.code, table.layout.value
    start = code.add(entry, field.offset)
    if not isinstance(field.type, StructType) or field.size <= 8:
        code.store(const(0), start)
        return
    at = code.local(64)
    code.set(at, const(0))
    code.jump("clear")
    code.block("clear")
    here = code.get(at)
    code.store(const(0), code.op("add", start, here))
    following = code.add(here, 8)
    code.set(at, following)
    code.branch(code.icmp("ult", following, field.size), "clear", "cleared")
    code.block("cleared")


def _claim(
    table: DynamicTable, tag: IrValue, first: IrValue, seen: IrLocal
) -> tuple[IrValue, IrValue]:
    """Emit LLVM IR that claims a free entry for this CPU by setting its tag to BUSY, and jumps to
    the label "full" if no entry is free.

    Args:
        table: the table.
        tag: the tag of a LIVE entry with the key.
        first: number of the key's first bucket.
        seen: variable that collects the states of the tags that are not free: the emitted code sets
            bit N when it meets a tag in state N.

    Returns:
        The addresses of the claimed entry's tag and of the entry.
    """
    code = table.code
    busy = code.op("xor", tag, DYNAMIC_LIVE ^ DYNAMIC_BUSY)
    places, entries = code.local(64), code.local(64)

    def each(line: IrValue, at: IrValue | int, there: IrValue, following: str) -> None:
        free, taken = code.fresh("free"), code.fresh("taken")
        code.branch(code.icmp("eq", there, 0), free, taken)
        code.block(free)
        tag_address = table.tag_address(line, at)
        code.set(places, tag_address)
        code.set(entries, table.entry(line, at))
        code.branch(code.exchange_if(tag_address, const(0), busy), "claimed", following)
        code.block(taken)
        bit = code.op("shl", const(1), code.op("and", there, DYNAMIC_STATE))
        code.set(seen, code.op("or", code.get(seen), bit))
        code.jump(following)

    def after(line: IrValue, further: str) -> None:
        mark = code.fresh("mark")
        passed = code.op("and", code.load_atomic(line), DYNAMIC_PASSED)
        code.branch(code.icmp("eq", passed, 0), mark, further)
        code.block(mark)
        code.change_atomic("or", line, const(DYNAMIC_PASSED))
        code.jump(further)

    table.walk(first, each, after, "full")
    code.block("claimed")
    return code.get(places), code.get(entries)


def _lock(code: IrFunction, home: IrValue) -> None:
    """Emit LLVM IR that takes a bucket's lock, or jumps to the label "busy" after LOCK_TRIES
    attempts.

    Args:
        home: address of the bucket's control word.
    """
    tries = code.local(64)
    code.jump("lock")
    code.block("lock")
    control = code.load_atomic(home)
    held = code.op("and", control, DYNAMIC_LOCKED)
    code.branch(code.icmp("eq", held, 0), "unlocked", "again", likely=True)
    code.block("unlocked")
    mine = code.op("or", control, DYNAMIC_LOCKED)
    code.branch(code.exchange_if(home, control, mine), "locked", "again", likely=True)
    code.block("again")
    tried = code.add(code.get(tries), 1)
    code.set(tries, tried)
    code.branch(code.icmp("ult", tried, LOCK_TRIES), "lock", "busy", likely=True)
    code.block("locked")


def _unlock(code: IrFunction, home: IrValue) -> None:
    code.change_atomic("and", home, const(~DYNAMIC_LOCKED))


def _copy_words(table: DynamicTable, entry: IrValue) -> None:
    """Emit a loop that copies the key into an entry."""
    code = table.code
    at = code.local(64)
    code.jump("copy")
    code.block("copy")
    here = code.get(at)
    code.store(table.word(here), code.op("add", entry, here))
    following = code.add(here, 8)
    code.set(at, following)
    code.branch(code.icmp("ult", following, 8 * table.layout.key_words), "copy", "copied")
    code.block("copied")
