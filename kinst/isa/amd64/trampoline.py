"""Code of a whole amd64 trampoline: the probe's work, then the displaced instruction, then the jump
back.

Counting alone is one `inc` of this CPU's own memory for each counter: an interrupt cannot split it,
and it does not change CF. inline.py makes other work that needs no frame.

A call saves what the call itself needs (flags, r11, rsi, rdi), and the slots that the clauses read;
the called code preserves everything else (LLVM's preserve_mostcc preserves every general register
but r11). After a call, popf restores the flags: it restores IF, DF and the arithmetic flags in one
instruction. It ends QEMU's translation block, but so would sti, the alternative for IF. The stack
is not realigned: clauses are compiled without vector registers and with 8-byte stack alignment.

If clauses may change registers (regs[R_RAX] = 1), these registers are loaded from the frame after
the calls. If clauses may choose where control goes (CallBody.exits), they store the number of an
exit in the frame. After the calls comes code for each exit. If the number in the frame is its own,
it restores everything and leaves: by ret for the exit that returns from the function, otherwise by
a jump.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.bodies import Body, CallBody, CountBody, Exit, divided, frame_use
from kinst.core.displaced import UNCHAINED, Onward, Refused, Relocated, refuses_out_of_reach
from kinst.core.probe import Site
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64 import registers as r
from kinst.isa.amd64 import relocate
from kinst.isa.amd64.inline import count, inline
from kinst.isa.amd64.refuse import shadow_refusal

_WORD = 8
COUNT_OPCODE = e.increment_gs(0)[:-4]  # one instruction of more than a jump's size
_RDMSR = b"\x0f\x32"
ONLY_COUNTS = "in a user program, instructions are only counted"


@refuses_out_of_reach
def trampoline(
    site: Site,
    following: bytes,
    to: int,
    bodies: Sequence[Body],
    onward: Onward = UNCHAINED,
    user: bool = False,
) -> Relocated | Refused:
    """Return a site's trampoline at the address `to`.

    The site is refused in three cases: its instruction cannot be displaced, its instruction depends
    on the next one, or something is more than 2 GB away.

    Args:
        following: live bytes after the instruction; a few dozen are enough.
        bodies: the work, in order.
        onward: where control goes on after the displaced instruction.
        user: whether the instruction is of a user program, where trampolines only count.
    """
    after = site.address + len(site.code)
    reason = shadow_refusal(site.code, following, after)
    if reason:
        return Refused(reason)
    if user and not all(isinstance(body, CountBody) for body in bodies):
        return Refused(ONLY_COUNTS)
    work = _work(site, following, to, bodies, user)
    if onward.head and not work.startswith(COUNT_OPCODE):
        work = e.NOP5 + _work(site, following, to + len(e.NOP5), bodies, user)
    displaced = relocate.displace(site.code, site.address, to + len(work), onward, user)
    if isinstance(displaced, Refused):
        return displaced
    at = displaced.original_at
    return Relocated(work + displaced.code, at if at < 0 else at + len(work))


def _work(site: Site, following: bytes, to: int, bodies: Sequence[Body], user: bool) -> bytes:
    work = divided(bodies)
    code = inline(work, site, following, to, lambda at: _calls(site, at, work.calls), user)
    return code + _calls(site, to + len(code), work.frame) if work.frame else code


def _calls(site: Site, to: int, bodies: Sequence[CallBody | CountBody]) -> bytes:
    """Return code at the address `to` that does calls and counting in order, inside one frame of
    saved registers.

    Args:
        bodies: the work; at least one body is a call.
    """
    use = frame_use(bodies)
    slots = use.slots | {r.EXIT_SLOT} if use.exits else use.slots
    code, end = call_frame(slots, site.address, use.written)
    for body in bodies:
        if isinstance(body, CallBody):
            code += e.load_value(e.RDI, body.argument)
            code += e.call(to + len(code), body.entry)
        else:
            code += count(body)
    if use.exits:
        code += e.load(e.RDI, (r.EXIT_SLOT - _lowest(slots)) * _WORD)
        for one in use.exits:
            code += _exit(to + len(code), one, end)
    return code + end


def _exit(at: int, chosen: Exit, end: bytes) -> bytes:
    """Return code at the address `at` that takes an exit if rdi has the exit's number; otherwise
    control runs on after this code. rdi must have been loaded from the frame's exit slot.

    Args:
        end: code that restores the registers and removes the frame.
    """
    test = e.compare(e.RDI, chosen.number)
    size = len(test) + len(e.skip_if_not_equal(0)) + len(end)
    go = e.jump(at + size, chosen.target, "the exit") if chosen.target else e.RET
    return test + e.skip_if_not_equal(len(end) + len(go)) + end + go


def _lowest(slots: frozenset[int]) -> int:
    """Return the lowest slot of a frame in which `slots` are filled. Every frame also has the slots
    that are filled by push."""
    return min((*(slots - r.PUSHED), r.LOWEST_PUSHED))


def call_frame(
    slots: frozenset[int], address: int, written: frozenset[int] = frozenset()
) -> tuple[bytes, bytes]:
    """Return code that makes a frame of saved registers for calls, and code that removes the frame
    after them.

    Args:
        slots: the slots of the frame to fill.
        address: address of the site. The code depends on it only if PC_SLOT is one of `slots`.
        written: slots, among `slots`, from which registers are loaded before the frame is removed.
    """
    stored = sorted(slots - r.PUSHED)
    lowest = _lowest(slots)
    reserved = (r.LOWEST_PUSHED - lowest) * _WORD
    code = e.PUSHFQ + e.CLI + e.CLD + e.push(e.R11) + e.push(e.RSI) + e.push(e.RDI)
    if reserved:
        code += e.lea(e.RSP, -reserved)
    for slot in stored:
        code += _fill(slot, (slot - lowest) * _WORD, (r.FRAME_SLOTS - lowest) * _WORD, address)
    code += e.lea(e.RSI, -lowest * _WORD) if lowest else e.move(e.RSI, e.RSP)
    end = b"".join(
        e.load(r.GENERAL[slot], (slot - lowest) * _WORD) for slot in sorted(written - r.PUSHED)
    )
    end += e.lea(e.RSP, reserved) if reserved else b""
    return code, end + e.pop(e.RDI) + e.pop(e.RSI) + e.pop(e.R11) + e.POPFQ


def _fill(slot: int, offset: int, frame_end: int, address: int) -> bytes:
    """Return code that stores the value that a register has at the site, in the register's frame
    slot at [rsp + offset]. The code may change rdi, rsi and r11.

    Args:
        frame_end: bytes by which rsp is below its value at the site.
        address: address of the site.
    """
    if slot in r.GENERAL:
        return e.store(offset, r.GENERAL[slot])
    if slot == r.SP_SLOT:
        return e.lea(e.RDI, frame_end) + e.store(offset, e.RDI)
    if slot == r.PC_SLOT:
        return e.store_value(offset, address, e.RDI)
    if slot == r.EXIT_SLOT:
        return e.store_value(offset, 0, e.RDI)
    if slot in r.SEGMENT:
        return e.read_segment(e.RDI, r.SEGMENT[slot]) + e.store(offset, e.RDI)
    # rdmsr returns its value in edx:eax.
    kept = ((e.RDI, e.RAX), (e.RSI, e.RCX), (e.R11, e.RDX))
    return (
        b"".join(e.move(to, from_) for to, from_ in kept)
        + e.load_value(e.RCX, r.BASE_MSR[slot])
        + _RDMSR
        + e.store32(offset, e.RAX)
        + e.store32(offset + 4, e.RDX)
        + b"".join(e.move(from_, to) for to, from_ in kept)
    )
