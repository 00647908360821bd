"""Checker of aggregations: statements @name[keys] = function(arguments), which must agree in the
whole program, and the actions clear(), trunc(), normalize() and printa() (Dynamic Tracing Guide,
"Aggregations"; errors as in libdtrace's dt_cc.c).

Tested by tests/dlang/check/test_actions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    INT64,
    UINT64,
    DType,
    IntType,
    PointerType,
    StackType,
    StringType,
    StructType,
    SymbolType,
    VoidType,
)
from kinst.core.errors import DError, Span
from kinst.core.units import counted
from kinst.dlang import typed
from kinst.dlang.check.calls import data_expression, expect_arguments, unknown_function
from kinst.dlang.check.expressions import check, is_aggregation
from kinst.dlang.check.formats import PrintedValue, bind_format, parse_format
from kinst.dlang.check.scope import Scope, Translation
from kinst.dlang.syntax import tree
from kinst.dlang.types.conversions import (
    cast,
    common,
    is_integer,
    is_scalar,
    is_string,
    is_string_like,
    is_void_pointer,
    is_zero,
    same,
    to_string,
)
from kinst.dlang.types.operators import wider_string
from kinst.dlang.vocabulary import builtins

_MOST_LEVELS = 0xFFFF  # parameters and levels are 16-bit quantities


def _parameter(argument: typed.Expr, function: str, position: int, message: str, tag: str) -> int:
    """Return the value of a constant parameter of an aggregating function. Raises DError.

    Args:
        position: number of the argument, from 1.
        message: the error if the argument is not constant.
        tag: the error's tag.
    """
    _check_integer(argument, function, position)
    if not isinstance(argument, typed.IntConst):
        raise DError(message, argument.span, tag)
    return argument.value


def _check_integer(argument: typed.Expr, function: str, position: int) -> None:
    """Check that an argument is an integer, as the prototypes of lquantize() and llquantize() want.
    Raises DError D_PROTO_ARG.

    Args:
        position: number of the argument, from 1.
    """
    if not isinstance(argument.type, IntType):
        raise DError(
            f"{function}( ) argument #{position} is incompatible with prototype: "
            f"prototype: int32_t, argument: {argument.type}",
            argument.span,
            "D_PROTO_ARG",
        )


def _check_lquantize(arguments: Sequence[typed.Expr], span: Span) -> tuple[int, int, int]:
    """Check the parameters of lquantize(value, base, limit[, step]); return (base, limit, step).

    As in DTrace, the returned limit is lowered so that limit - base is a multiple of step. Raises
    DError D_LQUANT_*, D_PROTO_ARG.
    """
    ends = []
    for at, (type_tag, value_tag) in enumerate(
        (("D_LQUANT_BASETYPE", "D_LQUANT_BASEVAL"), ("D_LQUANT_LIMTYPE", "D_LQUANT_LIMVAL")), 1
    ):
        message = f"lquantize( ) argument #{at} must be an integer constant"
        value = _parameter(arguments[at], "lquantize", at + 1, message, type_tag)
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
    if levels > _MOST_LEVELS:
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
    if step.value > _MOST_LEVELS:
        message = "lquantize( ) argument #3 must be a 16-bit quantity"
        raise DError(message, step.span, "D_LQUANT_STEPVAL")
    return step.value


_LL_PARAMETERS = (
    ("factor", "FACTOR"),
    ("low magnitude", "LOW"),
    ("high magnitude", "HIGH"),
    ("linear steps per magnitude", "NSTEP"),
)


def _check_llquantize(arguments: Sequence[typed.Expr], span: Span) -> tuple[int, ...]:
    """Check the parameters of llquantize(value, factor, low, high, steps); return (factor, low,
    high, steps).

    Raises DError D_LLQUANT_*, D_PROTO_ARG.
    """
    values = []
    for at, (what, tag) in enumerate(_LL_PARAMETERS, 1):
        message = f"llquantize( ) argument #{at} ({what}) must be an integer constant"
        value = _parameter(arguments[at], "llquantize", at + 1, message, f"D_LLQUANT_{tag}TYPE")
        if not 0 <= value <= _MOST_LEVELS:
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
    if _overflows(factor, high + 2):
        message = (
            f"llquantize( ) factor ({factor}) raised to power of high magnitude ({high}) "
            "plus 1 overflows 64-bits"
        )
        raise DError(message, span, "D_LLQUANT_MAGTOOBIG")
    return factor, low, high, steps


def _overflows(factor: int, exponent: int) -> bool:
    """Return whether factor**exponent does not fit into 64 bits."""
    return exponent >= 64 or factor**exponent >= 2**64


def _check_same_parameters(old: typed.AggFunction, new: typed.AggFunction, span: Span) -> None:
    """Check that two statements of one aggregation use the same parameters of lquantize() or
    llquantize().

    Raises DError D_LQUANT_MATCHBASE, D_LQUANT_MATCHLIM, D_LQUANT_MATCHSTEP, D_LLQUANT_FACTORMATCH,
    D_LLQUANT_LOWMATCH, D_LLQUANT_HIGHMATCH, D_LLQUANT_NSTEPMATCH.
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


@dataclass(frozen=True, slots=True)
class _Defined:
    index: int
    keys: tuple[DType, ...]
    function: typed.AggFunction
    signed: bool
    span: Span


# A function that completes an action once the aggregations of all clauses are known; raises DError.
Unfinished = Callable[[], typed.Action]


class Aggregations:
    """The aggregations of a program, by name without the @.

    The caller calls define() for every aggregating statement, and sets `complete` after the last
    one. Only then are the types of keys final, because statements may use integer keys of different
    sizes.

    Args:
        measures: for each aggregation's name, the aggregated expression, its unit, and the
            expressions of the keys.
    """

    def __init__(self, measures: Mapping[str, typed.Measure]) -> None:
        self._found: dict[str, _Defined] = {}
        self._measures = measures
        self.complete = False

    def define(self, name: str, keys: Sequence[typed.Expr], update: Update, span: Span) -> None:
        """Add one aggregating statement, and check that it agrees with earlier statements of the
        same aggregation.

        Raises DError D_AGG_REDEF, D_PROTO_LEN, D_PROTO_ARG, D_LQUANT_MATCH*, D_LLQUANT_*MATCH.

        Args:
            name: name of the aggregation.
            keys: its keys in this statement.
            update: the right-hand side of this statement.
            span: where the statement names the aggregation.
        """
        types = tuple(k.type for k in keys)
        old = self._found.get(name)
        if old is None:
            index = len(self._found)
            self._found[name] = _Defined(index, types, update.function, update.signed, span)
            return
        if old.function.name != update.function.name:
            raise DError(
                f"aggregation redefined: @{name}: current: @{name} = {update.function.name}( ), "
                f"previous: @{name} = {old.function.name}( ) : line {old.span.line}",
                span,
                "D_AGG_REDEF",
            )
        _check_same_parameters(old.function, update.function, span)
        merged = self._merged_keys(name, old.keys, keys, span)
        self._found[name] = _Defined(old.index, merged, old.function, old.signed, old.span)

    def _merged_keys(
        self, name: str, old: tuple[DType, ...], keys: Sequence[typed.Expr], span: Span
    ) -> tuple[DType, ...]:
        if len(old) != len(keys):
            message = (
                f"@{name}[ ] prototype mismatch: {counted(len(keys), 'arg')} passed,"
                f" {len(old)} expected"
            )
            hint = "" if name else "two aggregations need two names, @a[...] and @b[...]"
            raise DError(message, span, "D_PROTO_LEN", hint)
        merged: list[DType] = []
        for number, (before, key) in enumerate(zip(old, keys, strict=True), 1):
            type_ = _merged(before, key.type)
            if type_ is None:
                raise DError(
                    f"@{name}[ ] argument #{number} is incompatible with prototype: "
                    f"prototype: {before}, argument: {key.type}",
                    key.span,
                    "D_PROTO_ARG",
                )
            merged.append(type_)
        return tuple(merged)

    def get(
        self, node: tree.AggregationNode, tag: str = "D_IDENT_UNDEF"
    ) -> typed.AggregationVariable:
        """Return an aggregation with the final types of its keys. Raises DError with this tag if no
        clause assigns the aggregation.
        """
        defined = self._found.get(node.name)
        if defined is None:
            message = f"failed to resolve @{node.name[:80]}: Unknown variable name"
            hint = f"no clause has @{node.name[:80]} = ..."
            raise DError(message, node.span, tag, hint)
        return self._typed(node.name, defined)

    def _typed(self, name: str, defined: _Defined) -> typed.AggregationVariable:
        return typed.AggregationVariable(
            name, defined.index, defined.keys, defined.function, defined.signed,
            self._measures.get(name, typed.Measure()),
        )  # fmt: skip

    def all(self) -> tuple[typed.AggregationVariable, ...]:
        """Return all aggregations, in the order of their indexes."""
        return tuple(self._typed(name, defined) for name, defined in self._found.items())


def _merged(before: DType, now: DType) -> DType | None:
    """Return one type for an aggregation's key that has type `before` in some statements and type
    `now` in another; None if no type can hold the values of both.
    """
    if isinstance(before, IntType) and isinstance(now, IntType):
        return before if same(before, now) else common(before, now)
    if isinstance(before, StackType | SymbolType):
        return before if before == now else None
    if is_string(before) and is_string(now):
        return wider_string(before, now)
    if is_string_like(before) and is_string_like(now):
        return before
    if isinstance(before, PointerType) and isinstance(now, PointerType):
        void = is_void_pointer(before) or is_void_pointer(now)
        return before if void or same(before, now) else None
    if isinstance(before, StructType) and same(before, now):
        return before
    return None


@dataclass(frozen=True, slots=True)
class Update:
    """The right-hand side of an aggregating statement.

    Attributes:
        function: the aggregating function with its parameters.
        value: the value to aggregate; None for count().
        weight: the value's weight in a distribution; None if the statement has none.
        signed: whether the value is signed.
    """

    function: typed.AggFunction
    value: typed.Expr | None
    weight: typed.Expr | None
    signed: bool


def parts_of(node: tree.ExprNode) -> tuple[tree.AggregationNode, tuple[tree.ExprNode, ...]]:
    """Return the aggregation and the keys of @name[keys]. Raises DError D_AGG_MDIM."""
    keys: tuple[tree.ExprNode, ...] = ()
    if isinstance(node, tree.IndexNode):
        keys, base = node.arguments, node.base
        while isinstance(base, tree.IndexNode):
            base = base.base
            if isinstance(base, tree.AggregationNode):
                message = f"improper attempt to reference @{base.name} as a multi-dimensional array"
                raise DError(message, node.span, "D_AGG_MDIM", "write @name[key, key]")
        node = base
    assert isinstance(node, tree.AggregationNode)
    return node, keys


def aggregations_of(program: tree.ProgramNode) -> frozenset[str]:
    """Return the names of all aggregations that some clause of the program assigns."""
    statements = [s for c in program.items if isinstance(c, tree.ClauseNode) for s in c.statements]
    assigned = [s.left for s in statements if isinstance(s, tree.AssignmentNode)]
    return frozenset(parts_of(left)[0].name for left in assigned if is_aggregation(left))


def aggregate(node: tree.AssignmentNode, scope: Scope, aggregations: Aggregations) -> Unfinished:
    """Check @name[keys] = function(...); return a function that completes the action once all
    aggregations are known.
    """
    target, key_nodes = parts_of(node.left)
    call = node.right
    if node.op != "=" or not isinstance(call, tree.CallNode) or not _names_aggregating(call, scope):
        message = f"@{target.name} must be assigned the result of an aggregating function"
        raise DError(
            message, node.right.span, "D_AGG_FUNC", "count() sum(x) min(x) quantize(x) ..."
        )
    update = aggregating_call(call, scope)
    keys = _keys(key_nodes, scope)
    if not aggregations.complete:
        aggregations.define(target.name, keys, update, target.span)

    def finish() -> typed.Action:
        aggregation = aggregations.get(target)
        final = tuple(_as_key(k, t) for k, t in zip(keys, aggregation.keys, strict=True))
        return typed.AggregateAction(target.span, aggregation, final, update.value, update.weight)

    return finish


def _names_aggregating(call: tree.CallNode, scope: Scope) -> bool:
    if not isinstance(call.function, tree.NameNode):
        return False
    if scope.kind_of(call.function.name) is None:
        raise unknown_function(call.function.name, call.span, scope)
    return call.function.name in builtins.AGGREGATING


def _keys(nodes: Sequence[tree.ExprNode], scope: Scope) -> list[typed.Expr]:
    keys: list[typed.Expr] = []
    for number, node in enumerate(nodes, 1):
        kind = "aggregation"
        if not is_aggregation(node):
            key = data_expression(node, scope, check) or check(node, scope)
            if not isinstance(key.type, VoidType) and not isinstance(key, Translation):
                keys.append(key)
                continue
            kind = "void" if isinstance(key.type, VoidType) else f"translated {key.type}"
        message = f"{kind} expression may not be used as aggregation index: key #{number}"
        raise DError(message, node.span, "D_KEY_TYPE")
    return keys


def _as_key(key: typed.Expr, type_: DType) -> typed.Expr:
    if is_string(type_):
        return to_string(key)
    return cast(key, type_) if is_scalar(key.type) else key


def aggregating_call(node: tree.CallNode, scope: Scope) -> Update:
    """Check the right-hand side of an aggregating statement, function(arguments), and return it.
    Raises DError D_PROTO_*, D_AGG_SCALAR, D_L*QUANT_*.
    """
    assert isinstance(node.function, tree.NameNode)
    name = node.function.name
    function = builtins.AGGREGATING[name]
    for argument in node.arguments:
        if is_aggregation(argument):
            message = f"{name}( ) argument #1 must be of scalar type"
            raise DError(message, argument.span, "D_AGG_SCALAR")
    arguments = [check(a, scope) for a in node.arguments]
    expect_arguments(node, function.least, function.most)
    if not arguments:
        return Update(typed.AggFunction(name), None, None, False)
    for position, argument_ in enumerate(arguments[1 : function.least], 2):
        _check_integer(argument_, name, position)
    value = arguments[0]
    if not is_scalar(value.type):
        message = f"{name}( ) argument #1 must be of scalar type"
        raise DError(message, value.span, "D_AGG_SCALAR")
    params: tuple[int, ...] = ()
    weight: typed.Expr | None = None
    if name == "lquantize":
        params = _check_lquantize(arguments, node.span)
        weight = _weight(name, arguments, 4)
    elif name == "llquantize":
        params = _check_llquantize(arguments, node.span)
        weight = _weight(name, arguments, 5)
    elif name == "quantize":
        weight = _weight(name, arguments, 1)
    signed = typed.is_signed(value.type)
    wide = cast(value, INT64 if signed else UINT64)
    return Update(typed.AggFunction(name, params), wide, weight, signed)


def _weight(name: str, arguments: Sequence[typed.Expr], at: int) -> typed.Expr | None:
    """Return the weight in a call of an aggregating function, which is its last argument; None if
    the call has no weight. Raises DError.

    Args:
        name: name of the function.
        at: index of the weight among the arguments.
    """
    if len(arguments) > at + 1:
        message = (
            f"{name}( ) prototype mismatch: {len(arguments)} args passed, at most {at + 1} expected"
        )
        raise DError(message, arguments[at].span, "D_PROTO_LEN")
    if len(arguments) <= at:
        return None
    weight = arguments[at]
    if not is_integer(weight.type):
        message = f"{name}( ) increment value (argument #{at + 1}) must be of scalar type"
        raise DError(message, weight.span, "D_PROTO_ARG")
    return cast(weight, INT64)


def _aggregation_argument(
    node: tree.CallNode, at: int, tag: str, scope: Scope
) -> tree.AggregationNode:
    """Return an argument that must be an aggregation without keys. Raises DError with this tag if
    it is not.

    Args:
        at: index of the argument.
    """
    argument = node.arguments[at]
    if isinstance(argument, tree.AggregationNode):
        return argument
    assert isinstance(node.function, tree.NameNode)
    if is_aggregation(argument):
        shown_type, hint = "an aggregation with keys", "write the aggregation without its keys"
    else:
        shown_type, hint = str(check(argument, scope).type), ""
    raise DError(
        f"{node.function.name}( ) argument #{at + 1} is incompatible with prototype: "
        f"prototype: aggregation, argument: {shown_type}",
        argument.span,
        tag,
        hint,
    )


def _expect_count(node: tree.CallNode, least: int, most: int, expected: str, prefix: str) -> None:
    """Check the number of arguments of a call. Raises DError <prefix>_PROTO if it is not from
    `least` to `most`, inclusive.

    Args:
        expected: the expected number as the error message says it, such as "at least 1".
        prefix: start of the error's tag.
    """
    passed = len(node.arguments)
    if not least <= passed <= most:
        assert isinstance(node.function, tree.NameNode)
        raise DError(
            f"{node.function.name}( ) prototype mismatch: {passed} args passed, "
            f"{expected} expected",
            node.span,
            f"{prefix}_PROTO",
        )


def clear(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> Unfinished:
    _expect_count(node, 1, 1, "1", "D_CLEAR")
    target = _aggregation_argument(node, 0, "D_CLEAR_AGGARG", scope)
    return lambda: typed.ClearAction(node.span, aggregations.get(target, "D_CLEAR_AGGBAD"))


def _scalar_second(node: tree.CallNode, tag: str, scope: Scope) -> typed.Expr:
    assert isinstance(node.function, tree.NameNode)
    argument = node.arguments[1]
    if not is_aggregation(argument):
        expr = check(argument, scope)
        if is_scalar(expr.type):
            return expr
    message = f"{node.function.name}( ) argument #2 must be of scalar type"
    raise DError(message, argument.span, tag)


def trunc(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> Unfinished:
    few = not node.arguments
    _expect_count(node, 1, 2, "at least 1" if few else "no more than 2", "D_TRUNC")
    target = _aggregation_argument(node, 0, "D_TRUNC_AGGARG", scope)
    count: typed.Expr | None = None
    if len(node.arguments) == 2:
        count = cast(_scalar_second(node, "D_TRUNC_SCALAR", scope), INT64)
    return lambda: typed.TruncAction(node.span, aggregations.get(target, "D_TRUNC_AGGBAD"), count)


def normalize(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> Unfinished:
    assert isinstance(node.function, tree.NameNode)
    count = 1 if node.function.name == "denormalize" else 2
    _expect_count(node, count, count, str(count), "D_NORMALIZE")
    target = _aggregation_argument(node, 0, "D_NORMALIZE_AGGARG", scope)
    divisor: typed.Expr | None = None
    if count == 2:
        divisor = cast(_scalar_second(node, "D_NORMALIZE_SCALAR", scope), UINT64)
        if is_zero(divisor):
            message = "expression contains division by zero"
            raise DError(message, node.arguments[1].span, "D_DIV_ZERO")
        if not isinstance(divisor, typed.IntConst):
            divisor = typed.NonZero(divisor.type, divisor.span, divisor)

    def finish() -> typed.Action:
        aggregation = aggregations.get(target, "D_NORMALIZE_AGGBAD")
        return typed.NormalizeAction(node.span, aggregation, divisor)

    return finish


def printa(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> Unfinished:
    if not node.arguments:
        message = "printa( ) prototype mismatch: 0 args passed, 1 expected"
        raise DError(message, node.span, "D_PROTO_LEN", "it takes an aggregation")
    start = 1 if node.arguments and isinstance(node.arguments[0], tree.StringNode) else 0
    if len(node.arguments) <= start:
        message = f"printa( ) prototype mismatch: {len(node.arguments)} args passed, 2 expected"
        raise DError(message, node.span, "D_PRINTA_PROTO", "the aggregation is missing")
    first = node.arguments[0]
    targets = [
        _aggregation_argument(node, at, "D_PRINTA_AGGARG", scope)
        for at in range(start, len(node.arguments))
    ]
    parsed = parse_format(first.value, first.span) if isinstance(first, tree.StringNode) else None

    def finish() -> typed.Action:
        printed = tuple(aggregations.get(t, "D_PRINTA_AGGBAD") for t in targets)
        for target, other in zip(targets[1:], printed[1:], strict=True):
            _check_same_keys(printed[0], other, target.span)
        format_: typed.PrintfFormat | None = None
        if parsed is not None:
            aggregated = UINT64 if printed[0].function.name == "count" else INT64
            keys = [PrintedValue(k, first.span) for k in printed[0].keys]
            format_, _ = bind_format(
                "printa", parsed, keys, first.span, aggregated=aggregated, exact=False
            )
        return typed.PrintaAction(node.span, format_, printed)

    return finish


def _check_same_keys(
    first: typed.AggregationVariable, other: typed.AggregationVariable, span: Span
) -> None:
    """Check that two aggregations of one printa() have keys of the same types. Raises DError
    D_PRINTA_AGGKEY or D_PRINTA_AGGPROTO.
    """
    a, b = len(first.keys), len(other.keys)
    if a != b:
        raise DError(
            f"printa( ): @{first.name} and @{other.name} do not have matching key signatures: "
            f"@{first.name} has {counted(a, 'key')}, "
            f"@{other.name} has {counted(b, 'key')}",
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
