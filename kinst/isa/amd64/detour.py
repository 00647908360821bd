"""Hooks at the start of the kernel's C functions (System V ABI, AMD64 supplement).

A jump to a stub replaces the function's first instructions, five bytes or more. The stub saves the
argument registers, calls the hook, and goes on with the displaced instructions. At a function's
start rsp is 8 modulo 16 and DF is clear; the ABI demands both.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.displaced import Refused, refuses_out_of_reach
from kinst.isa import _x86
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64.control import flow
from kinst.isa.amd64.relocate import move

# Registers that the stub saves.  rax holds the number of vector arguments of a variadic function;
# since it is the seventh, the stack is 16-byte aligned at the hook's entry, as the ABI demands.
_ARGUMENTS = (e.RDI, e.RSI, e.RDX, e.RCX, e.R8, e.R9, e.RAX)
_TEST_EAX = b"\x85\xc0"
_NOT_ZERO = 5  # condition code


@dataclass(frozen=True, slots=True)
class _Start:
    """A function's first instructions, displaced.

    Attributes:
        size: bytes of the original instructions.
        code: displaced code.
    """

    size: int
    code: bytes


@refuses_out_of_reach
def detour(code: bytes, address: int, to: int, hook: int) -> tuple[bytes, bytes] | Refused:
    saves = b"".join(e.push(register) for register in _ARGUMENTS)
    restores = b"".join(e.pop(register) for register in reversed(_ARGUMENTS))
    head = saves + e.call(to + len(saves), hook, "the hook") + _TEST_EAX + restores
    go_on = to + len(head) + 6 + len(e.RET)
    head += e.branch(_NOT_ZERO ^ 1, to + len(head), go_on) + e.RET
    return _finish(code, address, to, head)


@refuses_out_of_reach
def translate_detour(
    code: bytes, address: int, to: int, hook: int
) -> tuple[bytes, bytes] | Refused:
    saves = b"".join(e.push(register) for register in _ARGUMENTS)
    kept = [register for register in _ARGUMENTS if register not in (e.RDI, e.RAX)]
    restores = b"".join(e.pop(register) for register in reversed(kept))
    head = saves + e.call(to + len(saves), hook, "the hook") + e.move(e.RDI, e.RAX)
    head += e.pop(e.RAX) + restores + e.lea(e.RSP, 8)
    return _finish(code, address, to, head)


def _finish(code: bytes, address: int, to: int, head: bytes) -> tuple[bytes, bytes] | Refused:
    start = _displace_start(code, address, to + len(head))
    if isinstance(start, Refused):
        return start
    patch = e.jump(address, to, "the stub")
    return patch + e.INT3 * (start.size - len(patch)), head + start.code


def _displace_start(code: bytes, address: int, to: int) -> _Start | Refused:
    moved_code, size = b"", 0
    for instruction in _x86.listed(code, address):
        length, mnemonic = instruction.len, _x86.name(instruction)
        piece = code[size : size + length]
        moved = move(piece, address + size, to + len(moved_code))
        if isinstance(moved, Refused):
            return Refused(f"{mnemonic} at +{size}: {moved.reason}")
        moved_code += moved.code
        size += length
        last = size >= e.JUMP_SIZE
        goes = flow(piece, address + size - length).kind
        if goes not in ("next", "landing") and not (last and goes == "call"):
            # A call returns to the original address, which must lie after the patch.
            return Refused(
                f"{mnemonic} at +{size - length} leaves the function before"
                " there is room for the jump"
            )
        if last:
            if moved.falls_through:
                moved_code += e.jump(to + len(moved_code), address + size)
            return _Start(size, moved_code)
    return Refused(f"its first {e.JUMP_SIZE} bytes are not whole instructions that kinst knows")
