"""A table of dynamic variables, as the functions of dynvars.py see it: where its buckets and
entries are, a key's hash and its comparison, and the search from bucket to bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinst.codegen.firing import Unit
from kinst.codegen.ssa import Function, Value, const
from kinst.core.records import (
    DYNAMIC_LINE,
    DYNAMIC_LIVE,
    DYNAMIC_PASSED,
    DYNAMIC_PROBES,
    DYNAMIC_STATE,
    DynamicLayout,
)

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, as in actions/aggregations.py
UNROLLED = 4  # words of a key that are hashed and compared without a loop


@dataclass(slots=True)
class Table:
    """One table, in a function being written whose first parameter is the key."""

    unit: Unit
    layout: DynamicLayout
    code: Function

    @property
    def steps(self) -> int:
        return min(DYNAMIC_PROBES, self.layout.buckets)

    def word(self, at: Value | int) -> Value:
        """The word of the key at this offset."""
        key = self.code.params[0]
        if self.layout.key_words == 1:
            return key
        address = self.code.add(key, at) if isinstance(at, int) else self.code.op("add", key, at)
        return self.code.load(64, address)

    def line(self, bucket: Value) -> Value:
        """Address of a bucket."""
        machine = self.unit.machine
        base = machine.address(machine.scratch.dynamic + self.layout.area)
        return self.code.add(self.code.op("mul", bucket, self.layout.stride), base)

    def entry(self, line: Value, at: Value | int) -> Value:
        """Address of the entry whose tag is `at` bytes into the line."""
        size = self.layout.entry_size
        if isinstance(at, int):
            return self.code.add(line, DYNAMIC_LINE + (at // 8 - 1) * size)
        offset = self.code.op("mul", self.code.op("lshr", at, 3), size)
        return self.code.add(self.code.op("add", line, offset), DYNAMIC_LINE - size)

    def hash(self) -> tuple[Value, Value]:
        """(tag of a LIVE entry with the key, its first bucket)."""
        code, words = self.code, self.layout.key_words

        def mix(before: Value, word: Value) -> Value:
            mixed = code.op("mul", code.op("xor", before, word), _GOLDEN)
            return code.op("xor", mixed, code.op("lshr", mixed, 32))

        if words <= UNROLLED:
            found = const(_GOLDEN)
            for i in range(words):
                found = mix(found, self.word(8 * i))
        else:
            value, at = code.local(64, _GOLDEN), code.local(64)
            again, done = code.fresh("hash"), code.fresh("hashed")
            code.jump(again)
            code.block(again)
            here = code.get(at)
            found = mix(code.get(value), self.word(here))
            code.set(value, found)
            following = code.add(here, 8)
            code.set(at, following)
            code.branch(code.icmp("ult", following, 8 * words), again, done)
            code.block(done)
        tag = code.op("or", code.op("and", found, const(~DYNAMIC_STATE)), DYNAMIC_LIVE)
        high = code.op("mul", code.op("lshr", found, 32), self.layout.buckets)
        return tag, code.op("lshr", high, 32)

    def compare(self, entry: Value, equal: str, unequal: str) -> None:
        """Go on where the entry's key says."""
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
        first: Value,
        each: Callable[[Value, Value | int, Value, str], None],
        behind: Callable[[Value, str], None],
        end: str,
    ) -> None:
        """Loop over the tags of a key's buckets, then go to `end`.

        each(line, offset, tag, next) ends the block for one tag; behind(line, further) ends the
        one behind a bucket's last tag.
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
        behind(line, further_label)
        code.block(further_label)
        done = code.add(code.get(step), 1)
        code.set(step, done)
        beyond = code.add(code.get(bucket), 1)
        last = code.icmp("eq", beyond, self.layout.buckets)
        code.set(bucket, code.select(last, const(0), beyond))
        code.branch(code.icmp("ult", done, self.steps), line_label, end)

    def _tags(self, line: Value, each: Callable[[Value, Value | int, Value, str], None]) -> None:
        """Loop over the tags of a bucket: with long keys the code of each is too much to repeat."""
        code = self.code
        at = code.local(64)
        tag_label, next_label, end = (code.fresh(n) for n in ("tag", "next", "behind"))
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

    def place(self, line: Value, at: Value | int) -> Value:
        """Address of the tag that is `at` bytes into the line."""
        code = self.code
        return code.add(line, at) if isinstance(at, int) else code.op("add", line, at)

    def search(self, tag: Value, first: Value, missing: str) -> tuple[Value, Value]:
        """(address of the tag, of the entry) with the key; else control goes to `missing`."""
        code = self.code
        found = code.fresh("found")
        places, entries = code.local(64), code.local(64)

        def each(line: Value, at: Value | int, there: Value, following: str) -> None:
            same = code.fresh("match")
            code.branch(code.icmp("eq", there, tag), same, following)
            code.block(same)
            code.fence("acquire")
            entry = self.entry(line, at)
            code.set(places, self.place(line, at))
            code.set(entries, entry)
            self.compare(entry, found, following)

        def behind(line: Value, further: str) -> None:
            passed = code.op("and", code.load_atomic(line), DYNAMIC_PASSED)
            code.branch(code.icmp("eq", passed, 0), missing, further, likely=True)

        self.walk(first, each, behind, missing)
        code.block(found)
        return code.get(places), code.get(entries)
