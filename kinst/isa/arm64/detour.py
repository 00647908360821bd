"""Hooks at the start of the kernel's C functions (Procedure Call Standard for AArch64).

A branch to a stub replaces the function's first instruction. The stub saves the argument registers,
calls the hook, and goes on with the displaced instruction. At a function's start x9 to x17 are
dead.

Tested by tests/isa/arm64/test_trampoline.py.
"""

from __future__ import annotations

from kinst.core.displaced import Refused, refuses_out_of_reach
from kinst.isa.arm64 import encode as e
from kinst.isa.arm64 import relocate

# Registers that the stub saves: arguments, the address of a result in memory (x8), and the return
# address.
_KEPT = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 30))
_SIZE = 16 * len(_KEPT)
_ANSWER = 16


@refuses_out_of_reach
def detour(code: bytes, address: int, to: int, hook: int) -> tuple[bytes, bytes] | Refused:
    """Return (patch, stub) that hook a function of the kernel. If the hook returns 1, the function
    does not run and returns 0, which means for Linux's exception handlers that the exception was
    handled.

    Args:
        code: the function's first bytes.
        address: address of the function, where the patch is written.
        to: address of the stub.
        hook: address of the C function that the stub calls.
    """
    head = _save() + e.call(to + len(_save()), hook, "the hook")
    head += _move(_ANSWER, 0) + _restore()
    go_on = 3 * e.SIZE
    head += e.branch_zero(_ANSWER, go_on) + e.load_value(0, 0) + e.RET
    return _finish(code, address, to, head)


@refuses_out_of_reach
def translate_detour(
    code: bytes, address: int, to: int, hook: int
) -> tuple[bytes, bytes] | Refused:
    head = _save() + e.call(to + len(_save()), hook, "the hook")
    head += _move(_ANSWER, 0) + _restore() + _move(0, _ANSWER)
    return _finish(code, address, to, head)


def _move(to: int, from_: int) -> bytes:
    return e.or_registers(to, e.ZR, from_)


def _save() -> bytes:
    code = e.sub(e.SP, e.SP, _SIZE)
    return code + b"".join(e.store_pair(*pair, e.SP, 16 * n) for n, pair in enumerate(_KEPT))


def _restore() -> bytes:
    code = b"".join(e.load_pair(*pair, e.SP, 16 * n) for n, pair in enumerate(_KEPT))
    return code + e.add(e.SP, e.SP, _SIZE)


def _finish(code: bytes, address: int, to: int, head: bytes) -> tuple[bytes, bytes] | Refused:
    moved = relocate.displace(code[: e.SIZE], address, to + len(head))
    if isinstance(moved, Refused):
        return Refused(f"the function's first instruction: {moved.reason}")
    return e.branch(address, to, "the stub"), head + moved.code
