"""Calls in expressions: subroutines, and what is called that is none."""

from __future__ import annotations

from kinst.core.errors import DError, Span
from kinst.dlang import builtins, speculation, tree, typed
from kinst.dlang.scope import Check, Scope
from kinst.dlang.subroutines import ABSENT, PROTOTYPES, absent, subroutine


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
        raise DError(
            f"{builtins.kind_of(name)} {name}( ) may not be called from a D expression "
            "(D program context required)",
            node.span,
            "D_CG_EXPR",
        )
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


def is_action_call(node: tree.Expr) -> bool:
    """Whether an expression calls an action, such as trace()."""
    return (
        isinstance(node, tree.Call)
        and isinstance(node.function, tree.Name)
        and builtins.kind_of(node.function.name) == "tracing function"
    )
