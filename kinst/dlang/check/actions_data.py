"""Actions that record an address to be shown by name: stack(), ustack(), sym(), uaddr() and
the like, which may also be keys of aggregations (Dynamic Tracing Guide, "Actions and
Subroutines"; errors as in libdtrace's dt_cc.c)."""

from __future__ import annotations

from kinst.core.dtypes import UINT64, StackType, SymbolType
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check.expressions import check
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast, is_scalar

SYMBOLS = frozenset({"sym", "func", "mod", "uaddr", "usym", "ufunc", "umod"})
STACKS = frozenset({"stack", "ustack", "jstack"})
MOST_FRAMES = 1024  # of one stack()


def data_expression(node: tree.Expr, scope: Scope) -> typed.Expr | None:
    """The call of such an action as a value, or None when node is something else.

    Raises DError D_PROTO_LEN, D_STACK_*, D_USTACK_*, D_SYM_ARG and the like.
    """
    if not isinstance(node, tree.Call) or not isinstance(node.function, tree.Name):
        return None
    name = node.function.name
    if name == "stack":
        return typed.Stack(StackType(_stack_frames(node, scope)), node.span)
    if name in ("ustack", "jstack"):
        return typed.Stack(StackType(_user_frames(name, node, scope), True), node.span)
    if name in SYMBOLS:
        return _symbol(name, node, scope)
    return None


def _positive(node: tree.Expr, scope: Scope, message: str, tag: str, zero: bool = False) -> int:
    expr = check(node, scope)
    if not isinstance(expr, typed.IntConst) or expr.value < (0 if zero else 1):
        raise DError(message, node.span, tag)
    return expr.value


def _limited(frames: int, node: tree.Call) -> int:
    if frames > MOST_FRAMES:
        message = f"a stack of {frames} frames is too large"
        raise DError(message, node.span, "D_STACK_SIZE", f"at most {MOST_FRAMES}")
    return frames


def _stack_frames(node: tree.Call, scope: Scope) -> int:
    if not node.arguments:
        return _limited(scope.environment.stackframes, node)
    if len(node.arguments) > 1:
        message = "stack( ) prototype mismatch: too many arguments"
        raise DError(message, node.span, "D_STACK_PROTO")
    message = "stack( ) size must be a non-zero positive integral constant expression"
    return _limited(_positive(node.arguments[0], scope, message, "D_STACK_SIZE"), node)


def _user_frames(name: str, node: tree.Call, scope: Scope) -> int:
    """jstack() is ustack() with defaults of its own where no program helps to name its frames
    (Dynamic Tracing Guide, "jstack()"), and on Linux none does."""
    if not node.arguments:
        environment = scope.environment
        java = name == "jstack"
        return _limited(environment.jstackframes if java else environment.ustackframes, node)
    if len(node.arguments) > 2:
        message = f"{name}( ) prototype mismatch: too many arguments"
        raise DError(message, node.span, "D_USTACK_PROTO")
    message = f"{name}( ) argument #1 must be a non-zero positive integer constant"
    frames = _positive(node.arguments[0], scope, message, "D_USTACK_FRAMES")
    if len(node.arguments) == 2:  # room for names found in the process, of which there are none
        message = f"{name}( ) argument #2 must be a positive integer constant"
        _positive(node.arguments[1], scope, message, "D_USTACK_STRSIZE", zero=True)
    return _limited(frames, node)


def _symbol(name: str, node: tree.Call, scope: Scope) -> typed.Expr:
    count = len(node.arguments)
    if count != 1:
        message = f"{name}( ) prototype mismatch: {count} args passed, 1 expected"
        raise DError(message, node.span, "D_PROTO_LEN")
    address = check(node.arguments[0], scope)
    if not is_scalar(address.type):
        message = (
            f"{name}( ) argument #1 is incompatible with prototype: prototype: uintptr_t, "
            f"argument: {address.type}"
        )
        raise DError(message, address.span, "D_PROTO_ARG")
    return typed.Symbol(SymbolType(name), node.span, cast(address, UINT64))
