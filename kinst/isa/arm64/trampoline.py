"""Code of a whole arm64 trampoline: the probe's work, then the displaced instruction, then the jump
back.

inline.py makes work that needs no frame. A call saves the registers that the clauses read, and
those that the called code may change: x0 to x8, x16 and x17 (LLVM's preserve_mostcc on AArch64),
and x30, which the call itself changes. x18 is never changed. The stack pointer is 16-byte aligned
at every instruction of the kernel (SCTLR_EL1.SA), and so is the frame.

Registers that clauses change are loaded from the frame after the calls. If clauses choose an exit
(CallBody.exits), they store its number in the frame. After the calls comes code for each exit. If
the number in the frame is its own, it restores everything and leaves: by ret for the exit that
returns from the function, otherwise by a branch. For ret, x30 has the return address, since only a
function's first instruction has such an exit.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.bodies import Body, CallBody, CountBody, Exit, divided, frame_use
from kinst.core.displaced import UNCHAINED, Onward, Refused, Relocated, refuses_out_of_reach
from kinst.core.probe import Site
from kinst.isa.arm64 import encode as e
from kinst.isa.arm64 import registers as r
from kinst.isa.arm64 import relocate, rerun
from kinst.isa.arm64.inline import count, inline

# Registers that are saved and restored in pairs; x9 and x29 only complete their pairs.
_SAVED = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (16, 17), (29, 30))
_CLOBBERED = frozenset(n for pair in _SAVED for n in pair)
_GENERAL = 31  # x0 to x30


@refuses_out_of_reach
def trampoline(
    site: Site, to: int, bodies: Sequence[Body], rerun_prefix: bytes, onward: Onward = UNCHAINED
) -> Relocated | Refused:
    """Return a site's trampoline at the address `to`.

    It is refused if the instruction cannot be displaced, or if something is more than 128 MB away.

    Args:
        bodies: the work, in order.
        rerun_prefix: instructions to run again after the work: those from a load-exclusive up to
            the site's instruction (rerun.py); b"" if there are none.
        onward: where control goes on after the displaced instruction.
    """
    work = _work(site, to, bodies)
    there = to + len(work)
    if rerun_prefix:
        displaced = rerun.displace(rerun_prefix, site.code, site.address, there)
    else:
        displaced = relocate.displace(site.code, site.address, there, onward)
    if isinstance(displaced, Refused):
        return displaced
    at = displaced.original_at
    return Relocated(work + displaced.code, at if at < 0 else at + len(work))


def _work(site: Site, to: int, bodies: Sequence[Body]) -> bytes:
    work = divided(bodies)
    code = inline(work, to, lambda at: _calls(site, at, work.calls))
    return code + _calls(site, to + len(code), work.frame) if work.frame else code


def _calls(site: Site, to: int, bodies: Sequence[CallBody | CountBody]) -> bytes:
    """Return code at the address `to` that does calls and counting in order, inside one frame of
    saved registers.

    Args:
        bodies: the work; at least one body is a call.
    """
    use = frame_use(bodies)
    slots = use.slots
    code = e.sub(e.SP, e.SP, r.FRAME_SIZE)
    for first, second in _SAVED:
        code += e.store_pair(first, second, e.SP, 8 * first)
    for number in sorted(slots - _CLOBBERED):
        if number < _GENERAL:
            code += e.store(number, e.SP, 8 * number)
    code += _save_state(r.PSTATE_SLOT in slots) + e.mask_interrupts()
    if use.exits:
        code += e.store(e.ZR, e.SP, 8 * r.EXIT_SLOT)
    if r.SP_SLOT in slots:
        code += e.add(0, e.SP, r.FRAME_SIZE) + e.store(0, e.SP, 8 * r.SP_SLOT)
    if r.PC_SLOT in slots:
        code += e.load_value(0, site.address) + e.store(0, e.SP, 8 * r.PC_SLOT)
    for body in bodies:
        if isinstance(body, CallBody):
            code += e.load_value(0, body.argument) + e.add(1, e.SP, 0)
            code += e.call(to + len(code), body.entry)
        else:
            code += count(body.offsets)
    end = _end(use.written)
    for one in use.exits:
        code += _exit(to + len(code), one, end)
    return code + end


def _end(written: frozenset[int]) -> bytes:
    """Return code that restores the registers and removes the frame.

    Args:
        written: slots that clauses may change. The code loads the registers of these slots from the
            frame, and the registers that every frame saves.
    """
    code = e.load(0, e.SP, 8 * r.PSTATE_SLOT)
    code += e.write_system(e.NZCV, 0) + e.write_system(e.DAIF, 0)
    for first, second in _SAVED:
        code += e.load_pair(first, second, e.SP, 8 * first)
    for number in sorted(written - _CLOBBERED):
        code += e.load(number, e.SP, 8 * number)
    return code + e.add(e.SP, e.SP, r.FRAME_SIZE)


def _exit(at: int, chosen: Exit, end: bytes) -> bytes:
    """Return code at the address `at` that takes an exit if the frame's exit slot has the exit's
    number; otherwise control runs on after this code.

    Args:
        end: code that restores the registers and removes the frame.
    """
    test = e.load(0, e.SP, 8 * r.EXIT_SLOT) + e.load_value(1, chosen.number) + e.subtract(0, 0, 1)
    there = at + len(test) + e.SIZE + len(end)
    go = e.branch(there, chosen.target, "the exit") if chosen.target else e.RET
    return test + e.branch_not_zero_x(0, e.SIZE + len(end) + len(go)) + end + go


def _save_state(whole: bool) -> bytes:
    """Return code that saves PSTATE in its frame slot.

    Args:
        whole: save the exception level and the choice of the stack pointer as well as the flags and
            the interrupt masks, since a clause reads PSTATE. Otherwise save only the flags and the
            interrupt masks.
    """
    code = e.read_system(0, e.NZCV)
    for part in (e.DAIF, e.CURRENT_EL, e.SP_SEL) if whole else (e.DAIF,):
        code += e.read_system(1, part) + e.or_registers(0, 0, 1)
    return code + e.store(0, e.SP, 8 * r.PSTATE_SLOT)
