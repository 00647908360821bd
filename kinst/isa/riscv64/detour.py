"""Hooks at the start of the kernel's C functions (RISC-V psABI, "Procedure Calling Convention").

A jump to a stub replaces the function's first instructions, eight bytes or more. At a function's
start the temporaries t0 to t6 are dead, so the jumps may change them. The jump to the stub changes
t1. The jump back changes a temporary that the displaced instructions neither read nor write.

Tested by tests/isa/riscv64/test_trampoline.py.
"""

from __future__ import annotations

from kinst.core.displaced import Refused, refuses_out_of_reach
from kinst.isa.riscv64 import encode as e
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.encodings import effect
from kinst.isa.riscv64.relocate import move

_PATCH = 8
_SAVED = (e.RA, *range(e.A0, e.A0 + 8))
_ROOM = 80
_HERE = 6  # t1
_BEQ = 0


@refuses_out_of_reach
def detour(code: bytes, address: int, to: int, hook: int) -> tuple[bytes, bytes] | Refused:
    head = _save() + e.call(to + len(_save()), hook, "the hook") + e.move(_HERE, e.A0)
    head += _restore(_SAVED) + e.branch(_BEQ, _HERE, e.X0, 4 + len(e.RET)) + e.RET
    return _finish(code, address, to, head)


@refuses_out_of_reach
def translate_detour(
    code: bytes, address: int, to: int, hook: int
) -> tuple[bytes, bytes] | Refused:
    head = _save() + e.call(to + len(_save()), hook, "the hook")
    head += _restore(tuple(register for register in _SAVED if register != e.A0))
    return _finish(code, address, to, head)


def _save() -> bytes:
    stores = b"".join(e.c_sdsp(register, 8 * i) for i, register in enumerate(_SAVED))
    return e.addi(e.SP, e.SP, -_ROOM) + stores


def _restore(wanted: tuple[int, ...]) -> bytes:
    loads = b"".join(e.c_ldsp(n, 8 * i) for i, n in enumerate(_SAVED) if n in wanted)
    return loads + e.addi(e.SP, e.SP, _ROOM)


def _finish(code: bytes, address: int, to: int, head: bytes) -> tuple[bytes, bytes] | Refused:
    moved_code, size, goes_on = b"", 0, True
    while size < _PATCH:
        length = p.size_at(code, size)
        if not length:
            return Refused(f"its first {_PATCH} bytes are not whole instructions that kinst knows")
        one = code[size : size + length]
        moved = move(one, address + size, to + len(head) + len(moved_code))
        if isinstance(moved, Refused):
            return Refused(f"the instruction at +{size}: {moved.reason}")
        size += length
        moved_code += moved.code
        goes_on = moved.falls_through
        if not goes_on and size < _PATCH:
            return Refused(
                f"the instruction at +{size - length} leaves the function before"
                " there is room for the jump"
            )
    if goes_on:
        through = _free(code[:size])
        if not through:
            return Refused("its first instructions use every temporary register")
        moved_code += e.jump(to + len(head) + len(moved_code), address + size, through)
    patch = e.jump(address, to, _HERE, "the stub")
    return patch + e.C_EBREAK * ((size - len(patch)) // 2), head + moved_code


def _free(code: bytes) -> int:
    """Return the number of a temporary register that no instruction of code reads or writes; 0 if
    there is none."""
    used, at = 0, 0
    while at < len(code):
        size = p.size_at(code, at)
        reads, writes = effect(int.from_bytes(code[at : at + size], "little"), size)
        used |= reads | writes
        at += size
    return next((register for register in e.TEMPORARIES if not used >> register & 1), 0)
