"""Snippets (core/bodies.py): what LLVM is told of their registers, and what they touch.

Tested by tests/codegen/test_snippets.py.
"""

from __future__ import annotations

from functools import cache

from capstone import CS_AC_WRITE, CS_ARCH_X86, CS_GRP_CALL, CS_GRP_JUMP, CS_GRP_RET, CS_MODE_64, Cs
from capstone.x86 import X86_OP_MEM

from kinst.core.bodies import Snippet, SnippetRegisters
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64 import registers as r

# What jrcxz tests, the one branch that asks no flag.
RESULT = e.RCX

_NAMES = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi")
NAMES = (*_NAMES, *(f"r{n}" for n in range(8, 16)))

REGISTERS = SnippetRegisters(
    {slot: NAMES[number] for slot, number in r.GENERAL.items()}
    | {r.SLOT[name]: name for name in ("rsi", "rdi", "r11")},
    NAMES[RESULT],
)

_LEAVING = frozenset((CS_GRP_JUMP, CS_GRP_CALL, CS_GRP_RET))
_FLAGS = "rflags"
_NOT_GENERAL = frozenset(("gs", _FLAGS))


def _parts(number: int, name: str) -> tuple[str, ...]:
    """A register's name and those of its parts."""
    if number >= 8:
        return name, f"{name}d", f"{name}w", f"{name}b"
    bare = name[1:]
    low = f"{bare[0]}l" if bare[1] == "x" else f"{bare}l"
    high = (f"{bare[0]}h",) if bare[1] == "x" else ()
    return name, f"e{bare}", bare, low, *high


_NUMBER = {part: number for number, name in enumerate(NAMES) for part in _parts(number, name)}


@cache
def _disassembler() -> Cs:
    detailed = Cs(CS_ARCH_X86, CS_MODE_64)
    detailed.detail = True
    return detailed


@cache
def snippet(code: bytes, zero: bool = False) -> Snippet | None:
    """See Isa.snippet."""
    reads, writes = set[int](), {RESULT}
    flags, at = False, 0
    for one in _disassembler().disasm(code, 0):
        if _LEAVING.intersection(one.groups):
            return None
        if any(o.type == X86_OP_MEM and o.access & CS_AC_WRITE for o in one.operands):
            return None
        for numbers, touched in zip(one.regs_access(), (reads, writes), strict=True):
            names = {one.reg_name(number) for number in numbers}
            flags |= touched is writes and _FLAGS in names
            general = {_NUMBER.get(name, e.RSP) for name in names - _NOT_GENERAL}
            if e.RSP in general:  # the stack, or no register that a snippet needs
                return None
            touched |= general
        at = one.address + one.size
    if at != len(code):
        return None
    return Snippet(code, frozenset(reads), frozenset(writes), flags, zero)
