"""Control flow of single AArch64 instructions: where control goes from an instruction, and on which
condition.

Source: Arm Architecture Reference Manual (DDI 0487), C1.2.4 "Condition code" and C6.

Tested by tests/isa/test_control.py and tests/isa/test_control_flow.py.
"""

from __future__ import annotations

import numpy as np

from kinst.core.instruction import Flow
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64.encode import SIZE, ZR

_STATE = "regs[R_PSTATE]"
_SIGNS = f"(({_STATE} >> 31 ^ {_STATE} >> 28) & 0x1)"  # N != V


def _bit(number: int) -> tuple[str, str]:
    text = f"({_STATE} & {1 << number:#x})"
    return f"{text} != 0", f"{text} == 0"


_Z, _C, _N, _V = _bit(30), _bit(29), _bit(31), _bit(28)
# D expressions (the condition holds, it does not hold) by the upper three bits of the condition;
# the lowest bit swaps the two.
_CONDITIONS = (
    _Z,  # eq
    _C,  # cs
    _N,  # mi
    _V,  # vs
    (f"{_C[0]} && {_Z[1]}", f"{_C[1]} || {_Z[0]}"),  # hi
    (f"{_SIGNS} == 0", f"{_SIGNS} != 0"),  # ge
    (f"{_SIGNS} == 0 && {_Z[1]}", f"{_SIGNS} != 0 || {_Z[0]}"),  # gt
)
_ALWAYS = 14  # conditions 14 and 15

NEXT = Flow("next")
LANDING = Flow("landing")
RETURN = Flow("return", falls_through=False)
CALL = Flow("call")
INDIRECT = Flow("indirect", falls_through=False)
# The kernel steps over its brk if it means a warning (WARN).
WARN = Flow("trap")
TRAP = Flow("trap", falls_through=False)

_FIXED = (
    (0xFFFFFFFF, 0xD4210000, WARN),  # brk #0x800
    (0xFFE0001F, 0xD4200000, TRAP),
    (0xFFFF0000, 0x00000000, TRAP),  # udf
    (0xFFFFF3E0, 0xD69F03E0, INDIRECT),  # eret, eretaa, eretab
    (0xFFFFFFFF, 0xD6BF03E0, INDIRECT),  # drps
    (0xFFFFFF7F, 0xD503245F, LANDING),  # bti c, bti jc
    (0xFFFFFFFF, 0xD503249F, LANDING),  # bti j
)
_BY_KIND = {
    p.BR: INDIRECT, p.BLR: CALL, p.RET: RETURN, p.RET_NEAR: RETURN,
    # An unknown instruction may go on to the next one, or anywhere else.
    p.UNKNOWN: Flow("indirect", falls_through=True),
}  # fmt: skip


def flow(code: bytes, address: int) -> Flow:
    """Return where control goes from the one instruction `code` at `address`."""
    parsed = p.parse(code, address)
    kind = parsed.kind
    if kind in (p.B, p.BL):
        return Flow("call" if kind == p.BL else "jump", kind == p.BL, parsed.target)
    if kind == p.B_COND:
        if parsed.register >= _ALWAYS:
            return Flow("jump", False, parsed.target)
        holds, not_ = _CONDITIONS[parsed.register >> 1]
        return _branch(parsed, holds, not_, bool(parsed.register & 1))
    if kind == p.CB:
        value = _register(parsed.register)
        value = value if parsed.word >> 31 else f"({value} & 0xffffffff)"
        return _branch(parsed, f"{value} == 0", f"{value} != 0", bool(parsed.word & 1 << 24))
    if kind == p.TB:
        bit = parsed.word >> 31 << 5 | parsed.word >> 19 & 0x1F
        value = f"({_register(parsed.register)} >> {bit} & 0x1)"
        return _branch(parsed, f"{value} == 0", f"{value} != 0", bool(parsed.word & 1 << 24))
    if kind == p.BR and not parsed.authenticated:
        return Flow("indirect", False, destination=_register(parsed.register))
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    return next((f for mask, value, f in _FIXED if parsed.word & mask == value), NEXT)


_BL, _BL_BITS = 0x25, 26  # opcode of BL above its displacement in words (C6.2, BL)


def returns_of(code: bytes, address: int, target: int) -> list[int]:
    """Return the return addresses of direct calls (BL) of `target` in code, ascending.

    Args:
        address: of the code.
    """
    words = np.frombuffer(code, "<u4", len(code) // SIZE)
    (rows,) = np.nonzero(words >> _BL_BITS == _BL)
    shift = 32 - _BL_BITS
    moves = (words[rows] << shift).view(np.int32).astype(np.int64) >> shift
    calls = rows[(rows + moves) * SIZE == target - address]
    return [address + SIZE * int(row) + SIZE for row in calls]


def _branch(parsed: p.Arm64Instruction, holds: str, not_: str, swapped: bool) -> Flow:
    if swapped:
        holds, not_ = not_, holds
    return Flow("branch", True, parsed.target, holds, not_)


def _register(number: int) -> str:
    return "0" if number == ZR else f"regs[R_X{number}]"
