"""From syntax tree to typed tree: names, types, actions."""

from __future__ import annotations

from kinst.core.dtypes import VoidType
from kinst.core.errors import DError
from kinst.dlang import builtins, tree, typed
from kinst.dlang.actions import statement
from kinst.dlang.aggregates import Aggregations
from kinst.dlang.convert import is_scalar, same
from kinst.dlang.expressions import check as check_expression
from kinst.dlang.height import check_height
from kinst.dlang.scope import Environment, Scope
from kinst.dlang.typenames import resolve

__all__ = ["Environment", "check"]


def check(program: tree.Program, environment: Environment) -> typed.Program:
    """The typed program.

    Raises DError for everything that is wrong with names, types and arguments.  Clauses are
    checked in order, so that a variable's first assignment gives it its type; aggregations
    are collected over the whole program first, so that printa() may come before the clause
    that fills them.
    """
    aggregations = Aggregations()
    _clauses(program, environment, aggregations)
    aggregations.complete = True
    clauses, scope = _clauses(program, environment, aggregations)
    for clause in clauses:
        check_height(clause)
    return typed.Program(
        clauses,
        tuple(sorted(scope.variables.values(), key=lambda v: v.index)),
        aggregations.all(),
        tuple((o.name, o.value) for o in program.options),
    )


def _clauses(
    program: tree.Program, environment: Environment, aggregations: Aggregations
) -> tuple[tuple[typed.Clause, ...], Scope]:
    scope = Scope(environment)
    for declaration in program.declarations:
        _declare(declaration, scope)
    clauses = tuple(
        _clause(clause, index, scope, aggregations) for index, clause in enumerate(program.clauses)
    )
    return clauses, scope


def _declare(node: tree.Declaration, scope: Scope) -> None:
    """Raises DError D_DECL_IDRED, D_DECL_VOIDOBJ and those of type names."""
    type_ = resolve(node.type)
    if builtins.kind_of(node.name) is not None or node.name in scope.environment.registers:
        message = f"built-in identifier redeclared: {node.name}"
        raise DError(message, node.span, "D_DECL_IDRED")
    if isinstance(type_, VoidType):
        raise DError(f"cannot have void object: {node.name}", node.span, "D_DECL_VOIDOBJ")
    old = scope.variables.get(node.name)
    if old is None:
        scope.create(node.name, type_)
    elif not same(old.type, type_):
        message = (
            f"identifier redeclared: {node.name}: current: scalar {type_}, "
            f"previous: scalar {old.type}"
        )
        raise DError(message, node.span, "D_DECL_IDRED")


def _clause(
    node: tree.Clause, index: int, scope: Scope, aggregations: Aggregations
) -> typed.Clause:
    """Statements are checked before the predicate, because they more often create variables;
    if a name is missing there, the predicate goes first (libdtrace's dt_cook_clause)."""
    before = scope.snapshot()
    try:
        actions = _actions(node, scope, aggregations)
        predicate = _predicate(node, scope)
    except DError as error:
        missing = error.tag in ("D_IDENT_UNDEF", "D_VAR_UNDEF")
        if not missing or node.predicate is None:
            raise
        scope.restore(before)
        predicate = _predicate(node, scope)
        actions = _actions(node, scope, aggregations)
    return typed.Clause(
        index,
        tuple(d.pattern for d in node.descriptions),
        tuple(d.span for d in node.descriptions),
        predicate,
        actions,
        node.span,
    )


def _actions(
    node: tree.Clause, scope: Scope, aggregations: Aggregations
) -> tuple[typed.Action, ...]:
    made = [statement(s, scope, aggregations) for s in node.statements]
    return tuple(a for a in made if a is not None)


def _predicate(node: tree.Clause, scope: Scope) -> typed.Expr | None:
    if node.predicate is None:
        return None
    predicate = check_expression(node.predicate, scope)
    if not is_scalar(predicate.type):
        message = "predicate result must be of scalar type"
        hint = 'compare the string: execname == "..."' if str(predicate.type) == "string" else ""
        raise DError(message, predicate.span, "D_PRED_SCALAR", hint)
    return predicate
