"""Aggregations: @name[keys] = function(arguments), and what a whole program says of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinst.core.dtypes import (
    INT64,
    UINT64,
    DType,
    IntType,
    PointerType,
    StackType,
    StructType,
    SymbolType,
    VoidType,
)
from kinst.core.errors import DError, Span
from kinst.dlang import typed, typed_output
from kinst.dlang.check.actions_data import data_expression
from kinst.dlang.check.calls import unknown_function
from kinst.dlang.check.expressions import check, is_aggregation
from kinst.dlang.check.operators import wider_string
from kinst.dlang.check.scope import Scope
from kinst.dlang.check.translation import Translation
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import (
    cast,
    common,
    is_integer,
    is_scalar,
    is_string,
    is_string_like,
    is_void_pointer,
    same,
    to_string,
)
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.quantizers import (
    check_llquantize,
    check_lquantize,
    check_same_parameters,
)


@dataclass(frozen=True, slots=True)
class _Found:
    index: int
    keys: tuple[DType, ...]
    function: typed_output.AggFunction
    signed: bool
    span: Span


class Aggregations:
    """The aggregations of a program, by name without the @.

    A first pass over the program calls define() for every aggregating statement; only then
    are key types final, because integer keys of one aggregation may differ in size.
    """

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}
        self.complete = False

    def define(self, name: str, keys: Sequence[typed.Expr], update: Update, span: Span) -> None:
        """Note one aggregating statement.

        Raises DError D_AGG_REDEF, D_PROTO_LEN, D_PROTO_ARG, D_LQUANT_MATCH*, D_LLQUANT_*MATCH.
        """
        types = tuple(k.type for k in keys)
        old = self._found.get(name)
        if old is None:
            index = len(self._found)
            self._found[name] = _Found(index, types, update.function, update.signed, span)
            return
        if old.function.name != update.function.name:
            raise DError(
                f"aggregation redefined: @{name}: current: @{name} = {update.function.name}( ), "
                f"previous: @{name} = {old.function.name}( ) : line {old.span.line}",
                span,
                "D_AGG_REDEF",
            )
        check_same_parameters(old.function, update.function, span)
        merged = self._merged_keys(name, old.keys, keys, span)
        self._found[name] = _Found(old.index, merged, old.function, old.signed, old.span)

    def _merged_keys(
        self, name: str, old: tuple[DType, ...], keys: Sequence[typed.Expr], span: Span
    ) -> tuple[DType, ...]:
        if len(old) != len(keys):
            plural = "arg " if len(keys) == 1 else "args "
            message = (
                f"@{name}[ ] prototype mismatch: {len(keys)} {plural}passed, {len(old)} expected"
            )
            raise DError(message, span, "D_PROTO_LEN")
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

    def get(self, node: tree.Aggregation, tag: str = "D_IDENT_UNDEF") -> typed_output.Aggregation:
        """The finished aggregation.  Raises DError with this tag when no clause assigns it."""
        found = self._found.get(node.name)
        if found is None:
            message = f"failed to resolve @{node.name[:80]}: Unknown variable name"
            hint = f"no clause has @{node.name[:80]} = ..."
            raise DError(message, node.span, tag, hint)
        return self._typed(node.name, found)

    def _typed(self, name: str, found: _Found) -> typed_output.Aggregation:
        return typed_output.Aggregation(name, found.index, found.keys, found.function, found.signed)

    def all(self) -> tuple[typed_output.Aggregation, ...]:
        """In the order of their indexes."""
        return tuple(self._typed(name, found) for name, found in self._found.items())


def _merged(before: DType, now: DType) -> DType | None:
    """The key type that holds values of both types, or None."""
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
    """The right-hand side of an aggregating statement."""

    function: typed_output.AggFunction
    value: typed.Expr | None
    weight: typed.Expr | None
    signed: bool


def parts_of(node: tree.Expr) -> tuple[tree.Aggregation, tuple[tree.Expr, ...]]:
    """The name and the keys of @name[keys].  Raises DError D_AGG_MDIM."""
    keys: tuple[tree.Expr, ...] = ()
    if isinstance(node, tree.Index):
        keys, base = node.arguments, node.base
        while isinstance(base, tree.Index):
            base = base.base
            if isinstance(base, tree.Aggregation):
                message = f"improper attempt to reference @{base.name} as a multi-dimensional array"
                raise DError(message, node.span, "D_AGG_MDIM", "write @name[key, key]")
        node = base
    assert isinstance(node, tree.Aggregation)
    return node, keys


def aggregations_of(program: tree.Program) -> frozenset[str]:
    """The names of all that the clauses assign."""
    statements = [s for c in program.items if isinstance(c, tree.Clause) for s in c.statements]
    assigned = [s.left for s in statements if isinstance(s, tree.Assignment)]
    return frozenset(parts_of(left)[0].name for left in assigned if is_aggregation(left))


def aggregate(
    node: tree.Assignment, scope: Scope, aggregations: Aggregations
) -> typed.Action | None:
    """@name[keys] = function(...).  In the first pass it is noted and None returned."""
    target, key_nodes = parts_of(node.left)
    call = node.right
    if node.op != "=" or not isinstance(call, tree.Call) or not _names_aggregating(call, scope):
        message = f"@{target.name} must be assigned the result of an aggregating function"
        raise DError(
            message, node.right.span, "D_AGG_FUNC", "count() sum(x) min(x) quantize(x) ..."
        )
    update = aggregating_call(call, scope)
    keys = _keys(key_nodes, scope)
    if not aggregations.complete:
        aggregations.define(target.name, keys, update, target.span)
        return None
    made = aggregations.get(target)
    return typed.Aggregate(
        target.span,
        made,
        tuple(_as_key(k, t) for k, t in zip(keys, made.keys, strict=True)),
        update.value,
        update.weight,
    )


def _names_aggregating(call: tree.Call, scope: Scope) -> bool:
    if not isinstance(call.function, tree.Name):
        return False
    if builtins.kind_of(call.function.name) is None:
        raise unknown_function(call.function.name, call.span, scope)
    return call.function.name in builtins.AGGREGATING


def _keys(nodes: Sequence[tree.Expr], scope: Scope) -> list[typed.Expr]:
    keys: list[typed.Expr] = []
    for number, node in enumerate(nodes, 1):
        kind = "aggregation"
        if not is_aggregation(node):
            key = data_expression(node, scope) or check(node, scope)
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


def aggregating_call(node: tree.Call, scope: Scope) -> Update:
    """function(arguments), checked.  Raises DError D_PROTO_*, D_AGG_SCALAR, D_L*QUANT_*."""
    assert isinstance(node.function, tree.Name)
    name = node.function.name
    function = builtins.AGGREGATING[name]
    count = len(node.arguments)
    if count < function.least or (function.most is not None and count > function.most):
        plural = "arg " if count == 1 else "args "
        message = f"{name}( ) prototype mismatch: {count} {plural}passed, {function.least} expected"
        raise DError(message, node.span, "D_PROTO_LEN")
    if not count:
        return Update(typed_output.AggFunction(name), None, None, False)
    for argument in node.arguments:
        if is_aggregation(argument):
            message = f"{name}( ) argument #1 must be of scalar type"
            raise DError(message, argument.span, "D_AGG_SCALAR")
    arguments = [check(a, scope) for a in node.arguments]
    value = arguments[0]
    if not is_scalar(value.type):
        message = f"{name}( ) argument #1 must be of scalar type"
        raise DError(message, value.span, "D_AGG_SCALAR")
    params: tuple[int, ...] = ()
    weight: typed.Expr | None = None
    if name == "lquantize":
        params = check_lquantize(arguments, node.span)
        weight = _weight(name, arguments, 4)
    elif name == "llquantize":
        params = check_llquantize(arguments, node.span)
        weight = _weight(name, arguments, 5)
    elif name == "quantize":
        weight = _weight(name, arguments, 1)
    signed = typed.is_signed(value.type)
    wide = cast(value, INT64 if signed else UINT64)
    return Update(typed_output.AggFunction(name, params), wide, weight, signed)


def _weight(name: str, arguments: Sequence[typed.Expr], at: int) -> typed.Expr | None:
    """The increment, the last argument that the function takes."""
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
