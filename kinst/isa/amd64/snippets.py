"""Snippets on amd64 (core/bodies.py): the registers that LLVM may use in a snippet, and analysis of
which registers a snippet reads and writes.

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from iced_x86 import (
    FlowControl,
    InstructionInfoFactory,
    OpAccess,
    Register,
    RegisterExt,
    RflagsBits,
)

from kinst.core.bodies import Snippet, SnippetRegisters
from kinst.isa import _x86
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64 import registers as r

# The register that jrcxz tests, the only branch that reads no flag.
RESULT = e.RCX

_NAMES = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi")
NAMES = (*_NAMES, *(f"r{n}" for n in range(8, 16)))

REGISTERS = SnippetRegisters(
    {slot: NAMES[number] for slot, number in r.GENERAL.items()}
    | {r.SLOT[name]: name for name in ("rsi", "rdi", "r11")},
    NAMES[RESULT],
)

_CHANGES = frozenset((OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE,
                      OpAccess.READ_COND_WRITE))  # fmt: skip
_READS = frozenset((OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE,
                    OpAccess.READ_COND_WRITE))  # fmt: skip
# A register that is written only sometimes, or only in part, is also read.
_PARTLY = frozenset((OpAccess.COND_WRITE, OpAccess.READ_COND_WRITE))
_GENERAL = tuple(getattr(Register, name.upper()) for name in NAMES)


@cache
def snippet(code: bytes, zero: bool = False) -> Snippet | None:
    reads, writes = set[int](), {RESULT}
    flags, at, replaced = False, 0, set[int]()
    factory = InstructionInfoFactory()
    for instruction in _x86.listed(code, 0):
        info = factory.info(instruction)
        if instruction.flow_control != FlowControl.NEXT:
            return None
        if any(memory.access in _CHANGES for memory in info.used_memory()):
            return None
        flags |= instruction.rflags_modified != RflagsBits.NONE
        for used in info.used_registers():
            if used.access not in _CHANGES | _READS:
                continue
            whole = RegisterExt.full_register(used.register)
            if whole in (Register.GS, Register.RIP):
                continue
            # The stack pointer, or a register that snippets do not use.
            if whole not in _GENERAL or whole == Register.RSP:
                return None
            number = _GENERAL.index(whole)
            partly = used.access in _PARTLY or _keeps_part(used.register)
            if used.access in _READS or (partly and number not in replaced):
                reads.add(number)
            if used.access in _CHANGES:
                writes.add(number)
                replaced |= set() if partly else {number}
        at += instruction.len
    if at != len(code):
        return None
    return Snippet(code, frozenset(reads), frozenset(writes), flags, zero)


def _keeps_part(register: Any) -> bool:
    """Return whether a write to this register leaves the other bits of the whole register as they
    were."""
    return RegisterExt.size(register) < 4
