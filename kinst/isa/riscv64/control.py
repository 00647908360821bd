"""Control flow of single riscv64 instructions: where control goes from an instruction, and on which
condition.

Source: RISC-V unprivileged specification, "Control Transfer Instructions", and privileged
specification, "Trap-Return Instructions".

Tested by tests/isa/test_control.py and tests/isa/test_control_flow.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinst.core.instruction import Flow, Instruction
from kinst.core.words import MASK
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.encode import RA, X0
from kinst.isa.riscv64.registers import NAMES

NEXT = Flow("next")
RETURN = Flow("return", falls_through=False)
CALL = Flow("call")
INDIRECT = Flow("indirect", falls_through=False)
# The kernel steps over an ebreak if it means a warning (WARN).
WARN = Flow("trap")
TRAP = Flow("trap", falls_through=False)
# An unknown encoding may go on to the next instruction, or anywhere else.
ANYWHERE = Flow("indirect", falls_through=True)

_TRAP_RETURNS = frozenset((0x10200073, 0x30200073, 0x70200073, 0x7B200073))  # s, m, mn, d
_UNIMP = 0xC000_1073  # what assemblers write for `unimp`: a write to a read-only register

# By the upper two bits of funct3: (comparison, its opposite, cast).
_COMPARISONS = {0: ("==", "!=", ""), 2: ("<", ">=", "(int64_t)"), 3: ("<", ">=", "(uint64_t)")}


def register(number: int) -> str:
    """Return the D expression for the value of a register, given the register's number."""
    return f"regs[R_{NAMES[number].upper()}]" if number else "0"


def flow(code: bytes, address: int) -> Flow:
    """Return where control goes from the one instruction `code` at `address`."""
    parsed = p.parse(code)
    if parsed is None or parsed.kind == p.UNKNOWN:
        return ANYWHERE
    if parsed.kind == p.UNIMP:
        return TRAP
    if parsed.kind == p.JAL:
        return Flow("call" if parsed.rd else "jump", bool(parsed.rd), address + parsed.imm & MASK)
    if parsed.kind == p.JALR:
        return _indirect(parsed)
    if parsed.kind == p.BRANCH:
        return _conditional(parsed, address + parsed.imm & MASK)
    if parsed.kind == p.EBREAK:
        return WARN
    if parsed.word in _TRAP_RETURNS:
        return INDIRECT
    return TRAP if parsed.word == _UNIMP else NEXT


def pair_flow(first: Instruction, second: Instruction) -> Flow | None:
    """Return the flow of an auipc and the jalr directly after it that jumps by the auipc's
    register: a call of or a jump to a known address (the psABI's `call` and `tail`). Return None if
    the two instructions are not such a pair."""
    high, jump = p.parse(first.code), p.parse(second.code)
    if high is None or jump is None or high.kind != p.AUIPC or jump.kind != p.JALR:
        return None
    if high.rd != jump.rs1 or first.end != second.address:
        return None
    target = first.address + high.imm + jump.imm & MASK
    return Flow("call" if jump.rd else "jump", bool(jump.rd), target)


def _conditional(parsed: p.Riscv64Instruction, target: int) -> Flow:
    holds, not_, cast = _COMPARISONS[parsed.funct3 >> 1]
    if parsed.funct3 & 1:
        holds, not_ = not_, holds
    left, right = (f"{cast}{register(n)}" for n in (parsed.rs1, parsed.rs2))
    return Flow("branch", True, target, f"{left} {holds} {right}", f"{left} {not_} {right}")


def _indirect(parsed: p.Riscv64Instruction) -> Flow:
    if parsed.rd != X0:
        return CALL
    if parsed.rs1 == RA and not parsed.imm:
        return RETURN
    base = register(parsed.rs1)
    if not parsed.imm:
        return Flow("indirect", False, destination=base)
    sign, distance = ("-", -parsed.imm) if parsed.imm < 0 else ("+", parsed.imm)
    return Flow("indirect", False, destination=f"({base} {sign} {distance}) & ~1")


_JAL_RA, _AUIPC, _JALR_RA = 0x0EF, 0x17, 0x0E7  # opcode, and ra as what jal and jalr write
_LOWER = 0xFFF


def returns_of(code: bytes, address: int, target: int) -> list[int]:
    """Return the return addresses of direct calls of `target` in code, ascending. Such a call is a
    jal, or an auipc and a jalr through one register. Some results may be wrong: bytes inside other
    instructions can look like a call.

    Args:
        address: address of the code.
    """
    halves = np.frombuffer(code, "<u2", len(code) // 2).astype(np.int64)
    if len(halves) < 2:
        return []
    words = halves[:-1] | halves[1:] << 16
    distance = target - address
    near = np.nonzero((words & _LOWER) == _JAL_RA)[0]
    near = near[2 * near + _jal_moves(words[near]) == distance]
    first, second = words[:-2], words[2:]
    through = first >> 7 & 0x1F
    pairs = ((first & 0x7F) == _AUIPC) & ((second & _LOWER) == _JALR_RA)
    pairs &= ((second >> 12 & 7) == 0) & ((second >> 15 & 0x1F) == through)
    far = np.nonzero(pairs)[0]
    moves = _signed(first[far] & ~_LOWER, 32) + _signed(second[far] >> 20, 12)
    far = far[2 * far + moves == distance]
    offsets = [2 * int(offset) + 4 for offset in near] + [2 * int(offset) + 8 for offset in far]
    return sorted(address + offset for offset in offsets)


def _jal_moves(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the displacement in each jal, given its encoding: imm[20|10:1|11|19:12] from bit 12
    on."""
    high, middle = words >> 31 & 1, words >> 12 & 0xFF
    return _signed(
        high << 20 | middle << 12 | (words >> 20 & 1) << 11 | (words >> 21 & 0x3FF) << 1, 21
    )


def _signed(values: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    return (values ^ 1 << bits - 1) - (1 << bits - 1)
