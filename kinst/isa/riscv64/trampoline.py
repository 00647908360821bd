"""Code of a whole riscv64 trampoline: the probe's work, then the displaced instruction, then the
way back.

Counting alone is one amoadd.d for each counter. It uses two registers, which are dead at the site
or are saved and restored. inline.py makes other work that needs no frame.

A call is in the C convention, since LLVM's preserve-most convention on this ISA restores a0 over
the result. The registers that a C function may change are saved; other registers are saved if the
clauses read them. Interrupts are off (sstatus.SIE) from before the first call until after the last.
Then they become what they were, but not if the instruction takes the short way back (relocate.py):
for this they stay off. The stack is 16-byte aligned at every instruction (RISC-V psABI).

Registers that clauses change are loaded from the frame after the calls. If clauses choose an exit
(CallBody.exits), they store its number in the frame. After the calls comes code for each exit. If
the number in the frame is its own, it restores everything and leaves: by ret for the exit that
returns from the function, otherwise by sret. For ret, ra has the return address, since only a
function's first instruction has such an exit. A site with exits never takes the short way back.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.bodies import Body, CallBody, CountBody, Exit, SiteWork, divided, frame_use
from kinst.core.displaced import UNCHAINED, Onward, Refused, Relocated, refuses_out_of_reach
from kinst.core.probe import Site
from kinst.isa.riscv64 import encode as e
from kinst.isa.riscv64 import registers as r
from kinst.isa.riscv64 import relocate
from kinst.isa.riscv64.inline import count, inline
from kinst.isa.riscv64.liveness import choose

_ROOM = 16
_NOT_EQUAL = 1  # funct3 of branches


@refuses_out_of_reach
def trampoline(
    site: Site, to: int, bodies: Sequence[Body], onward: Onward = UNCHAINED
) -> Relocated | Refused:
    """Return a site's trampoline at the address `to`. It is refused if the instruction cannot be
    displaced, or if something is more than 2 GB away.

    A head (Onward.head) begins with a jump over code that leads back to the site. Unplanting
    removes the jump, so that control runs into that code and leaves the chain.

    Args:
        bodies: the site's work, in order.
        onward: where control goes on after the displaced instruction.
    """
    head = b""
    if onward.head:
        way_back = relocate.leave(to + e.JAL_SIZE, site.address)
        head = e.jal(e.X0, e.JAL_SIZE + len(way_back)) + way_back
    code = _after_head(site, to + len(head), bodies, onward)
    if isinstance(code, Refused):
        return code
    at = code.original_at
    return Relocated(head + code.code, at if at < 0 else at + len(head))


@refuses_out_of_reach
def _after_head(site: Site, to: int, bodies: Sequence[Body], onward: Onward) -> Relocated | Refused:
    linked = relocate.is_linked(site.code, site.address, onward)
    divided_work = divided(bodies)
    busy = bool(divided_work.inline or divided_work.calls)
    quiet = busy and not linked and not frame_use(bodies).exits
    sepc = relocate.quiet_sepc(site.code, site.address) if quiet else None
    free = onward.dead.get(site.address, 0)
    work = _work(site, to, divided_work, sepc, free)
    there = to + len(work)
    if sepc is None:
        displaced = relocate.displace(site.code, site.address, there, onward)
    else:
        displaced = relocate.quietly(site.code, site.address, there)
    if isinstance(displaced, Refused):
        return displaced
    at = displaced.original_at
    return Relocated(work + displaced.code, at if at < 0 else at + len(work))


def _work(site: Site, to: int, work: SiteWork, sepc: int | None, free: int) -> bytes:
    """Return the code at the address `to` for a site's work.

    Args:
        sepc: what quiet_sepc() returned, if the site takes the short way back (relocate.py). Every
            path through the code then turns interrupts off and runs the code of return_to().
            Otherwise None, and the code leaves sepc alone.
        free: mask of the registers that are dead at the site.
    """

    def end(at: int) -> bytes:
        return b"" if sepc is None or work.frame else _counts(at, (), sepc)

    def frame(at: int) -> bytes:
        return _calls(site, at, work.calls, sepc)

    code = b""
    if work.snippets:
        code = inline(work, to, end, frame)
    elif work.inline:
        code = _counts(to, work.inline, sepc, free)
    return code + frame(to + len(code)) if work.frame else code


def _counts(to: int, bodies: Sequence[CountBody], sepc: int | None, free: int = 0) -> bytes:
    """Return code at the address `to` that only counts, without guards.

    Args:
        sepc: the address to return to by sret, if the site takes the short way back
            (relocate.quiet_sepc()). The code then turns interrupts off, and sets sepc to this
            address (relocate.return_to()). None if the site takes another way: the code then does
            not touch sepc.
        free: mask of the registers that are dead at the site.
    """
    increment = choose(free)
    spoiled = choose(free & ~(1 << increment))
    if bodies and sepc is None and increment and spoiled:
        code = e.addi(increment, e.X0, 1)
        for body in bodies:
            code += count(to + len(code), body, increment, spoiled)
        return code
    code = e.addi(e.SP, e.SP, -_ROOM) + e.c_sdsp(e.T0, 0) + e.c_sdsp(e.T1, 8)
    if bodies:
        code += e.addi(e.T1, e.X0, 1)
    for body in bodies:
        code += count(to + len(code), body)
    if sepc is not None:
        code += e.csr_read_clear_bits(e.T0, e.SSTATUS, e.SIE)
        code += relocate.return_to(to + len(code), sepc)
    return code + e.c_ldsp(e.T0, 0) + e.c_ldsp(e.T1, 8) + e.addi(e.SP, e.SP, _ROOM)


@refuses_out_of_reach
def stub(at: int, counter: int, to: int, free: bool) -> bytes | Refused:
    code = _counts(at, (CountBody((counter,)),), None)
    return code + e.jal(e.X0, to - at - len(code))


def _calls(site: Site, to: int, bodies: Sequence[CallBody | CountBody], sepc: int | None) -> bytes:
    """Return code at the address `to` that does calls and counting in order, inside one frame of
    saved registers.

    Args:
        bodies: the work; at least one body is a call.
        sepc: what quiet_sepc() returned, if the site takes the short way back (relocate.py). The
            code then leaves interrupts off and runs the code of return_to(). Otherwise None, and
            the code leaves sepc alone.
    """
    use = frame_use(bodies)
    slots = use.slots
    code = e.addi(e.SP, e.SP, -r.FRAME_SIZE)
    code += b"".join(e.c_sdsp(register, 8 * register) for register in r.CALLER_SAVED)
    for slot in sorted(slots.difference(r.CALLER_SAVED, (r.STATUS_SLOT, r.EXIT_SLOT))):
        code += _fill(to + len(code), slot, site)
    code += e.csr_read_clear_bits(e.T0, e.SSTATUS, e.SIE) + e.c_sdsp(e.T0, 8 * r.STATUS_SLOT)
    if use.exits:
        code += e.c_sdsp(e.X0, 8 * r.EXIT_SLOT)
    for body in bodies:
        if isinstance(body, CallBody):
            code += relocate.load(e.A0, to + len(code), body.argument) + e.move(e.A1, e.SP)
            code += e.call(to + len(code), body.entry)
        else:
            code += e.addi(e.T1, e.X0, 1)
            code += count(to + len(code), body)
    restored = sorted({*r.CALLER_SAVED, *use.written})
    last = b"".join(e.c_ldsp(register, 8 * register) for register in restored)
    last += e.addi(e.SP, e.SP, r.FRAME_SIZE)
    status = e.c_ldsp(e.T0, 8 * r.STATUS_SLOT)
    enable = status + e.andi(e.T0, e.T0, e.SIE) + e.csr_set(e.SSTATUS, e.T0)
    for one in use.exits:
        code += _exit(to + len(code), one, enable + last)
    if sepc is None:
        return code + enable + last
    code += status
    return code + relocate.return_to(to + len(code), sepc) + last


def _exit(at: int, chosen: Exit, end: bytes) -> bytes:
    """Return code at the address `at` that takes an exit if the frame's exit slot has the exit's
    number; otherwise control runs on after this code.

    Args:
        end: code that restores interrupts and registers, and removes the frame.
    """
    test = e.c_ldsp(e.T0, 8 * r.EXIT_SLOT) + e.load_value(e.T1, chosen.number)
    there = at + len(test) + e.SIZE + len(end)
    go = relocate.leave(there, chosen.target, "the exit") if chosen.target else e.RET
    hop = e.branch(_NOT_EQUAL, e.T0, e.T1, e.SIZE + len(end) + len(go))
    return test + hop + end + go


def _fill(at: int, slot: int, site: Site) -> bytes:
    """Return code that stores the value that a register has at the site, in the register's frame
    slot. The slot must not be one of those that every frame saves. The code may change t0."""
    if slot == r.PC_SLOT:
        return relocate.load(e.T0, at, site.address) + e.c_sdsp(e.T0, 8 * slot)
    if slot == r.SP_SLOT:
        return e.addi(e.T0, e.SP, r.FRAME_SIZE) + e.c_sdsp(e.T0, 8 * slot)
    return e.c_sdsp(slot, 8 * slot)
