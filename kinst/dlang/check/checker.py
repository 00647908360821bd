"""The checker, which converts the syntax tree of a D program to its typed tree.

Tested by tests/dlang/test_errors.py and tests/d.
"""

from __future__ import annotations

from functools import partial

from kinst.core.dataclass import dataclass
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check.actions import check_order, statement
from kinst.dlang.check.aggregating import Aggregations, Unfinished, aggregations_of
from kinst.dlang.check.declarations import declare, declare_provider, declare_type
from kinst.dlang.check.expansions import define_inline, define_translator, refuse_whole
from kinst.dlang.check.expressions import check as check_expression
from kinst.dlang.check.expressions import truth
from kinst.dlang.check.library import check_dependency, use
from kinst.dlang.check.measures import measures_of
from kinst.dlang.check.scope import Environment, Scope
from kinst.dlang.check.stability import check_pragma
from kinst.dlang.syntax import tree
from kinst.dlang.types.conversions import is_scalar
from kinst.dlang.walk import check_height

__all__ = ["Environment", "check"]


def check(program: tree.ProgramNode, environment: Environment) -> typed.TypedProgram:
    """Check names, types and arguments of a program; return its typed tree. Raises DError.

    Clauses are checked in order, so that a variable's first assignment gives the variable its type.
    Actions on aggregations are completed after the last clause, so that printa() may come before
    the clause that assigns its aggregation.
    """
    aggregations = Aggregations({**measures_of(program), **environment.measures})
    clauses, scope = _checked(program, aggregations, Scope(environment))
    aggregations.complete = True
    if any(v.keys != scope.keys.get(v.name, v.keys) for v in scope.variables.values()):
        # Later keys of an associative array are wider than its first keys: check the program again
        # with the wider types.
        clauses, scope = _checked(program, aggregations, Scope(environment, scope.keys))
    finished = tuple(_finished(clause, index) for index, clause in enumerate(clauses))
    if program.empty is not None:
        raise tree.empty(program.empty)
    for clause in finished:
        refuse_whole(clause)
        check_height(clause)
    return typed.TypedProgram(
        finished,
        tuple(sorted(scope.variables.values(), key=lambda v: v.index)),
        aggregations.all(),
        tuple((o.name, o.value) for o in program.options),
    )


@dataclass(frozen=True, slots=True)
class _CheckedClause:
    """A clause after its check, with actions that may still have to be completed."""

    node: tree.ClauseNode
    predicate: typed.Expr | None
    actions: tuple[typed.Action | Unfinished, ...]


def _checked(
    program: tree.ProgramNode, aggregations: Aggregations, scope: Scope
) -> tuple[list[_CheckedClause], Scope]:
    clauses: list[_CheckedClause] = []
    scope.aggregations = aggregations_of(program)
    scope.types.check = partial(check_expression, scope=scope)
    use(program, scope, check_expression)
    for item in program.items:
        scope.patterns = ()
        if isinstance(item, tree.DeclarationNode):
            declare(item, scope, check_expression)
        elif isinstance(item, tree.TypeDeclarationNode):
            declare_type(item, scope)
        elif isinstance(item, tree.InlineNode):
            define_inline(item, scope, check_expression)
        elif isinstance(item, tree.TranslatorNode):
            define_translator(item, scope, check_expression)
        elif isinstance(item, tree.ProviderNode):
            declare_provider(item, scope)
        elif isinstance(item, tree.PragmaNode) and item.kind == "depends_on":
            check_dependency(item, scope)
        elif isinstance(item, tree.ClauseNode):
            clauses.append(_clause(item, scope, aggregations))
    for item in program.items:
        if isinstance(item, tree.PragmaNode) and item.kind != "depends_on":
            check_pragma(item, scope)
    return clauses, scope


def _clause(node: tree.ClauseNode, scope: Scope, aggregations: Aggregations) -> _CheckedClause:
    """Check the statements of a clause, then its predicate, which may thus use a variable that a
    statement creates.

    If a name is unknown in this order, check the predicate first and then the statements: the
    predicate may create the variable (libdtrace's dt_cook_clause()).
    """
    before = scope.snapshot()
    scope.patterns = tuple(d.pattern for d in node.descriptions)
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
    return _CheckedClause(node, predicate, actions)


def _actions(
    node: tree.ClauseNode, scope: Scope, aggregations: Aggregations
) -> tuple[typed.Action | Unfinished, ...]:
    return tuple(statement(s, scope, aggregations) for s in node.statements)


def _finished(clause: _CheckedClause, index: int) -> typed.Clause:
    """Complete the actions of a clause once all aggregations are known; return the typed clause.
    Raises DError.

    Args:
        index: index of the clause among the program's clauses.
    """
    actions = tuple(a if isinstance(a, typed.Action) else a() for a in clause.actions)
    check_order(actions)
    node = clause.node
    return typed.Clause(
        index,
        tuple(d.pattern for d in node.descriptions),
        tuple(d.span for d in node.descriptions),
        clause.predicate,
        actions,
        node.span,
        tuple(d.crossing for d in node.descriptions),
    )


def _predicate(node: tree.ClauseNode, scope: Scope) -> typed.Expr | None:
    if node.predicate is None:
        return None
    predicate = truth(node.predicate, scope)
    if not is_scalar(predicate.type):
        message = "predicate result must be of scalar type"
        hint = 'compare the string: execname == "..."' if str(predicate.type) == "string" else ""
        raise DError(message, predicate.span, "D_PRED_SCALAR", hint)
    return predicate
