"""The parameters of lquantize() and llquantize(), and their errors, as libdtrace's dt_cc.c has
them (its messages number arguments from the one behind the value)."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import IntType
from kinst.core.errors import DError, Span
from kinst.dlang import typed, typed_output

_MOST = 0xFFFF  # parameters and levels are 16-bit quantities


def _constant(argument: typed.Expr, function: str, position: int, message: str, tag: str) -> int:
    """The value of a parameter; position: among all arguments, from 1."""
    if not isinstance(argument.type, IntType):
        raise DError(
            f"{function}( ) argument #{position} is incompatible with prototype: "
            f"prototype: int32_t, argument: {argument.type}",
            argument.span,
            "D_PROTO_ARG",
        )
    if not isinstance(argument, typed.IntConst):
        raise DError(message, argument.span, tag)
    return argument.value


def check_lquantize(arguments: Sequence[typed.Expr], span: Span) -> tuple[int, int, int]:
    """(base, limit, step) of lquantize(value, base, limit[, step]); limit - base is made a
    multiple of step, as DTrace does.  Raises DError D_LQUANT_*, D_PROTO_ARG."""
    ends = []
    for at, (type_tag, value_tag) in enumerate(
        (("D_LQUANT_BASETYPE", "D_LQUANT_BASEVAL"), ("D_LQUANT_LIMTYPE", "D_LQUANT_LIMVAL")), 1
    ):
        message = f"lquantize( ) argument #{at} must be an integer constant"
        value = _constant(arguments[at], "lquantize", at + 1, message, type_tag)
        if not -(2**31) <= value < 2**31:
            message = f"lquantize( ) argument #{at} must be a 32-bit quantity"
            raise DError(message, arguments[at].span, value_tag)
        ends.append(value)
    base, limit = ends
    if limit < base:
        message = "lquantize( ) base (argument #1) must be less than limit (argument #2)"
        raise DError(message, span, "D_LQUANT_MISMATCH")
    step = _step(arguments)
    levels = (limit - base) // step
    if levels == 0:
        message = (
            "lquantize( ) step (argument #3) too large: must have at least one quantization level"
        )
        raise DError(message, span, "D_LQUANT_STEPLARGE")
    if levels > _MOST:
        message = (
            "lquantize( ) step (argument #3) too small: number of quantization levels must be "
            "a 16-bit quantity"
        )
        raise DError(message, span, "D_LQUANT_STEPSMALL")
    return base, base + levels * step, step


def _step(arguments: Sequence[typed.Expr]) -> int:
    if len(arguments) < 4:
        return 1
    step = arguments[3]
    if not isinstance(step, typed.IntConst) or step.value <= 0:
        message = "lquantize( ) argument #3 must be a non-zero positive integer constant"
        raise DError(message, step.span, "D_LQUANT_STEPTYPE")
    if step.value > _MOST:
        message = "lquantize( ) argument #3 must be a 16-bit quantity"
        raise DError(message, step.span, "D_LQUANT_STEPVAL")
    return step.value


_LL_PARAMETERS = (
    ("factor", "FACTOR"),
    ("low magnitude", "LOW"),
    ("high magnitude", "HIGH"),
    ("linear steps per magnitude", "NSTEP"),
)


def check_llquantize(arguments: Sequence[typed.Expr], span: Span) -> tuple[int, ...]:
    """(factor, low, high, steps) of llquantize(value, factor, low, high, steps).

    Raises DError D_LLQUANT_*, D_PROTO_ARG.
    """
    values = []
    for at, (what, tag) in enumerate(_LL_PARAMETERS, 1):
        message = f"llquantize( ) argument #{at} ({what}) must be an integer constant"
        value = _constant(arguments[at], "llquantize", at + 1, message, f"D_LLQUANT_{tag}TYPE")
        if not 0 <= value <= _MOST:
            message = f"llquantize( ) argument #{at} ({what}) must be an unsigned 16-bit quantity"
            raise DError(message, arguments[at].span, f"D_LLQUANT_{tag}VAL")
        values.append(value)
    factor, low, high, steps = values
    if factor < 2:
        message = "llquantize( ) factor (argument #1) must be two or more"
        raise DError(message, span, "D_LLQUANT_FACTORSMALL")
    if low >= high:
        message = (
            "llquantize( ) high magnitude (argument #3) must be greater than low magnitude "
            "(argument #2)"
        )
        raise DError(message, span, "D_LLQUANT_MAGRANGE")
    if steps < factor:
        message = (
            "llquantize( ) factor (argument #1) must be less than or equal to the number of "
            "linear steps per magnitude (argument #4)"
        )
        raise DError(message, span, "D_LLQUANT_FACTORNSTEPS")
    power = factor
    while power < steps:
        power *= factor
    if steps % factor or power % steps:
        message = (
            "llquantize( ) factor (argument #1) must evenly divide the number of steps per "
            "magnitude (argument #4), and the number of steps per magnitude must evenly divide "
            "a power of the factor"
        )
        raise DError(message, span, "D_LLQUANT_FACTOREVEN")
    if high >= 64 or factor**high >= 2**64:
        message = (
            f"llquantize( ) factor ({factor}) raised to power of high magnitude ({high}) "
            "overflows 64-bits"
        )
        raise DError(message, span, "D_LLQUANT_MAGTOOBIG")
    return factor, low, high, steps


def check_same_parameters(
    old: typed_output.AggFunction, new: typed_output.AggFunction, span: Span
) -> None:
    """Two statements of one aggregation must quantize alike.

    Raises DError D_LQUANT_MATCHBASE, D_LQUANT_MATCHLIM, D_LQUANT_MATCHSTEP,
    D_LLQUANT_FACTORMATCH, D_LLQUANT_LOWMATCH, D_LLQUANT_HIGHMATCH, D_LLQUANT_NSTEPMATCH.
    """
    whats: tuple[tuple[str, str], ...]
    if old.name == "lquantize":
        whats = (("base", "D_LQUANT_MATCHBASE"), ("limit", "D_LQUANT_MATCHLIM"),
                 ("step", "D_LQUANT_MATCHSTEP"))  # fmt: skip
    else:
        whats = tuple((what, f"D_LLQUANT_{tag}MATCH") for what, tag in _LL_PARAMETERS)
    for at, (expected, found) in enumerate(zip(old.params, new.params, strict=True), 1):
        if expected != found:
            what, tag = whats[at - 1]
            raise DError(
                f"{old.name}( ) {what} (argument #{at}) doesn't match previous "
                f"declaration: expected {expected}, found {found}",
                span,
                tag,
            )
