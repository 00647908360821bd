"""One instruction made to run elsewhere, with the same effect.

What depends on its own address is rewritten:
- auipc loads the value it would have had;
- a branch keeps its condition, and each side goes its own way;
- a call loads the original return address into its link register first; where that is also the
  register that it jumps by, the target is kept before.
refuse.py says what is not displaced at all.

**The way back.**  No jump reaches the kernel from a trampoline without a register: jal has 1 MB.
A register that is dead at the site would be one, but which is dead is a guess where code faults
on purpose, and the next probe's clause would see kinst's value in it.  So control goes back as
from a trap: sepc = the place to go to, sstatus.SPP = supervisor, sstatus.SPIE = sstatus.SIE,
sret.  No register changes, SIE becomes what it was, and what is lost (sepc, SPP, SPIE) is what the
trap that came here has overwritten anyway.  Interrupts are off from the reading of sstatus to
sret, so that no other trap comes between; two registers are saved below the stack pointer, where
the ABI has nothing (RISC-V psABI, "Integer Calling Convention").  The paper's second breakpoint
would do the same by the kernel's trap handler, at thirty times the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.isa import Refused, Relocated
from kinst.isa.riscv64 import encode as e
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.refuse import refusal

_SAVED = (e.T0, e.T1)
_ROOM = 16
_KEEP = ~(e.SIE | e.SPIE)
_TARGET = "the branch's target"


@dataclass(frozen=True, slots=True)
class Moved:
    """One displaced instruction without its way back.

    falls_through: control can run off its end, and must then go to the original successor.
    branches: control can also leave it elsewhere.
    """

    code: bytes
    falls_through: bool
    branches: bool
    original_at: int


def displace(code: bytes, address: int, to: int) -> Relocated | Refused:
    """Code at `to` with the effect of the one instruction `code` at `address`."""
    moved = move(code, address, to)
    if isinstance(moved, Refused):
        return moved
    if not moved.falls_through:
        return Relocated(moved.code, moved.original_at)
    try:
        back = leave(to + len(moved.code), address + len(code))
    except e.OutOfReach as far:
        return Refused(far.what)
    return Relocated(moved.code + back, moved.original_at)


def move(code: bytes, address: int, to: int) -> Moved | Refused:
    """As displace(), without the way back."""
    parsed = p.parse(code)
    if parsed is None:
        return Refused("its bytes are not one known instruction")
    reason = refusal(parsed)
    if reason:
        return Refused(reason)
    try:
        return _move(code, parsed, address, to)
    except e.OutOfReach as far:
        return Refused(far.what)


def _move(code: bytes, parsed: p.Parsed, address: int, to: int) -> Moved:
    after = address + parsed.size
    if parsed.kind == p.AUIPC:
        # With x0 it is a hint: a landing pad, where processors look for them.
        value = load(parsed.rd, to, address + parsed.imm) if parsed.rd else b"\x01\0"
        return Moved(value, True, False, -1)
    if parsed.kind == p.JAL:
        link = e.load_address(parsed.rd, to, after) if parsed.rd else b""
        return Moved(link + leave(to + len(link), address + parsed.imm, _TARGET), False, True, -1)
    if parsed.kind == p.JALR:
        return Moved(_move_indirect(parsed, after, to), False, True, -1)
    if parsed.kind == p.BRANCH:
        # The branch hops over the way to where it falls through to.
        stay = leave(to + 4, after)
        hop = e.branch(parsed.funct3, parsed.rs1, parsed.rs2, 4 + len(stay))
        there = to + len(hop) + len(stay)
        return Moved(hop + stay + leave(there, address + parsed.imm, _TARGET), False, True, -1)
    return Moved(code, True, False, 0)


def load(rd: int, at: int, value: int) -> bytes:
    """rd = value, which is an address: by a distance where that reaches."""
    try:
        return e.load_address(rd, at, value)
    except e.OutOfReach:
        return e.load_value(rd, value)


def _move_indirect(parsed: p.Parsed, after: int, to: int) -> bytes:
    rd, rs1 = parsed.rd, parsed.rs1
    jump = e.jalr(e.X0, rs1, parsed.imm)
    if not rd:
        return jump
    if rd != rs1:
        return e.load_address(rd, to, after) + jump
    # The register that it jumps by becomes the return address.  jalr clears bit 0 itself; that
    # sepc has none is the specification's word, but not QEMU's.
    code = _save() + e.addi(e.T0, rs1, parsed.imm) + e.andi(e.T0, e.T0, -2) + _return_state()
    if rd in _SAVED:
        at = to + len(code)
        code += e.load_address(e.T0, at, after) + e.c_sdsp(e.T0, 8 * _SAVED.index(rd))
    else:
        code += e.load_address(rd, to + len(code), after)
    return code + _restore()


def leave(at: int, target: int, what: str = "the way back") -> bytes:
    """Code at `at` that goes to target and changes no register.  Raises OutOfReach."""
    head = _save()
    return head + e.load_address(e.T0, at + len(head), target, what) + _return_state() + _restore()


def _save() -> bytes:
    code = e.addi(e.SP, e.SP, -_ROOM)
    return code + b"".join(e.c_sdsp(r, 8 * i) for i, r in enumerate(_SAVED))


def _return_state() -> bytes:
    """sepc = t0, and sstatus so that sret goes there with interrupts as they are now.  Spoils
    t0 and t1; interrupts are off from here on."""
    return (
        e.csr_read_clear_bits(e.T1, e.SSTATUS, e.SIE)
        + e.csr_write(e.SEPC, e.T0)
        + e.andi(e.T0, e.T1, e.SIE)
        + e.slli(e.T0, e.T0, e.SPIE.bit_length() - e.SIE.bit_length())
        + e.andi(e.T1, e.T1, _KEEP)
        + e.ori(e.T1, e.T1, e.SPP)
        + e.or_(e.T1, e.T1, e.T0)
        + e.csr_write(e.SSTATUS, e.T1)
    )


def _restore() -> bytes:
    code = b"".join(e.c_ldsp(r, 8 * i) for i, r in enumerate(_SAVED))
    return code + e.addi(e.SP, e.SP, _ROOM) + e.SRET
