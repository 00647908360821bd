"""Statements: actions, aggregating statements and expressions (Dynamic Tracing Guide,
"Actions and Subroutines"; errors as in libdtrace's dt_cc.c)."""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.dtypes import INT, INT64, UINT64, StringType, VoidType
from kinst.core.errors import DError, Span
from kinst.dlang import typed, typed_output
from kinst.dlang.check import actions_effects, speculations
from kinst.dlang.check.actions_data import STACKS, SYMBOLS, data_expression
from kinst.dlang.check.aggregates import Aggregations, aggregate, parts_of
from kinst.dlang.check.expressions import check, is_aggregation, place, without_void
from kinst.dlang.check.scope import Scope
from kinst.dlang.check.translation import Translation
from kinst.dlang.check.translators import as_structure
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast, is_integer, is_scalar, is_zero, same
from kinst.dlang.types.members import string_place
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.formats import (
    Value,
    bind_format,
    is_wide_text,
    parse_format,
    takes_wide_text,
)

_Handler = Callable[[tree.Call, Scope, Aggregations], typed.Action | None]


def statement(node: tree.Expr, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    """One statement.  While aggregations are still being collected (the first pass), what
    depends on them is left for the second pass, and None returned.  Raises DError."""
    if isinstance(node, tree.Assignment) and is_aggregation(node.left):
        return aggregate(node, scope, aggregations)
    if is_aggregation(node):
        name = parts_of(node)[0].name
        message = f"expression has null effect: @{name}"
        raise DError(message, node.span, "D_AGG_NULL", f"@{name} = count() and the like")
    if isinstance(node, tree.Call) and isinstance(node.function, tree.Name):
        handler = _HANDLERS.get(node.function.name)
        if handler is not None:
            return handler(node, scope, aggregations)
    return typed.Evaluate(node.span, without_void(check(node, scope)))


def _plural(count: int) -> str:
    return "1 arg" if count == 1 else f"{count} args"


def _expect_arguments(node: tree.Call, count: int, at_least: bool = False) -> None:
    """Raise DError D_PROTO_LEN unless `count` arguments are passed."""
    passed = len(node.arguments)
    if passed < count or (passed > count and not at_least):
        assert isinstance(node.function, tree.Name)
        raise DError(
            f"{node.function.name}( ) prototype mismatch: {_plural(passed)} passed, "
            f"{count} expected",
            node.span,
            "D_PROTO_LEN",
        )


def _trace(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    return typed.Trace(node.span, _shown("trace", "D_TRACE", node, scope))


def _print(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    return typed.Print(node.span, string_place(_shown("print", "D_PRINT", node, scope)))


def _shown(name: str, prefix: str, node: tree.Call, scope: Scope) -> typed.Expr:
    """The argument of trace() and print().  Raises DError <prefix>_AGG, <prefix>_DYN,
    <prefix>_VOID."""
    _expect_arguments(node, 1)
    argument = node.arguments[0]
    if is_aggregation(argument):
        message = f"{name}( ) may not be applied to an aggregation"
        raise DError(message, argument.span, f"{prefix}_AGG", "did you mean printa()?")
    expr = as_structure(place(argument, scope), scope, check)
    if isinstance(expr, Translation):
        message = f"{name}( ) may not be applied to a translated pointer"
        raise DError(message, argument.span, f"{prefix}_DYN", "what it points to may be")
    if isinstance(expr.type, VoidType):
        message = f"{name}( ) may not be applied to a void expression"
        raise DError(message, argument.span, f"{prefix}_VOID")
    return expr


def _printf(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    return _formatted("printf", node, scope)


def _formatted(name: str, node: tree.Call, scope: Scope) -> typed.Printf:
    """A call with a format and its arguments.  Raises DError D_PROTO_LEN, D_PRINTF_*."""
    _expect_arguments(node, 1, at_least=True)
    first = node.arguments[0]
    if not isinstance(first, tree.String):
        given = "aggregation" if is_aggregation(first) else str(check(first, scope).type)
        raise DError(
            f"{name}( ) argument #1 is incompatible with prototype: "
            f"prototype: string constant, argument: {given}",
            first.span,
            "D_PRINTF_ARG_FMT",
        )
    parsed = parse_format(first.value, first.span)
    args: list[typed.Expr] = []
    wide = takes_wide_text(parsed)
    for number, argument in enumerate(node.arguments[1:], 2):
        if is_aggregation(argument):
            message = f"{name}( ) argument #{number} is an aggregation"
            raise DError(message, argument.span, "D_PRINTF_ARG_TYPE", "use printa()")
        whole = place(argument, scope) if wide[number - 2 : number - 1] == [True] else None
        array = whole is not None and is_wide_text(whole.type)
        args.append(whole if whole is not None and array else check(argument, scope))
    values = [Value(a.type, a.span) for a in args]
    format_, stars = bind_format(name, parsed, values, first.span)
    for at in stars:
        args[at] = cast(args[at], INT)
    return typed.Printf(node.span, format_, tuple(args))


def _data(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    """stack(), sym() and the like: what they record is traced."""
    expr = data_expression(node, scope)
    assert expr is not None
    return typed.Trace(node.span, expr)


def _effect(
    make: Callable[[tree.Call, Scope], typed.Action],
) -> _Handler:
    """The handler of an action that has nothing to do with aggregations."""
    return lambda node, scope, aggregations: make(node, scope)


def _with_format(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    """system() and freopen(): printf()'s arguments."""
    assert isinstance(node.function, tree.Name)
    name = node.function.name
    if name == "freopen" and [a.value for a in node.arguments if isinstance(a, tree.String)] == [
        b"."
    ]:  # what stands for the restored output in libdtrace's records
        raise DError('freopen( ) argument #1 cannot be "."', node.span, "D_FREOPEN_INVALID")
    if name == "freopen" and [a.value for a in node.arguments if isinstance(a, tree.String)] == [
        b""
    ]:
        return typed.Perform(node.span, name, (), typed_output.Format("", ()))
    made = _formatted(name, node, scope)
    return typed.Perform(node.span, name, made.args, made.format)


def _exit(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    _expect_arguments(node, 1)
    status = check(node.arguments[0], scope)
    if not is_integer(status.type):
        raise DError(
            "exit( ) argument #1 is incompatible with prototype: "
            f"prototype: int, argument: {status.type}",
            status.span,
            "D_PROTO_ARG",
        )
    return typed.Exit(node.span, cast(status, INT))


def _aggregation_argument(node: tree.Call, at: int, tag: str, scope: Scope) -> tree.Aggregation:
    """Argument `at` (from 0), which must be a whole aggregation."""
    argument = node.arguments[at]
    if isinstance(argument, tree.Aggregation):
        return argument
    assert isinstance(node.function, tree.Name)
    if is_aggregation(argument):
        given, hint = "an aggregation with keys", "write the aggregation without its keys"
    else:
        given, hint = str(check(argument, scope).type), ""
    raise DError(
        f"{node.function.name}( ) argument #{at + 1} is incompatible with prototype: "
        f"prototype: aggregation, argument: {given}",
        argument.span,
        tag,
        hint,
    )


def _whole(node: tree.Call, least: int, most: int, expected: str, prefix: str) -> None:
    """Raise DError <prefix>_PROTO unless least..most arguments are passed."""
    passed = len(node.arguments)
    if not least <= passed <= most:
        assert isinstance(node.function, tree.Name)
        raise DError(
            f"{node.function.name}( ) prototype mismatch: {passed} args passed, "
            f"{expected} expected",
            node.span,
            f"{prefix}_PROTO",
        )


def _clear(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    _whole(node, 1, 1, "1", "D_CLEAR")
    target = _aggregation_argument(node, 0, "D_CLEAR_AGGARG", scope)
    if not aggregations.complete:
        return None
    return typed.Clear(node.span, aggregations.get(target, "D_CLEAR_AGGBAD"))


def _scalar_second(node: tree.Call, tag: str, scope: Scope) -> typed.Expr:
    assert isinstance(node.function, tree.Name)
    argument = node.arguments[1]
    if not is_aggregation(argument):
        expr = check(argument, scope)
        if is_scalar(expr.type):
            return expr
    message = f"{node.function.name}( ) argument #2 must be of scalar type"
    raise DError(message, argument.span, tag)


def _trunc(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    few = not node.arguments
    _whole(node, 1, 2, "at least 1" if few else "no more than 2", "D_TRUNC")
    target = _aggregation_argument(node, 0, "D_TRUNC_AGGARG", scope)
    count: typed.Expr | None = None
    if len(node.arguments) == 2:
        count = cast(_scalar_second(node, "D_TRUNC_SCALAR", scope), INT64)
    if not aggregations.complete:
        return None
    return typed.Trunc(node.span, aggregations.get(target, "D_TRUNC_AGGBAD"), count)


def _normalize(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    assert isinstance(node.function, tree.Name)
    count = 1 if node.function.name == "denormalize" else 2
    _whole(node, count, count, str(count), "D_NORMALIZE")
    target = _aggregation_argument(node, 0, "D_NORMALIZE_AGGARG", scope)
    divisor: typed.Expr | None = None
    if count == 2:
        divisor = cast(_scalar_second(node, "D_NORMALIZE_SCALAR", scope), UINT64)
        if is_zero(divisor):
            message = "expression contains division by zero"
            raise DError(message, node.arguments[1].span, "D_DIV_ZERO")
        if not isinstance(divisor, typed.IntConst):
            divisor = typed.NonZero(divisor.type, divisor.span, divisor)
    if not aggregations.complete:
        return None
    return typed.Normalize(node.span, aggregations.get(target, "D_NORMALIZE_AGGBAD"), divisor)


def _printa(node: tree.Call, scope: Scope, aggregations: Aggregations) -> typed.Action | None:
    if not node.arguments:
        message = "printa( ) prototype mismatch: 0 args passed, 1 expected"
        raise DError(message, node.span, "D_PROTO_LEN", "it takes an aggregation")
    start = 1 if node.arguments and isinstance(node.arguments[0], tree.String) else 0
    if len(node.arguments) <= start:
        message = f"printa( ) prototype mismatch: {len(node.arguments)} args passed, 2 expected"
        raise DError(message, node.span, "D_PRINTA_PROTO", "the aggregation is missing")
    first = node.arguments[0]
    targets = [
        _aggregation_argument(node, at, "D_PRINTA_AGGARG", scope)
        for at in range(start, len(node.arguments))
    ]
    parsed = parse_format(first.value, first.span) if isinstance(first, tree.String) else None
    if not aggregations.complete:
        return None
    made = tuple(aggregations.get(t, "D_PRINTA_AGGBAD") for t in targets)
    for target, other in zip(targets[1:], made[1:], strict=True):
        _check_same_keys(made[0], other, target.span)
    format_: typed_output.Format | None = None
    if parsed is not None:
        aggregated = UINT64 if made[0].function.name == "count" else INT64
        keys = [Value(k, first.span) for k in made[0].keys]
        format_, _ = bind_format(
            "printa", parsed, keys, first.span, aggregated=aggregated, exact=False
        )
    return typed.Printa(node.span, format_, made)


def _check_same_keys(
    first: typed_output.Aggregation, other: typed_output.Aggregation, span: Span
) -> None:
    """Raise DError D_PRINTA_AGGKEY, D_PRINTA_AGGPROTO unless both have the same keys."""
    a, b = len(first.keys), len(other.keys)
    if a != b:
        raise DError(
            f"printa( ): @{first.name} and @{other.name} do not have matching key signatures: "
            f"@{first.name} has {a} key{'' if a == 1 else 's'}, "
            f"@{other.name} has {b} key{'' if b == 1 else 's'}",
            span,
            "D_PRINTA_AGGKEY",
        )
    for number, (left, right) in enumerate(zip(first.keys, other.keys, strict=True), 1):
        alike = (is_integer(left) and is_integer(right)) or same(left, right)
        if isinstance(left, StringType) != isinstance(right, StringType) or not alike:
            raise DError(
                f"printa( ): @{other.name}[ ] key #{number} is incompatible with @{first.name}: "
                f"{first.name} key #{number}: {left}, {other.name} key #{number}: {right}",
                span,
                "D_PRINTA_AGGPROTO",
            )


_HANDLERS: dict[str, _Handler] = {
    "clear": _clear,
    "denormalize": _normalize,
    "exit": _exit,
    "normalize": _normalize,
    "print": _print,
    "printa": _printa,
    "printf": _printf,
    "trace": _trace,
    "trunc": _trunc,
    "chill": _effect(actions_effects.chill),
    "freopen": _with_format,
    "ftruncate": _effect(actions_effects.ftruncate),
    "setopt": _effect(actions_effects.setopt),
    "system": _with_format,
    "tracemem": _effect(actions_effects.tracemem),
    **dict.fromkeys(("speculate", "commit", "discard"), _effect(speculations.about)),
    **dict.fromkeys(actions_effects.REFUSED, _effect(actions_effects.refused)),
    **dict.fromkeys(STACKS | SYMBOLS, _data),
}
assert frozenset(_HANDLERS) == builtins.ACTIONS
