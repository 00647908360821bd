"""Generators of loops and conditions in helper functions, and of accesses to the bytes of bounded
strings.

Tested by tests/codegen/values/test_lowering.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.ssa import IrFunction, IrLocal, IrValue, const


def loop(code: IrFunction, condition: Callable[[], IrValue], body: Callable[[], None]) -> None:
    """Emit LLVM IR of the loop `while (condition) body`.  The caller makes sure that the loop ends.

    Args:
        condition: emits the test and returns its i1.
        body: emits the body.
    """
    test, inside, after = (code.fresh(n) for n in ("test", "inside", "after"))
    code.jump(test)
    code.block(test)
    code.branch(condition(), inside, after)
    code.block(inside)
    body()
    code.jump(test)
    code.block(after)


def when(
    code: IrFunction,
    condition: IrValue,
    then: Callable[[], None],
    otherwise: Callable[[], None] | None = None,
) -> None:
    """Emit LLVM IR of `if (condition) then else otherwise`.

    Args:
        condition: an i1.
        then: emits the first branch.
        otherwise: emits the second branch; None if there is no else.
    """
    yes, no, after = (code.fresh(n) for n in ("yes", "no", "after"))
    code.branch(condition, yes, no if otherwise else after)
    code.block(yes)
    then()
    code.jump(after)
    if otherwise is not None:
        code.block(no)
        otherwise()
        code.jump(after)
    code.block(after)


def leave(code: IrFunction, condition: IrValue, result: IrValue | Callable[[], IrValue]) -> None:
    """Emit LLVM IR of `if (condition) return result`."""
    out, on = code.fresh("out"), code.fresh("on")
    code.branch(condition, out, on)
    code.block(out)
    code.ret(result if isinstance(result, IrValue) else result())
    code.block(on)


def put(code: IrFunction, at: IrLocal, byte: IrValue, dst: IrValue) -> None:
    """Emit LLVM IR of `dst[at++] = byte`; only the low 8 bits of `byte` are stored."""
    here = code.get(at)
    code.store(code.convert(byte, 8, signed=False), code.op("add", dst, here))
    code.set(at, code.op("add", here, 1))


def step(code: IrFunction, local: IrLocal, by: int = 1) -> None:
    code.set(local, code.op("add", code.get(local), by))


def byte_of(code: IrFunction, start: IrValue, index: IrValue) -> IrValue:
    """Emit LLVM IR that loads the byte start[index]; return the byte as an i64."""
    return code.convert(code.load(8, code.op("add", start, index)), 64, signed=False)


def copy_bytes(code: IrFunction, at: IrLocal, to: IrValue, source: IrValue, size: IrValue) -> None:
    """Emit a loop that copies bytes from `source` to `to`, both at the offset `at`.  The loop
    advances the variable `at` from its present value to `size`.
    """
    loop(
        code,
        lambda: code.icmp("ult", code.get(at), size),
        lambda: put(code, at, byte_of(code, source, code.get(at)), to),
    )


def copy_words(code: IrFunction, at: IrLocal, to: IrValue, source: IrValue, size: IrValue) -> None:
    """Emit a loop that copies words of 8 bytes from `source` to `to`, both at the byte offset `at`.
    The loop advances the variable `at` from its present value to `size`, a multiple of 8.
    """

    def word() -> None:
        here = code.get(at)
        code.store(code.load(64, code.op("add", source, here)), code.op("add", to, here))
        step(code, at, 8)

    loop(code, lambda: code.icmp("ult", code.get(at), size), word)


def byte_in(code: IrFunction, start: IrValue, index: IrValue, bound: IrValue) -> IrValue:
    """Emit LLVM IR that loads the byte start[index] if index < bound; return the byte as an i64, or
    0 if index >= bound.
    """
    inside, after = code.fresh("inside"), code.fresh("after")
    before = code.at
    code.branch(code.icmp("ult", index, bound), inside, after)
    code.block(inside)
    byte = byte_of(code, start, index)
    code.jump(after)
    code.block(after)
    return code.phi(64, [(byte, inside), (const(0), before)])


def least(code: IrFunction, a: IrValue, b: IrValue | int) -> IrValue:
    """Emit a select of the smaller of two signed numbers; return the smaller number."""
    other = const(b) if isinstance(b, int) else b
    return code.select(code.icmp("slt", a, other), a, other)


def most(code: IrFunction, a: IrValue, b: IrValue | int) -> IrValue:
    """Emit a select of the larger of two signed numbers; return the larger number."""
    other = const(b) if isinstance(b, int) else b
    return code.select(code.icmp("sgt", a, other), a, other)


def both(code: IrFunction, *conditions: IrValue) -> IrValue:
    result = conditions[0]
    for condition in conditions[1:]:
        result = code.op("and", result, condition)
    return result


def either(code: IrFunction, *conditions: IrValue) -> IrValue:
    result = conditions[0]
    for condition in conditions[1:]:
        result = code.op("or", result, condition)
    return result
