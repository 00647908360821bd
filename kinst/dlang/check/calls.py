"""Checker of calls in expressions: subroutines, speculation(), and the actions stack(), sym() and
the like, which record addresses (Dynamic Tracing Guide, "Actions and Subroutines"; errors as in
libdtrace's dt_cc.c and dt_idcook_sign()).
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    INT,
    UINT64,
    VOID,
    IntType,
    PointerType,
    StackType,
    StringType,
    SymbolType,
)
from kinst.core.errors import DError, Span
from kinst.core.units import counted
from kinst.dlang import typed
from kinst.dlang.check.members import char_array_of, decayed
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.conversions import (
    cast,
    is_scalar,
    is_string,
    is_string_like,
    is_zero,
    to_string,
)
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.builtins import SPECULATION
from kinst.dlang.vocabulary.other_tracers import function_hint
from kinst.dlang.vocabulary.subroutines import ABSENT, Parameter


def expect_arguments(node: tree.CallNode, least: int, most: int | None) -> None:
    """Check the number of arguments of a call. Raises DError D_PROTO_LEN if it is not from `least`
    to `most`, inclusive.

    Args:
        most: None if there is no limit.
    """
    passed = len(node.arguments)
    if passed < least or (most is not None and passed > most):
        assert isinstance(node.function, tree.NameNode)
        args = counted(passed, "arg")
        message = f"{node.function.name}( ) prototype mismatch: {args} passed, {least} expected"
        raise DError(message, node.span, "D_PROTO_LEN")


def subroutine(node: tree.CallNode, name: str, scope: Scope, check: Check) -> typed.Expr:
    """Check the call of a subroutine; return its typed tree.

    Raises DError D_PROTO_LEN, D_PROTO_ARG and the errors of the arguments' expressions.
    """
    prototype = scope.environment.subroutines[name]
    given = [check(argument, scope) for argument in node.arguments]
    passed, needed = len(given), prototype.required
    most = len(prototype.parameters)
    if not needed <= passed <= most:
        at_least = "at least " if needed < most else ""
        raise DError(
            f"{name}( ) prototype mismatch: {counted(passed, 'arg')} passed, "
            f"{at_least}{needed} expected",
            node.span,
            "D_PROTO_LEN",
        )
    args = tuple(
        _argument(name, number, parameter, argument)
        for number, (parameter, argument) in enumerate(
            zip(prototype.parameters, given, strict=False), 1
        )
    )
    return typed.Subroutine(prototype.result, node.span, prototype, args)


def _argument(name: str, number: int, parameter: Parameter, argument: typed.Expr) -> typed.Expr:
    """Convert an argument of a subroutine to its parameter's type (libdtrace's
    dt_node_is_argcompat()). Raises DError D_PROTO_ARG.

    Args:
        name: name of the subroutine.
        number: number of the argument, from 1.
        parameter: the parameter.
        argument: the argument.
    """
    if isinstance(parameter.type, StringType):
        if is_string_like(argument.type) or _is_null(argument):
            return argument if _is_null(argument) and parameter.nullable else to_string(argument)
    elif isinstance(parameter.type, PointerType):
        argument = decayed(char_array_of(argument))
        if isinstance(argument.type, PointerType) or is_string(argument.type) or is_zero(argument):
            return argument
    elif isinstance(argument.type, IntType) or _is_null(argument):
        return cast(argument, parameter.type)
    pointer = isinstance(argument.type, PointerType)
    hint = f"cast it: ({parameter.shown})" if pointer or isinstance(argument.type, IntType) else ""
    raise DError(
        f"{name}( ) argument #{number} is incompatible with prototype: "
        f"prototype: {parameter.shown}, argument: {argument.type}",
        argument.span,
        "D_PROTO_ARG",
        hint,
    )


def _is_null(expr: typed.Expr) -> bool:
    """Return whether an expression is the constant NULL or 0."""
    return is_zero(expr) and isinstance(expr.type, PointerType | IntType)


def _absent(name: str, span: Span, scope: Scope) -> DError:
    """Return the error for a call of a subroutine that only exists in the DTrace of other systems.
    The error says why the traced system cannot have it.
    """
    reason = scope.environment.dialect().absent.get(name, ABSENT[name])
    return DError(f"{name}( ) is not available: {reason}", span, "D_FUNC_UNDEF")


def destructive_calls(nodes: Sequence[typed.Expr]) -> list[str]:
    """Return the names of the destructive subroutines among these expressions."""
    calls = (node.prototype for node in nodes if isinstance(node, typed.Subroutine))
    return [prototype.name for prototype in calls if prototype.destructive]


def _speculation(node: tree.CallNode) -> typed.Expr:
    """Check a call of speculation(); return its typed tree."""
    expect_arguments(node, 0, 0)
    return typed.Builtin(INT, node.span, SPECULATION)


# Actions that take at least one argument.
_WITH_ARGUMENT = frozenset({"trace", "print", "printf", "printa", "exit", "tracemem"})


@dataclass(frozen=True, slots=True)
class ActionCall(typed.Expr):
    """An action that is called inside an expression. This is an error. refuse_whole() raises it,
    unless an operator refuses the call's type (void) first.
    """

    name: str  # the action in error messages


def action_as_value(action: ActionCall) -> DError:
    """Return the error for an action that is called inside an expression."""
    message = f"{action.name} may not be called from a D expression"
    return DError(f"{message} (D program context required)", action.span, "D_CG_EXPR")


def call(node: tree.CallNode, scope: Scope, check: Check) -> typed.Expr:
    """Check a call in an expression; return its typed tree. The typed tree of a call of an action
    is an ActionCall. Raises DError.
    """
    if not isinstance(node.function, tree.NameNode):
        message = "function designator is not of function type"
        raise DError(message, node.span, "D_FUNC_IDENT")
    name = node.function.name
    if name == "speculation":
        return _speculation(node)
    if name in scope.environment.subroutines:
        return subroutine(node, name, scope, check)
    if name in builtins.CALLABLE:
        if not node.arguments and name in _WITH_ARGUMENT:
            message = f"{name}( ) prototype mismatch: 0 args passed, 1 expected"
            raise DError(message, node.span, "D_PROTO_LEN")
        action = ActionCall(VOID, node.span, f"{builtins.kind_of(name)} {name}( )")
        if name in builtins.VALUED_ACTIONS:
            raise action_as_value(action)
        return action
    raise unknown_function(name, node.span, scope)


def unknown_function(name: str, span: Span, scope: Scope) -> DError:
    """Return the error for a call of a name that kinst has no function for."""
    if name in ABSENT:
        return _absent(name, span, scope)
    if name in builtins.ACTIONS_NOT_YET:
        return DError(f"{name}( ) is not supported yet", span, "D_UNKNOWN")
    kind = scope.kind_of(name)
    if name in scope.variables or name in scope.environment.registers:
        kind = "scalar"
    if kind is not None:
        message = f"{kind} '{name}' may not be referenced as a function"
        return DError(message, span, "D_FUNC_IDKIND")
    inlines = (one.name for one in scope.inlines.values() if one.parameters is not None)
    functions = [*builtins.CALLABLE, *scope.environment.subroutines, "speculation", *inlines]
    near = get_close_matches(name[:80], functions, 1, 0.7)
    hint = function_hint(name) or (f"did you mean {near[0]}()?" if near else "")
    return DError(f"undefined function name: {name[:80]}", span, "D_FUNC_UNDEF", hint)


def is_valued_action(node: tree.ExprNode) -> bool:
    """Return whether an expression is a call of sym(), stack() or the like."""
    called = node.function if isinstance(node, tree.CallNode) else None
    return isinstance(called, tree.NameNode) and called.name in builtins.VALUED_ACTIONS


SYMBOLS = frozenset({"sym", "func", "mod", "uaddr", "usym", "ufunc", "umod"})

STACKS = frozenset({"stack", "ustack", "jstack"})

MOST_FRAMES = 1024  # largest number of frames of one stack()


def data_expression(node: tree.ExprNode, scope: Scope, check: Check) -> typed.Expr | None:
    """Check a call of stack(), sym() or the like; return its typed tree. Return None for any other
    expression. These calls are allowed only as a whole statement or as a key of an aggregation.

    Raises DError D_STACK_*, D_USTACK_*, D_PROTO_LEN, D_PROTO_ARG.
    """
    if not isinstance(node, tree.CallNode) or not isinstance(node.function, tree.NameNode):
        return None
    name = node.function.name
    if name == "stack":
        return typed.RecordedStack(StackType(_stack_frames(node, scope, check)), node.span)
    if name in ("ustack", "jstack"):
        return typed.RecordedStack(
            StackType(_user_frames(name, node, scope, check), True), node.span
        )
    if name in SYMBOLS:
        return _symbol_data(name, node, scope, check)
    return None


def _positive(
    node: tree.ExprNode, scope: Scope, check: Check, message: str, tag: str, zero: bool = False
) -> int:
    expr = check(node, scope)
    if not isinstance(expr, typed.IntConst) or expr.value < (0 if zero else 1):
        raise DError(message, node.span, tag)
    return expr.value


def _limited(frames: int, node: tree.CallNode) -> int:
    if frames > MOST_FRAMES:
        message = f"a stack of {frames} frames is too large"
        raise DError(message, node.span, "D_STACK_SIZE", f"at most {MOST_FRAMES}")
    return frames


def _stack_frames(node: tree.CallNode, scope: Scope, check: Check) -> int:
    if not node.arguments:
        return _limited(scope.environment.stackframes, node)
    if len(node.arguments) > 1:
        message = "stack( ) prototype mismatch: too many arguments"
        raise DError(message, node.span, "D_STACK_PROTO")
    message = "stack( ) size must be a non-zero positive integral constant expression"
    return _limited(_positive(node.arguments[0], scope, check, message, "D_STACK_SIZE"), node)


def _user_frames(name: str, node: tree.CallNode, scope: Scope, check: Check) -> int:
    """Return the number of frames that a call of ustack() or jstack() asks for. In kinst, jstack()
    differs from ustack() only in the default number: kinst does not name Java frames, because only
    the Java process knows their names (Dynamic Tracing Guide, "jstack()").
    """
    if not node.arguments:
        environment = scope.environment
        java = name == "jstack"
        return _limited(environment.jstackframes if java else environment.ustackframes, node)
    if len(node.arguments) > 2:
        message = f"{name}( ) prototype mismatch: too many arguments"
        raise DError(message, node.span, "D_USTACK_PROTO")
    message = f"{name}( ) argument #1 must be a non-zero positive integer constant"
    frames = _positive(node.arguments[0], scope, check, message, "D_USTACK_FRAMES")
    if len(node.arguments) == 2:  # bytes for names that the process supplies, which kinst ignores
        message = f"{name}( ) argument #2 must be a positive integer constant"
        _positive(node.arguments[1], scope, check, message, "D_USTACK_STRSIZE", zero=True)
    return _limited(frames, node)


def _symbol_data(name: str, node: tree.CallNode, scope: Scope, check: Check) -> typed.Expr:
    expect_arguments(node, 1, 1)
    address = check(node.arguments[0], scope)
    if not is_scalar(address.type):
        message = (
            f"{name}( ) argument #1 is incompatible with prototype: prototype: uintptr_t, "
            f"argument: {address.type}"
        )
        raise DError(message, address.span, "D_PROTO_ARG")
    return typed.RecordedSymbol(SymbolType(name), node.span, cast(address, UINT64))
