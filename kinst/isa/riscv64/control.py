"""Where control goes from one riscv64 instruction.  Source: RISC-V unprivileged specification,
"Control Transfer Instructions", and privileged specification, "Trap-Return Instructions"."""

from __future__ import annotations

from kinst.core.isa import Flow
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.encode import RA, X0
from kinst.isa.riscv64.registers import NAMES

NEXT = Flow("next")
RETURN = Flow("return", falls_through=False)
CALL = Flow("call")
INDIRECT = Flow("indirect", falls_through=False)
# The kernel steps over an ebreak where it means a warning (WARN).
WARN = Flow("trap")
TRAP = Flow("trap", falls_through=False)

_TRAP_RETURNS = frozenset((0x10200073, 0x30200073, 0x70200073, 0x7B200073))  # s, m, mn, d
_UNIMP = 0xC000_1073  # what assemblers write for `unimp`: a write to a read-only register

# By the upper two bits of funct3: (comparison, its opposite, cast).
_COMPARISONS = {0: ("==", "!=", ""), 2: ("<", ">=", "(int64_t)"), 3: ("<", ">=", "(uint64_t)")}


def register(number: int) -> str:
    """A register's value as a D expression."""
    return f"regs[R_{NAMES[number].upper()}]" if number else "0"


def flow(code: bytes, address: int) -> Flow:
    """Where control goes from the one instruction `code` at `address`."""
    parsed = p.parse(code)
    if parsed is None:
        return NEXT
    if parsed.kind == p.JAL:
        return Flow("call" if parsed.rd else "jump", bool(parsed.rd), address + parsed.imm)
    if parsed.kind == p.JALR:
        return _indirect(parsed)
    if parsed.kind == p.BRANCH:
        return _conditional(parsed, address + parsed.imm)
    if parsed.kind == p.EBREAK:
        return WARN
    if parsed.word in _TRAP_RETURNS:
        return INDIRECT
    return TRAP if parsed.word == _UNIMP else NEXT


def _conditional(parsed: p.Parsed, target: int) -> Flow:
    holds, not_, cast = _COMPARISONS[parsed.funct3 >> 1]
    if parsed.funct3 & 1:
        holds, not_ = not_, holds
    left, right = (f"{cast}{register(n)}" for n in (parsed.rs1, parsed.rs2))
    return Flow("branch", True, target, f"{left} {holds} {right}", f"{left} {not_} {right}")


def _indirect(parsed: p.Parsed) -> Flow:
    if parsed.rd != X0:
        return CALL
    if parsed.rs1 == RA and not parsed.imm:
        return RETURN
    base = register(parsed.rs1)
    if not parsed.imm:
        return Flow("indirect", False, destination=base)
    sign, distance = ("-", -parsed.imm) if parsed.imm < 0 else ("+", parsed.imm)
    return Flow("indirect", False, destination=f"({base} {sign} {distance}) & ~1")
