"""Code for the work of a riscv64 trampoline that needs no frame of saved registers: counting,
predicates, lookup of counters.

Counting alone is one amoadd.d for each counter, which all CPUs share: a counter for each CPU would
need the kernel's table of per-CPU addresses, and two more loads. Interrupts stay on or off as they
are.

    save     registers that counting and the snippets use
    count    for each counter: if its guard (the snippet of its predicate) holds, add 1
    ask      if the guard of any call holds, go to `call`
    look up  for a counter at a computed offset (IndexedBody): if its guard holds, compute the
             offset by a snippet, and add 1; go to `call` if the snippet finds no counter
    restore, run the code `end` (an argument of inline()), and go on to the displaced instruction
    call:    restore, and make all calls inside a frame

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.core.bodies import CountBody, SiteWork, Snippet
from kinst.core.dataclass import dataclass
from kinst.isa.riscv64 import encode as e
from kinst.isa.riscv64.snippets import RESULT

_Maker = Callable[[int], bytes]

_EQUAL, _NOT_EQUAL = 0, 1  # funct3 of branches
_COUNTING = frozenset((e.T0, e.T1))


def inline(work: SiteWork, to: int, end: _Maker, frame: _Maker) -> bytes:
    """Return the code at address `to` for a site's work that has snippets: first the work that
    needs no frame of saved registers, then the calls.

    Args:
        end: function that takes an address, and returns the code for that address that ends each
            path without calls. The code has the same length at any address. Raises OutOfReach.
        frame: function that takes an address, and returns the code for that address that makes the
            calls inside a frame. The code has the same length at any address. Raises OutOfReach.
    """
    kept = _Riscv64Saved.by(work.snippets, bool(work.inline or work.indexed))
    code = kept.save
    for body in work.inline:
        asked = b"" if body.guard is None else kept.run(body.guard)
        at = to + len(code) + len(asked) + (0 if body.guard is None else e.SIZE)
        counts = e.addi(e.T1, e.X0, 1) + count(at + e.SIZE, body)
        if body.guard is not None:
            asked += _unless(body.guard, len(counts))
        code += asked + counts
        kept.changed.update(_COUNTING)
    if not work.calls:
        code += kept.restore
        return code + end(to + len(code))
    over = e.SIZE + len(kept.restore) + len(frame(to))
    tail_size = len(kept.restore) + len(end(to)) + e.JAL_SIZE
    asking = b""
    if work.indexed is not None:
        guard = work.indexed.guard
        bump = e.addi(e.T1, e.X0, 1) + e.add_atomic(e.T1, RESULT)
        if guard is not None:
            asking = kept.run(guard)
        counted = kept.run(work.indexed.index)
        counted += _branch(_EQUAL, len(bump) + tail_size) + bump
        asking += (b"" if guard is None else _unless(guard, len(counted))) + counted
    else:
        below = 0
        for guard, asked in reversed([(guard, kept.run(guard)) for guard in work.guards]):
            piece = asked + _when(guard, below + tail_size)
            asking, below = piece + asking, below + len(piece)
    code += asking + kept.restore
    code += end(to + len(code))
    code += e.jal(e.X0, over) + kept.restore
    return code + frame(to + len(code))


def count(at: int, body: CountBody, increment: int = e.T1, spoiled: int = e.T0) -> bytes:
    """Return code at the address `at` that adds one to each counter of a body.

    Args:
        increment: register that must hold 1 when the code begins.
        spoiled: register that the code may change.
    """
    code = b""
    for address in body.offsets:
        code += e.load_address(spoiled, at + len(code), address, "the counter")
        code += e.add_atomic(increment, spoiled)
    return code


@dataclass(frozen=True, slots=True)
class _Riscv64Saved:
    """Code that saves and restores registers of the site around snippets.

    Attributes:
        save: code that saves the registers.
        restore: code that restores the registers.
        on_stack: offset from sp of each saved register's value, by register number.
        changed: registers that the code emitted so far has changed.
    """

    save: bytes
    restore: bytes
    on_stack: dict[int, int]
    changed: set[int]

    @classmethod
    def by(cls, snippets: Sequence[Snippet], counting: bool) -> _Riscv64Saved:
        used = frozenset[int]().union(*(snippet.writes for snippet in snippets))
        used |= _COUNTING if counting else frozenset()
        stack_offsets = {register: 8 * n for n, register in enumerate(sorted(used))}
        size = (8 * len(stack_offsets) + 15) & -16
        save = e.addi(e.SP, e.SP, -size)
        save += b"".join(e.c_sdsp(register, at) for register, at in stack_offsets.items())
        restore = b"".join(e.c_ldsp(register, at) for register, at in stack_offsets.items())
        return cls(save, restore + e.addi(e.SP, e.SP, size), stack_offsets, set())

    def run(self, snippet: Snippet) -> bytes:
        """Return a snippet's code, preceded by loads of the saved values of those registers that
        the snippet reads and earlier code has changed."""
        again = sorted(snippet.reads & self.changed)
        self.changed.update(snippet.writes)
        code = b"".join(e.c_ldsp(register, self.on_stack[register]) for register in again)
        return code + snippet.code


def _branch(test: int, distance: int) -> bytes:
    """Return code that skips the next `distance` bytes if a snippet's result is zero (test: _EQUAL)
    or not zero (_NOT_EQUAL)."""
    return e.branch(test, RESULT, e.X0, e.SIZE + distance)


def _when(guard: Snippet, distance: int) -> bytes:
    """Return a branch that skips the next `distance` bytes if the guard's predicate is true. The
    branch must come directly after the guard's code, because it tests that code's result."""
    return _branch(_EQUAL if guard.zero else _NOT_EQUAL, distance)


def _unless(guard: Snippet, distance: int) -> bytes:
    return _branch(_NOT_EQUAL if guard.zero else _EQUAL, distance)
