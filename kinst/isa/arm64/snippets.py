"""Snippets on arm64 (core/bodies.py): the registers that LLVM may use in a snippet, and analysis of
which registers a snippet reads and writes.

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

import re
from functools import cache

from kinst.core.bodies import Snippet, SnippetRegisters
from kinst.isa.arm64.decode import decode

RESULT = 16
# All but x18 (the shadow call stack's), the frame pointer and the link register.
_READABLE = (*range(18), *range(19, 29))

REGISTERS = SnippetRegisters({n: f"x{n}" for n in _READABLE}, f"x{RESULT}")

# Mnemonics of LLVM's code for arithmetic, choices and loads: those that set no flags, and those
# that set flags.
_QUIET = (
    "add sub and orr eor orn eon bic mul mneg madd msub neg mvn lsl lsr asr ror extr mov movz movn"
    " movk ubfx sbfx ubfiz sbfiz bfi bfxil bfc sxtb sxth sxtw uxtb uxth uxtw cset csetm csel csinc"
    " csinv csneg cinc cinv cneg clz rbit rev rev16 rev32 ldr ldrb ldrh ldrsb ldrsh ldrsw ldur"
    " ldurb ldurh ldursb ldursh ldursw ldp mrs nop"
)
_SETTING = "cmp cmn tst ccmp ccmn adds subs ands bics negs"
_KNOWN = {**dict.fromkeys(_QUIET.split(), False), **dict.fromkeys(_SETTING.split(), True)}
_GENERAL = re.compile(r"\b[xw](\d+)\b")
_FORBIDDEN = re.compile(r"\bw?sp\b|!|\]\s*,")  # the stack; bases that are written back


@cache
def snippet(code: bytes, zero: bool = False) -> Snippet | None:
    touched, flags, size = {RESULT}, False, 0
    for instruction in decode(code, 0):
        mnemonic, _, operands = instruction.text.partition(" ")
        if mnemonic not in _KNOWN or _FORBIDDEN.search(operands):
            return None
        flags |= _KNOWN[mnemonic]
        touched.update(int(number) for number in _GENERAL.findall(operands))
        size += len(instruction.code)
    if size != len(code) or not touched.issubset(REGISTERS.names):
        return None
    return Snippet(code, frozenset(touched), frozenset(touched), flags, zero)
