"""inline declarations: names and arrays that stand for an expression (Dynamic Tracing Guide,
"Inline Directives")."""

from __future__ import annotations

from dataclasses import replace

from kinst.core.dtypes import DType, VoidType
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.check.translation import Translation
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import (
    cast,
    is_scalar,
    is_string,
    is_string_like,
    is_zero,
    same,
    to_string,
)
from kinst.dlang.vocabulary import builtins

# Inlines in inlines multiply: what a program may expand to in all.
MOST_EXPANSIONS = 10_000


def define(node: tree.Inline, scope: Scope, check: Check) -> None:
    """Note an inline; its expression is checked here, too, where it stands.

    Raises DError D_DECL_IDRED, D_DECL_VOIDOBJ, D_OP_INCOMPAT and all those of expressions.
    """
    name = node.name
    if builtins.kind_of(name) is not None or name in scope.environment.registers:
        raise DError(f"built-in identifier redeclared: {name}", node.span, "D_DECL_IDRED")
    if name in scope.variables or name in scope.inlines:
        kind = "scalar" if name in scope.variables else "inline"
        message = f"identifier redefined: {name}: current: inline, previous: {kind}"
        raise DError(message, node.span, "D_DECL_IDRED")
    if isinstance(scope.resolve(node.type), VoidType):
        raise DError(f"cannot have void object: {name}", node.span, "D_DECL_VOIDOBJ")
    sample: dict[str, typed.Expr] = {}
    for parameter in node.parameters or ():
        type_ = scope.resolve(parameter.type)
        if isinstance(type_, VoidType):
            message = f"inline parameter may not be of type void: {parameter.name}"
            raise DError(message, parameter.span, "D_DECL_PROTO_TYPE")
        if parameter.name in sample:
            message = f"parameter name redefined: {parameter.name}"
            raise DError(message, parameter.span, "D_DECL_PROTO_NAME")
        made = typed.Variable(parameter.name, type_, -1)
        sample[parameter.name] = typed.GlobalRead(type_, parameter.span, made)
    _expand(node, sample, node.span, scope, check)
    scope.inlines[name] = node


def is_array(node: tree.Expr, scope: Scope) -> bool:
    """Whether a node names an inline with parameters."""
    found = scope.inlines.get(node.name) if isinstance(node, tree.Name) else None
    return found is not None and found.parameters is not None


def value(node: tree.Expr, use: tree.Index | None, scope: Scope, check: Check) -> typed.Expr:
    """What a name means that is an inline, or the parameter of one.

    use: name[arguments], for an inline with parameters.  Raises DError D_IDENT_BADREF,
    D_PROTO_LEN, D_PROTO_ARG.
    """
    assert isinstance(node, tree.Name)
    if use is None and node.name in scope.bound:
        return scope.bound[node.name]
    inline = scope.inlines[node.name]
    if use is None:
        if inline.parameters is not None:
            message = f"associative array '{node.name}' may not be referenced as scalar"
            raise DError(message, node.span, "D_IDENT_BADREF")
        found = _expand(inline, {}, node.span, scope, check)
        return replace(found, span=node.span) if isinstance(found, Translation) else found
    parameters = inline.parameters or ()
    given = use.arguments
    if len(given) != len(parameters):
        plural = "arg" if len(given) == 1 else "args"
        message = (
            f"{node.name}[ ] prototype mismatch: {len(given)} {plural} passed, "
            f"{len(parameters)} expected"
        )
        raise DError(message, use.span, "D_PROTO_LEN")
    bound = {}
    for number, (parameter, one) in enumerate(zip(parameters, given, strict=True), 1):
        wanted, got = scope.resolve(parameter.type), check(one, scope)
        made = argument(got, wanted)
        if made is None:
            message = (
                f"{node.name}[ ] argument #{number} is incompatible with prototype: "
                f"prototype: {wanted}, argument: {got.type}"
            )
            raise DError(message, one.span, "D_PROTO_ARG")
        bound[parameter.name] = made
    return _expand(inline, bound, use.span, scope, check)


def argument(expr: typed.Expr, type_: DType) -> typed.Expr | None:
    """expr as a value of type_, or None where that is not its kind."""
    if isinstance(expr, Translation):
        return expr if same(expr.type, type_) else None
    if is_string(type_):
        return to_string(expr) if is_string_like(expr.type) else None
    if not is_scalar(type_):
        return expr if expr.type == type_ else None
    if not is_scalar(expr.type):
        return None
    mixed = type(expr.type) is not type(type_)
    return None if mixed and not is_zero(expr) else cast(expr, type_)


def count(span: Span, scope: Scope) -> None:
    """Count an expansion.  Raises DError D_UNKNOWN when there were too many."""
    scope.expansions += 1
    if scope.expansions > MOST_EXPANSIONS:
        message = f"inlines are used more than {MOST_EXPANSIONS} times, inlines in inlines counted"
        raise DError(message, span, "D_UNKNOWN")


def _expand(
    inline: tree.Inline, bound: dict[str, typed.Expr], span: Span, scope: Scope, check: Check
) -> typed.Expr:
    """The inline's expression with its own parameters alone, as a value of its type."""
    count(span, scope)
    outer, scope.bound = scope.bound, bound
    try:
        found = check(inline.value, scope)
    finally:
        scope.bound = outer
    wanted = scope.resolve(inline.type)
    made = argument(found, wanted)
    if made is None:
        message = (
            f'inline {inline.name} definition uses incompatible types: "{wanted}" = "{found.type}"'
        )
        raise DError(message, inline.value.span, "D_OP_INCOMPAT")
    return made
