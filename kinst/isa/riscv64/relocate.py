"""Displacement of one riscv64 instruction: code with the instruction's effect at another address.

An instruction that depends on its own address is rewritten:

- auipc becomes a load of the value that the original would have made;
- a branch keeps its condition, and each of its two successors is reached by code of its own;
- a call first loads the original return address into its link register. If the call also jumps by
  this register, the target is saved before that: in a dead register for a jalr, or in sepc for an
  sret.

refuse.py decides which instructions are not displaced.

**The way back.** A jump from a trampoline to the kernel needs a register, because jal reaches only
1 MB. If a register is known to be dead at the target, and no clause reads it, the way back is auipc
and jalr (Onward.dead; liveness.py). Otherwise control returns as from a trap: sepc = the address to
go to, sstatus.SPP = supervisor, sstatus.SPIE = sstatus.SIE, sret. No register changes, and SIE
becomes what it was. The old values of sepc, SPP and SPIE are lost. If a trap led to the trampoline,
it has overwritten them already. If a jump led there, the traced function does not need them either:
refuse.py makes sure that a trap may interrupt the function at any time.

Interrupts are off from the reading of sstatus to sret, so that no other trap comes between. Two
registers are saved below the stack pointer, where the ABI has nothing (RISC-V psABI, "Integer
Calling Convention"). A second breakpoint, as in the paper on FreeBSD's kinst, would do the same by
the kernel's trap handler, at thirty times the cost.

**The short way back.** Every instruction that accesses a control and status register is slow, most
of all on emulators. After a probe's work interrupts are off anyway. They stay off during the
displaced instruction if it cannot fault and does not see sstatus. Then sepc and sstatus are set
before this instruction, while registers are still free, and only sret comes after it (return_to(),
quietly()).

**No way back.** If the next instruction is planted as well, control goes on in that instruction's
trampoline (patch/chains.py). This trampoline lies directly after, or a jal reaches it. Such a step
leaves sepc and sstatus alone.
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
_TARGET, _SUCCESSOR = "the branch's target", "where it goes on"
_ARITHMETIC = (0x13, 0x1B, 0x33, 0x37, 0x3B)  # opcodes: OP-IMM, OP-IMM-32, OP, LUI, OP-32
_INTEGER_MEMORY = (0x03, 0x23)  # LOAD, STORE
_MOP_MASK, _MOP = 0xF8FF, 0x6081  # c.mop


def displace(code: bytes, address: int, to: int, onward: Onward = UNCHAINED) -> Relocated | Refused:
    """Return the displaced code of the one instruction `code` at `address`, made for the address
    `to`; or the refusal. After this code, control goes where the original instruction sends it.

    Args:
        onward: has the trampolines of planted instructions, and the registers that are dead at
            instructions. Control goes on in the trampolines instead of in the original code.
    """
    after = address + len(code)

    def back(at: int) -> bytes:
        return b"" if onward.falls_into == after else _go_on(at, after, onward)

    return with_way_back(move(code, address, to, onward), to, back)


def is_linked(code: bytes, address: int, onward: Onward) -> bool:
    """Return whether control can leave a displaced instruction without an sret, on at least one
    path. It can if the next instruction on that path has a trampoline, or if a register is dead
    there, which a jump can use.

    Args:
        code: the original instruction.
        address: address of the original instruction.
        onward: trampolines of planted instructions, and registers that are dead at instructions.
    """
    parsed = p.parse(code)
    if parsed is None:
        return False
    successors = [address + parsed.size]
    if parsed.kind in (p.JAL, p.BRANCH):
        successors.append(address + parsed.imm)
    return onward.falls_into >= 0 or any(
        successor in onward.links or onward.dead.get(successor) for successor in successors
    )


def _go_on(at: int, original: int, onward: Onward, what: str = "the way back") -> bytes:
    """Return code for the address `at` that leads to an instruction: to its trampoline if it has
    one, otherwise to its original address.

    If the instruction has a trampoline, the bytes at its original address may be inside a jump that
    leads elsewhere.

    Args:
        original: original address of the instruction.
        onward: trampolines of planted instructions, and registers that are dead at instructions.
        what: the code's purpose, for the message of OutOfReach.
    """
    there = onward.links.get(original, original)
    if there != original and e.fits(there - at, 21):
        return e.jal(e.X0, there - at)
    register = choose(onward.dead.get(original, 0))
    return e.jump(at, there, register, what) if register else leave(at, there, what)


@refuses_out_of_reach
def move(code: bytes, address: int, to: int, onward: Onward = UNCHAINED) -> Moved | Refused:
    """Return the displaced code of the one instruction `code` at `address`, made for the address
    `to`; or the refusal. The code has no way back to the next instruction.

    Args:
        onward: has the trampolines of planted instructions, and the registers that are dead at
            instructions. Branches lead to the trampolines instead of to the original code.
    """
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
        # The branch hops over the code that leads to the next instruction.
        stay = _go_on(to + 4, after, onward)
        hop = e.branch(parsed.funct3, parsed.rs1, parsed.rs2, 4 + len(stay))
        there = to + len(hop) + len(stay)
        return Moved(hop + stay + _go_on(there, target, onward, _TARGET), False)
    return Moved(code, True, 0)


def quiet_sepc(code: bytes, address: int) -> int | None:
    """Return the address that sepc must have before an instruction, if the instruction can take the
    short way back (see the module's docstring); otherwise None.

    Arithmetic instructions, direct jumps and branches can take the short way back. So can loads and
    stores relative to the stack pointer: they cannot fault, since the trampoline uses the stack
    itself.

    The address is the target of a jal. For other instructions, branches included, it is the address
    of the next instruction.
    """
    parsed = p.parse(code)
    if parsed is None or refusal(parsed):
        return None
    if parsed.kind == p.JAL:
        return address + parsed.imm
    quiet = parsed.kind in (p.AUIPC, p.BRANCH) or (parsed.kind == p.COPY and _plain(parsed))
    return address + parsed.size if quiet else None


def _plain(parsed: p.Riscv64Instruction) -> bool:
    """Return whether an instruction is arithmetic, or a load or store at the stack pointer or
    above."""
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
    """Return the end of a trampoline, to lie at the address `to`: code with the effect of an
    instruction, and an sret to the text.

    Interrupts are off there, and the code of return_to() has run before: it has prepared the sret.

    Args:
        code: the original instruction, one of those for which quiet_sepc() allows that.
        address: address of the original instruction.
    """
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


def return_to(at: int, target: int) -> bytes:
    """Return code for the address `at` that prepares a later sret to `target`: it sets sepc and
    sstatus.

    Interrupts must be off. t0 must hold the value that sstatus is to have after the sret. The code
    changes t0 and t1.
    """
    code = _set_status(e.T1, e.T0)
    return (
        code + e.load_address(e.T0, at + len(code), target, _SUCCESSOR) + e.csr_write(e.SEPC, e.T0)
    )


def _go_to(at: int, target: int) -> bytes:
    """Return code for the address `at` that goes to `target` by sret, after return_to() has
    prepared an sret to another address. The code changes no register."""
    code = e.addi(e.SP, e.SP, -_ROOM) + e.c_sdsp(e.T0, 0)
    code += e.load_address(e.T0, at + len(code), target, _TARGET) + e.csr_write(e.SEPC, e.T0)
    return code + e.c_ldsp(e.T0, 0) + e.addi(e.SP, e.SP, _ROOM) + e.SRET


def _set_status(temporary: int, status: int) -> bytes:
    """Return code that prepares sstatus for a later sret. Interrupts stay off until the sret, which
    goes to supervisor mode and turns interrupts on or off as the value in `status` says. Other bits
    of sstatus become those of the value.

    Args:
        temporary: register that the code may change.
        status: register that holds the value; the code changes it.
    """
    return (
        e.andi(temporary, status, e.SIE)
        + e.slli(temporary, temporary, e.SPIE.bit_length() - e.SIE.bit_length())
        + e.andi(status, status, _KEEP)
        + e.ori(status, status, e.SPP)
        + e.or_(status, status, temporary)
        + e.csr_write(e.SSTATUS, status)
    )


def load(rd: int, at: int, value: int) -> bytes:
    """Return code at the address `at` that sets the register rd to `value`. If `value` is near
    enough, the code adds a distance to its own address; otherwise it builds `value` as a constant.
    """
    try:
        return e.load_address(rd, at, value)
    except OutOfReach:
        return e.load_value(rd, value)


def _move_indirect(parsed: p.Riscv64Instruction, after: int, to: int, dead: int) -> bytes:
    """Return the displaced code of a jalr.

    Args:
        after: address after the original jalr.
        to: address of the displaced code.
        dead: number of a register that the code may change because it is dead; 0 if none is known.
    """
    rd, rs1 = parsed.rd, parsed.rs1
    jump = e.jalr(e.X0, rs1, parsed.imm)
    if not rd:
        return jump
    if rd != rs1:
        return e.load_address(rd, to, after) + jump
    # The register that the jalr jumps by is also the link register.
    if dead:
        keep = e.move(dead, rs1)
        link = e.load_address(rd, to + len(keep), after)
        return keep + link + e.jalr(e.X0, dead, parsed.imm)
    # jalr clears bit 0 itself. In sepc bit 0 is always 0 by the specification, but not in QEMU.
    code = _save() + e.addi(e.T0, rs1, parsed.imm) + e.andi(e.T0, e.T0, -2) + _return_state()
    if rd in _SAVED:
        at = to + len(code)
        code += e.load_address(e.T0, at, after) + e.c_sdsp(e.T0, 8 * _SAVED.index(rd))
    else:
        code += e.load_address(rd, to + len(code), after)
    return code + _restore()


def leave(at: int, target: int, what: str = "the way back") -> bytes:
    """Return code for the address `at` that goes to `target` by sret and changes no register.
    Raises OutOfReach beyond 2 GB, naming `what`."""
    head = _save()
    return head + e.load_address(e.T0, at + len(head), target, what) + _return_state() + _restore()


def _save() -> bytes:
    code = e.addi(e.SP, e.SP, -_ROOM)
    return code + b"".join(e.c_sdsp(r, 8 * i) for i, r in enumerate(_SAVED))


def _return_state() -> bytes:
    """Return code that turns interrupts off, and prepares a later sret to the address in t0, with
    interrupts as they were. The code changes t0 and t1."""
    return (
        e.csr_read_clear_bits(e.T1, e.SSTATUS, e.SIE)
        + e.csr_write(e.SEPC, e.T0)
        + _set_status(e.T0, e.T1)
    )


def _restore() -> bytes:
    code = b"".join(e.c_ldsp(r, 8 * i) for i, r in enumerate(_SAVED))
    return code + e.addi(e.SP, e.SP, _ROOM) + e.SRET
