"""Code for the work of an arm64 trampoline that needs no frame of saved registers: counting,
predicates, lookup of counters.

Counting alone adds to memory by load- and store-exclusive, in a loop: all CPUs share the counter.
(The atomic instructions of Armv8.1 may be missing; a counter for each CPU would need interrupts to
be masked while it changes, which costs more.) Interrupts stay on or off as they are throughout. The
flags stay as they are, too; if a snippet sets them, they are saved with the registers.

    save     registers that counting and the snippets use, and NZCV if a snippet sets it
    count    for each counter: if its guard (the snippet of its predicate) holds, add 1
    ask      if the guard of any call holds, go to `call`
    look up  for a counter at a computed offset (IndexedBody): if its guard holds, compute the
             offset by a snippet, and add 1; go to `call` if the snippet finds no counter
    restore, and go on to the displaced instruction
    call:    restore, and make all calls inside a frame

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.core.bodies import SiteWork, Snippet
from kinst.core.dataclass import dataclass
from kinst.core.displaced import Refused, refuses_out_of_reach
from kinst.isa.arm64 import encode as e
from kinst.isa.arm64.snippets import RESULT

# Registers of counting: the counter's address, the counter's value, whether the value was stored.
ADDRESS, VALUE, STATUS = 0, 1, 2
_COUNTING = frozenset((ADDRESS, VALUE, STATUS))
_COUNTING_SIZE = 32


def inline(work: SiteWork, to: int, frame: Callable[[int], bytes]) -> bytes:
    """Return the code at address `to` for a site's work: first the work that needs no frame of
    saved registers, then the calls.

    Args:
        frame: function that takes an address, and returns the code for that address that makes the
            calls inside a frame. The code has the same length at any address. Raises OutOfReach.
    """
    snippets = work.snippets
    if not snippets:
        return _count_only([at for body in work.inline for at in body.offsets])
    kept = _Arm64Saved.by(snippets, bool(work.inline or work.indexed))
    code = kept.save
    for body in work.inline:
        counts = count(body.offsets)
        if body.guard is not None:
            code += kept.run(body.guard) + _unless(body.guard, len(counts))
        code += counts
        kept.changed.update(_COUNTING)
    if not work.asked and work.indexed is None:
        return code + kept.restore
    end = kept.restore + e.branch(0, e.SIZE + len(kept.restore) + len(frame(to)))
    if work.indexed is not None:
        guard = work.indexed.guard
        asked = b"" if guard is None else kept.run(guard)
        bump = _add_one(RESULT)
        counted = kept.run(work.indexed.index)
        counted += e.branch_zero(RESULT, e.SIZE + len(bump) + len(end)) + bump
        code += asked + (b"" if guard is None else _unless(guard, len(counted))) + counted + end
    else:
        for guard, asked in reversed([(guard, kept.run(guard)) for guard in work.guards]):
            end = asked + _when(guard, len(end)) + end
        code += end
    code += kept.restore
    return code + frame(to + len(code))


@refuses_out_of_reach
def stub(at: int, counter: int, to: int, free: bool) -> bytes | Refused:
    code = _count_only((counter,))
    return code + e.branch(at + len(code), to, "the trampoline after it")


def count(counters: Sequence[int]) -> bytes:
    """Return code that adds one to each counter at these addresses; the code may change x0 to
    x2."""
    return b"".join(e.load_value(ADDRESS, at) + _add_one(ADDRESS) for at in counters)


def _count_only(counters: Sequence[int]) -> bytes:
    if not counters:
        return b""
    code = e.push_pair(ADDRESS, VALUE, _COUNTING_SIZE) + e.store(STATUS, e.SP, 16)
    code += count(counters)
    return code + e.load(STATUS, e.SP, 16) + e.pop_pair(ADDRESS, VALUE, _COUNTING_SIZE)


def _add_one(address: int) -> bytes:
    """Return code that adds one to the counter whose address is in a register; the code may change
    x1 and x2.

    Args:
        address: number of the register.
    """
    again = e.load_exclusive(VALUE, address) + e.add(VALUE, VALUE, 1)
    again += e.store_exclusive(STATUS, VALUE, address)
    return again + e.branch_not_zero(STATUS, -len(again))


@dataclass(frozen=True, slots=True)
class _Arm64Saved:
    """Code that saves and restores registers and flags of the site around snippets.

    Attributes:
        save: code that saves the registers and flags.
        restore: code that restores the registers and flags.
        on_stack: offset from sp of each saved register's value, by register number.
        changed: registers that the code emitted so far has changed.
    """

    save: bytes
    restore: bytes
    on_stack: dict[int, int]
    changed: set[int]

    @classmethod
    def by(cls, snippets: Sequence[Snippet], counting: bool) -> _Arm64Saved:
        used = frozenset[int]().union(*(snippet.writes for snippet in snippets))
        used |= _COUNTING if counting else frozenset()
        stack_offsets = {register: 8 * n for n, register in enumerate(sorted(used))}
        flags_at = 8 * len(stack_offsets)
        flags = any(snippet.flags for snippet in snippets)
        size = (flags_at + 8 * flags + 15) & -16
        save = e.sub(e.SP, e.SP, size)
        save += b"".join(e.store(register, e.SP, at) for register, at in stack_offsets.items())
        restore = b""
        changed = set[int]()
        if flags:
            save += e.read_system(RESULT, e.NZCV) + e.store(RESULT, e.SP, flags_at)
            restore += e.load(RESULT, e.SP, flags_at) + e.write_system(e.NZCV, RESULT)
            changed.add(RESULT)
        restore += b"".join(e.load(register, e.SP, at) for register, at in stack_offsets.items())
        return cls(save, restore + e.add(e.SP, e.SP, size), stack_offsets, changed)

    def run(self, snippet: Snippet) -> bytes:
        """Return a snippet's code, preceded by loads of the saved values of those registers that
        the snippet reads and earlier code has changed."""
        again = sorted(snippet.reads & self.changed)
        self.changed.update(snippet.writes)
        code = b"".join(e.load(register, e.SP, self.on_stack[register]) for register in again)
        return code + snippet.code


def _when(guard: Snippet, distance: int) -> bytes:
    """Return a branch that skips the next `distance` bytes if the guard's predicate is true. The
    branch must come directly after the guard's code, because it tests that code's result."""
    test = e.branch_zero if guard.zero else e.branch_not_zero_x
    return test(RESULT, e.SIZE + distance)


def _unless(guard: Snippet, distance: int) -> bytes:
    test = e.branch_not_zero_x if guard.zero else e.branch_zero
    return test(RESULT, e.SIZE + distance)
