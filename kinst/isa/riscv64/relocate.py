"""One instruction made to run elsewhere, with the same effect.

What depends on its own address is rewritten:
- auipc loads the value it would have had;
- a branch keeps its condition, and each side goes its own way;
- a call loads the original return address into its link register first; if that is also the
  register that it jumps by, the target is saved before: in a dead register, or as below.

refuse.py decides what is not displaced.

**The way back.** No jump reaches the kernel from a trampoline without a register: jal has 1 MB. If
a register is known to be dead at the target, and no clause reads it, the way back is auipc and jalr
(Onward.dead; liveness.py). Otherwise control returns as from a trap: sepc = the address to go to,
sstatus.SPP = supervisor, sstatus.SPIE = sstatus.SIE, sret. No register changes, SIE becomes what it
was, and what is lost (sepc, SPP, SPIE) is what the trap that came here has overwritten anyway;
control that came by a jump comes from code that a trap may interrupt, as refuse.py makes sure.
Interrupts are off from the reading of sstatus to sret, so that no other trap comes between; two
registers are saved below the stack pointer, where the ABI has nothing (RISC-V psABI, "Integer
Calling Convention"). A second breakpoint, as in the paper on FreeBSD's kinst, would do the same by
the kernel's trap handler, at thirty times the cost.

**The short way back.** Every instruction that accesses a control and status register is slow, most
of all on emulators. After a probe's work interrupts are off anyway; an instruction that cannot
fault and does not see sstatus may as well run so. Then sepc and sstatus are set before it, while
registers are still free, and only sret comes after it (return_to, quietly).

**No way back.** If the next instruction is planted as well, control goes on in its trampoline
(patch/chains.py), which a jal reaches or which lies directly after. That leaves sepc and sstatus
alone; the trap that came into the chain has overwritten them as above.
"""

from __future__ import annotations

from kinst.core.displaced import (
    UNCHAINED,
    Moved,
    Onward,
    OutOfReach,
    Refused,
    Relocated,
    refuses_out_of_reach,
    with_way_back,
)
from kinst.isa.riscv64 import encode as e
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.liveness import choose
from kinst.isa.riscv64.refuse import refusal

_SAVED = (e.T0, e.T1)
_ROOM = 16
_KEEP = ~(e.SIE | e.SPIE)
_TARGET, _GOAL = "the branch's target", "where it goes on"
_ARITHMETIC = (0x13, 0x1B, 0x33, 0x37, 0x3B)  # opcodes: OP-IMM, OP-IMM-32, OP, LUI, OP-32
_INTEGER_MEMORY = (0x03, 0x23)  # LOAD, STORE
_MOP_MASK, _MOP = 0xF8FF, 0x6081  # c.mop


def displace(code: bytes, address: int, to: int, onward: Onward = UNCHAINED) -> Relocated | Refused:
    """Return code at `to` with the effect of the one instruction `code` at `address`."""
    after = address + len(code)

    def back(at: int) -> bytes:
        return b"" if onward.falls_into == after else _go_on(at, after, onward)

    return with_way_back(move(code, address, to, onward), to, back)


def is_linked(code: bytes, address: int, onward: Onward) -> bool:
    """Whether, on one of its paths, control goes on in a trampoline after this instruction, or by a
    jump."""
    parsed = p.parse(code)
    if parsed is None:
        return False
    goals = [address + parsed.size]
    if parsed.kind in (p.JAL, p.BRANCH):
        goals.append(address + parsed.imm)
    return onward.falls_into >= 0 or any(
        goal in onward.links or onward.dead.get(goal) for goal in goals
    )


def _go_on(at: int, goal: int, onward: Onward, what: str = "the way back") -> bytes:
    """Return code for the address `at` that continues at the instruction at `goal`.

    If that instruction has a trampoline, the code continues there: the bytes at `goal` may be in
    the middle of a jump that leads elsewhere."""
    there = onward.links.get(goal, goal)
    if there != goal and e.fits(there - at, 21):
        return e.jal(e.X0, there - at)
    register = choose(onward.dead.get(goal, 0))
    return e.jump(at, there, register, what) if register else leave(at, there, what)


@refuses_out_of_reach
def move(code: bytes, address: int, to: int, onward: Onward = UNCHAINED) -> Moved | Refused:
    """Return what displace() does, without the way back."""
    parsed = p.parse(code)
    if parsed is None:
        return Refused("its bytes are not one known instruction")
    reason = refusal(parsed)
    if reason:
        return Refused(reason)
    return _move(code, parsed, address, to, onward)


def _move(
    code: bytes, parsed: p.Riscv64Instruction, address: int, to: int, onward: Onward = UNCHAINED
) -> Moved:
    after = address + parsed.size
    if parsed.kind == p.AUIPC:
        # With x0 it is a hint: a landing pad, on processors that have them.
        value = load(parsed.rd, to, address + parsed.imm) if parsed.rd else b"\x01\0"
        return Moved(value, True)
    if parsed.kind == p.JAL:
        link = e.load_address(parsed.rd, to, after) if parsed.rd else b""
        jump = _go_on(to + len(link), address + parsed.imm, onward, _TARGET)
        return Moved(link + jump, False)
    if parsed.kind == p.JALR:
        dead = choose(onward.dead.get(address, 0))
        return Moved(_move_indirect(parsed, after, to, dead), False)
    if parsed.kind == p.BRANCH:
        target = address + parsed.imm
        if onward.falls_into == after:
            # The opposite condition (the lowest bit of funct3) hops over the way to the target.
            go = _go_on(to + 4, target, onward, _TARGET)
            hop = e.branch(parsed.funct3 ^ 1, parsed.rs1, parsed.rs2, 4 + len(go))
            return Moved(hop + go, True)
        # The branch hops over the way to where it falls through to.
        stay = _go_on(to + 4, after, onward)
        hop = e.branch(parsed.funct3, parsed.rs1, parsed.rs2, 4 + len(stay))
        there = to + len(hop) + len(stay)
        return Moved(hop + stay + _go_on(there, target, onward, _TARGET), False)
    return Moved(code, True, 0)


def quiet_goal(code: bytes, address: int) -> int | None:
    """Return where control goes from an instruction that can run with interrupts off and the state
    for sret set, unless it is a branch that is taken; None for other instructions.

    Those are arithmetic, accesses relative to the stack pointer, as the trampoline itself uses the
    stack, and direct jumps and branches."""
    parsed = p.parse(code)
    if parsed is None or refusal(parsed):
        return None
    if parsed.kind == p.JAL:
        return address + parsed.imm
    quiet = parsed.kind in (p.AUIPC, p.BRANCH) or (parsed.kind == p.COPY and _plain(parsed))
    return address + parsed.size if quiet else None


def _plain(parsed: p.Riscv64Instruction) -> bool:
    """Whether it is arithmetic, or a load or store at the stack pointer or above it."""
    if parsed.size == 4:
        above = parsed.rs1 == e.SP and not parsed.word >> 31
        opcode = parsed.word & 0x7F
        return opcode in _ARITHMETIC or (opcode in _INTEGER_MEMORY and above)
    quadrant, funct3 = parsed.word & 3, parsed.word >> 13
    if parsed.word & _MOP_MASK == _MOP:
        return False  # c.sspush stores
    # c.addi4spn; c.addi to c.and; c.slli, c.mv, c.add and accesses with sp as their base.
    return (quadrant, funct3) == (0, 0) or quadrant == 1 or (quadrant == 2 and funct3 not in (1, 5))


@refuses_out_of_reach
def quietly(code: bytes, address: int, to: int) -> Relocated | Refused:
    """Return code at `to` with the effect of an instruction that has a quiet_goal, to run after
    return_to for that goal."""
    parsed = p.parse(code)
    assert parsed is not None
    if parsed.kind == p.JAL:
        link = e.load_address(parsed.rd, to, address + parsed.size) if parsed.rd else b""
        return Relocated(link + e.SRET)
    if parsed.kind == p.BRANCH:
        hop = e.branch(parsed.funct3, parsed.rs1, parsed.rs2, 4 + len(e.SRET))
        there = to + len(hop) + len(e.SRET)
        return Relocated(hop + e.SRET + _go_to(there, address + parsed.imm))
    moved = _move(code, parsed, address, to)
    return Relocated(moved.code + e.SRET, moved.original_at)


def return_to(at: int, goal: int) -> bytes:
    """Return code at `at` that sets sepc = goal, and sstatus so that sret goes there, from t0,
    which holds sstatus with interrupts as they are to be again. They are off already. Changes t0
    and t1."""
    code = _set_status(e.T1, e.T0)
    return code + e.load_address(e.T0, at + len(code), goal, _GOAL) + e.csr_write(e.SEPC, e.T0)


def _go_to(at: int, target: int) -> bytes:
    """Return code that goes by sret to another address than return_to has set."""
    code = e.addi(e.SP, e.SP, -_ROOM) + e.c_sdsp(e.T0, 0)
    code += e.load_address(e.T0, at + len(code), target, _TARGET) + e.csr_write(e.SEPC, e.T0)
    return code + e.c_ldsp(e.T0, 0) + e.addi(e.SP, e.SP, _ROOM) + e.SRET


def _set_status(temporary: int, status: int) -> bytes:
    """Return code that sets sstatus = status, except that sret goes to supervisor mode with SIE as
    it is in status, and interrupts are off until then."""
    return (
        e.andi(temporary, status, e.SIE)
        + e.slli(temporary, temporary, e.SPIE.bit_length() - e.SIE.bit_length())
        + e.andi(status, status, _KEEP)
        + e.ori(status, status, e.SPP)
        + e.or_(status, status, temporary)
        + e.csr_write(e.SSTATUS, status)
    )


def load(rd: int, at: int, value: int) -> bytes:
    """Return code that sets rd = value, an address: by a distance if that reaches."""
    try:
        return e.load_address(rd, at, value)
    except OutOfReach:
        return e.load_value(rd, value)


def _move_indirect(parsed: p.Riscv64Instruction, after: int, to: int, dead: int) -> bytes:
    """Move a jalr. dead: a dead register, or 0."""
    rd, rs1 = parsed.rd, parsed.rs1
    jump = e.jalr(e.X0, rs1, parsed.imm)
    if not rd:
        return jump
    if rd != rs1:
        return e.load_address(rd, to, after) + jump
    # The register that it jumps by becomes the return address.
    if dead:
        keep = e.move(dead, rs1)
        link = e.load_address(rd, to + len(keep), after)
        return keep + link + e.jalr(e.X0, dead, parsed.imm)
    # jalr clears bit 0 itself; that sepc has none is the specification's word, but not QEMU's.
    code = _save() + e.addi(e.T0, rs1, parsed.imm) + e.andi(e.T0, e.T0, -2) + _return_state()
    if rd in _SAVED:
        at = to + len(code)
        code += e.load_address(e.T0, at, after) + e.c_sdsp(e.T0, 8 * _SAVED.index(rd))
    else:
        code += e.load_address(rd, to + len(code), after)
    return code + _restore()


def leave(at: int, target: int, what: str = "the way back") -> bytes:
    """Return code at `at` that goes to target and changes no register. Raises OutOfReach."""
    head = _save()
    return head + e.load_address(e.T0, at + len(head), target, what) + _return_state() + _restore()


def _save() -> bytes:
    code = e.addi(e.SP, e.SP, -_ROOM)
    return code + b"".join(e.c_sdsp(r, 8 * i) for i, r in enumerate(_SAVED))


def _return_state() -> bytes:
    """Return what return_to does with t0, for interrupts as they are now. They are off from here
    on."""
    return (
        e.csr_read_clear_bits(e.T1, e.SSTATUS, e.SIE)
        + e.csr_write(e.SEPC, e.T0)
        + _set_status(e.T0, e.T1)
    )


def _restore() -> bytes:
    code = b"".join(e.c_ldsp(r, 8 * i) for i, r in enumerate(_SAVED))
    return code + e.addi(e.SP, e.SP, _ROOM) + e.SRET
