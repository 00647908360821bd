"""Calls in expressions: subroutines, and what is called that is none."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import VOID
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.check import speculation
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.check.subroutines import ABSENT, PROTOTYPES, absent, subroutine
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary import builtins

# Actions that take at least one argument.
_WITH_ARGUMENT = frozenset({"trace", "print", "printf", "printa", "exit", "tracemem"})


@dataclass(frozen=True, slots=True)
class Action(typed.Expr):
    """The call of an action where a value is wanted.  It is void, so most operators refuse it;
    none is left in a program that the checker has accepted.

    name: as the error shows it."""

    name: str


def refused(action: Action) -> DError:
    """The error where an action is used as a value."""
    message = f"{action.name} may not be called from a D expression"
    return DError(f"{message} (D program context required)", action.span, "D_CG_EXPR")


def call(node: tree.Call, scope: Scope, check: Check) -> typed.Expr:
    """A subroutine's value; actions are the statements' business.  Raises DError."""
    if not isinstance(node.function, tree.Name):
        message = "function designator is not of function type"
        raise DError(message, node.span, "D_FUNC_IDENT")
    name = node.function.name
    if name == "speculation":
        return speculation.new(node)
    if name in PROTOTYPES:
        return subroutine(node, name, scope, check)
    if name in builtins.CALLABLE:
        if not node.arguments and name in _WITH_ARGUMENT:
            message = f"{name}( ) prototype mismatch: 0 args passed, 1 expected"
            raise DError(message, node.span, "D_PROTO_LEN")
        found = Action(VOID, node.span, f"{builtins.kind_of(name)} {name}( )")
        if name in builtins.VALUED_ACTIONS:
            raise refused(found)
        return found
    raise unknown_function(name, node.span, scope)


def unknown_function(name: str, span: Span, scope: Scope) -> DError:
    """The error for calling something that is not a function of kinst."""
    if name in ABSENT:
        return absent(name, span)
    if name in builtins.ACTIONS_NOT_YET or name in builtins.FUNCTIONS_NOT_YET:
        return DError(f"{name}( ) is not supported yet", span, "D_UNKNOWN")
    kind = builtins.kind_of(name)
    if name in scope.variables or name in scope.environment.registers:
        kind = "scalar"
    if kind is not None:
        message = f"{kind} '{name}' may not be referenced as a function"
        return DError(message, span, "D_FUNC_IDKIND")
    return DError(f"undefined function name: {name[:80]}", span, "D_FUNC_UNDEF")


def is_valued_action(node: tree.Expr) -> bool:
    """Whether an expression calls sym(), stack() or the like."""
    called = node.function if isinstance(node, tree.Call) else None
    return isinstance(called, tree.Name) and called.name in builtins.VALUED_ACTIONS
