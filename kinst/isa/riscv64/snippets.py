"""Snippets on riscv64 (core/bodies.py): the registers that LLVM may use in a snippet, and analysis
of which registers a snippet reads and writes.

Source: RISC-V unprivileged specification, "RV32/64G Instruction Set Listings".

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

from functools import cache

from kinst.core.bodies import Snippet, SnippetRegisters
from kinst.isa.riscv64 import encode as e
from kinst.isa.riscv64.registers import NAMES

RESULT = e.T0
# All but x0, ra, sp, gp and tp.
_READABLE = range(5, 32)

# Without compressed instructions (-c), every instruction names its registers in the same bits.
REGISTERS = SnippetRegisters(
    {n: f"x{n}" for n in _READABLE}, f"x{RESULT}", "-c,-zca", selects=False
)

_SIZE = 4
_LOAD, _IMMEDIATE, _IMMEDIATE_32, _REGISTER, _REGISTER_32, _LUI = 0x03, 0x13, 0x1B, 0x33, 0x3B, 0x37
_ONE_SOURCE = (_LOAD, _IMMEDIATE, _IMMEDIATE_32)
_TWO_SOURCES = (_REGISTER, _REGISTER_32)
_FIXED = frozenset((0, NAMES.index("tp")))  # read and never changed


@cache
def snippet(code: bytes, zero: bool = False) -> Snippet | None:
    reads, writes = set[int](), {RESULT}
    if len(code) % _SIZE:
        return None
    for at in range(0, len(code), _SIZE):
        word = int.from_bytes(code[at : at + _SIZE], "little")
        opcode, target = word & 0x7F, word >> 7 & 31
        sources = [word >> 15 & 31, word >> 20 & 31]
        if opcode == _LUI:
            sources = []
        elif opcode in _ONE_SOURCE:
            sources = sources[:1]
        elif opcode not in _TWO_SOURCES:
            return None
        reads.update(sources)
        writes.add(target)
    if not (reads - _FIXED | writes).issubset(_READABLE):
        return None
    return Snippet(code, frozenset(reads - _FIXED), frozenset(writes), False, zero)
