"""Code for the work of an amd64 trampoline that needs no frame of saved registers: counting,
predicates, lookup of counters.

Interrupts stay on or off as they are. A counter belongs to one CPU and is changed by a single
instruction, through gs, so interrupts and other CPUs do no harm. What snippets read (registers, the
current thread) is the same before and after an interrupt.

    save     registers that the snippets change; the flags, if they are changed and live
    count    for each counter: if its guard (the snippet of its predicate) holds, inc gs:[counter]
    ask      if the guard of any call holds, go to `call`
    look up  for a counter at a computed offset (IndexedBody): if its guard holds, compute the
             offset by a snippet, and add 1; go to `call` if the snippet finds no counter
    record   write the record in line (records.py); go to `call` if it cannot be written
    restore, and go on to the displaced instruction
    call:    restore, and make all calls inside a frame

Flags are saved by lahf, which reads all of them but OF, and by seto, which reads OF. popf is not
used: it is slow everywhere, and ends QEMU's translation block. The saved flags stay in ax or, if a
snippet uses rax, on the stack. Guards are tested by jrcxz, which changes no flags.

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.core.bodies import CountBody, SiteWork, Snippet
from kinst.core.dataclass import dataclass
from kinst.core.displaced import Refused, refuses_out_of_reach
from kinst.core.probe import Site
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64 import flags, records
from kinst.isa.amd64.snippets import RESULT

_WORD = 8
_TAKE_FLAGS = b"\x9f\x0f\x90\xc0"  # lahf; seto al
_GIVE_FLAGS = b"\x04\x7f\x9e"  # add al, 127 (sets OF back); sahf


def flag_saving(red_zone: bool) -> tuple[bytes, bytes]:
    """Return code that saves the flags, and code that restores them.

    Args:
        red_zone: whether the traced code keeps data below rsp.
    """
    save, restore = e.push(e.RAX) + _TAKE_FLAGS, _GIVE_FLAGS + e.pop(e.RAX)
    return (e.LEAVE_RED_ZONE + save, restore + e.ENTER_RED_ZONE) if red_zone else (save, restore)


def inline(
    work: SiteWork,
    site: Site,
    following: bytes,
    to: int,
    frame: Callable[[int], bytes],
    red_zone: bool = False,
) -> bytes:
    """Return the code at address `to` for a site's work: first the work that needs no frame of
    saved registers, then the calls.

    Args:
        following: live bytes after the site's instruction; they tell which flags are live.
        red_zone: whether the traced code keeps data below rsp.
        frame: function that takes an address, and returns the code for that address that makes the
            calls inside a frame. The code has the same length at any address. Raises OutOfReach.
    """
    snippets = work.snippets
    changed = flags.ARITHMETIC if any(snippet.flags for snippet in snippets) else 0
    if work.inline or work.indexed:
        changed |= flags.COUNTING_CLOBBERS
    if work.recorded:
        changed = flags.ARITHMETIC
    live = bool(changed) and not flags.dead(site.code, following, site.address, changed)
    also = records.CHANGED if work.recorded else frozenset[int]()
    kept = _Amd64Saved.by(snippets, live, also, red_zone)
    code = kept.save
    for body in work.inline:
        counts = count(body)
        if body.guard is not None:
            counts = _unless(body.guard, len(counts)) + counts
            code += kept.run(body.guard)
        code += counts
    if work.recorded is not None:
        record, guard = work.recorded, work.recorded.guard
        asked = b"" if guard is None else kept.run(guard)
        lower = records.lower(record.addresses)
        last = lower + kept.restore

        def whole(at: int) -> bytes:
            call = last + frame(at) + e.hop(len(last))
            written = records.write(record, kept.on_stack, call)
            skip = b"" if guard is None else _unless(guard, len(written) + len(lower))
            return code + asked + skip + written + last

        # The frame's code has the same length at any address.
        after_frame = len(e.hop(len(last))) + len(last)
        return whole(to + len(whole(to)) - after_frame - len(frame(to)))
    if not work.asked and work.indexed is None:
        return code + kept.restore
    size = len(frame(to))
    end = kept.restore + e.hop(len(kept.restore) + size)
    if work.indexed is not None:
        guard = work.indexed.guard
        asked = b"" if guard is None else kept.run(guard)
        bump = e.increment_gs_at(RESULT)
        counted = kept.run(work.indexed.index) + _if_zero(len(bump) + len(end)) + bump
        code += asked + (b"" if guard is None else _unless(guard, len(counted))) + counted + end
    else:
        for guard, asked in reversed([(guard, kept.run(guard)) for guard in work.guards]):
            end = asked + _when(guard, len(end)) + end
        code += end
    code += kept.restore
    return code + frame(to + len(code))


@refuses_out_of_reach
def stub(at: int, counter: int, to: int, free: bool, red_zone: bool = False) -> bytes | Refused:
    code = e.increment_gs(counter)
    if not free:
        save, restore = flag_saving(red_zone)
        code = save + code + restore
    return code + e.jump(at + len(code), to, "the trampoline after it")


def count(body: CountBody) -> bytes:
    return b"".join(e.increment_gs(offset) for offset in body.offsets)


@dataclass(frozen=True, slots=True)
class _Amd64Saved:
    """Code that saves and restores registers and flags of the site around snippets.

    Attributes:
        save: code that saves the registers and flags.
        restore: code that restores the registers and flags.
        on_stack: offset from rsp of each saved register's value, by register number.
        changed: registers that the snippets emitted so far have changed.
    """

    save: bytes
    restore: bytes
    on_stack: dict[int, int]
    changed: set[int]

    @classmethod
    def by(
        cls,
        snippets: Sequence[Snippet],
        live: bool,
        also: frozenset[int] = frozenset(),
        red_zone: bool = False,
    ) -> _Amd64Saved:
        """Return the code that saves and restores what these snippets change.

        Args:
            live: whether the flags must be saved.
            also: registers that other code changes.
            red_zone: whether the traced code keeps data below rsp.
        """
        written = also.union(*(snippet.writes for snippet in snippets))
        read = frozenset[int]().union(*(snippet.reads for snippet in snippets))
        pushed = [*sorted(written - {e.RAX}), e.RAX] if live else sorted(written)
        save = b"".join(e.push(register) for register in pushed)
        restore = b"".join(e.pop(register) for register in reversed(pushed))
        depth = len(pushed)
        if live:
            save, restore = save + _TAKE_FLAGS, _GIVE_FLAGS + restore
            if e.RAX in written | read:
                save += e.push(e.RAX) + e.load(e.RAX, _WORD)
                restore = e.pop(e.RAX) + restore
                depth += 1
        if red_zone and pushed:
            save, restore = e.LEAVE_RED_ZONE + save, restore + e.ENTER_RED_ZONE
        stack_offsets = {register: (depth - 1 - n) * _WORD for n, register in enumerate(pushed)}
        return cls(save, restore, stack_offsets, set())

    def run(self, snippet: Snippet) -> bytes:
        """Return a snippet's code, preceded by loads of the saved values of those registers that
        the snippet reads and earlier snippets have changed."""
        again = sorted(snippet.reads & self.changed)
        self.changed.update(snippet.writes)
        return (
            b"".join(e.load(register, self.on_stack[register]) for register in again) + snippet.code
        )


def _if_zero(distance: int) -> bytes:
    """Return code that skips the next `distance` bytes if a snippet's result (rcx) is zero."""
    if e.fits8(distance):
        return e.hop_if_rcx_zero(distance)
    far = e.hop(distance)
    over = e.hop(len(far))
    return e.hop_if_rcx_zero(len(over)) + over + far


def _unless_zero(distance: int) -> bytes:
    far = e.hop(distance)
    return e.hop_if_rcx_zero(len(far)) + far


def _when(guard: Snippet, distance: int) -> bytes:
    """Return a branch that skips the next `distance` bytes if the guard's predicate is true. The
    branch must come directly after the guard's code, because it tests that code's result."""
    return _if_zero(distance) if guard.zero else _unless_zero(distance)


def _unless(guard: Snippet, distance: int) -> bytes:
    return _unless_zero(distance) if guard.zero else _if_zero(distance)
