"""Checker of statements: actions, aggregating statements, expressions (Dynamic Tracing Guide,
"Actions and Subroutines"; errors as in libdtrace's dt_cc.c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.core.dtypes import CHAR, INT, INT64, UINT64, DumpType, PointerType, StringType, VoidType
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check.aggregating import (
    Aggregations,
    Unfinished,
    aggregate,
    clear,
    normalize,
    parts_of,
    printa,
    trunc,
)
from kinst.dlang.check.calls import (
    STACKS,
    SYMBOLS,
    data_expression,
    destructive_calls,
    expect_arguments,
)
from kinst.dlang.check.expansions import as_structure
from kinst.dlang.check.expressions import check, is_aggregation, undecayed, with_size, without_void
from kinst.dlang.check.formats import (
    PrintedValue,
    bind_format,
    is_wide_text,
    parse_format,
    takes_wide_text,
)
from kinst.dlang.check.members import char_array_of
from kinst.dlang.check.scope import Scope, Translation
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.unparse import unparse_expression
from kinst.dlang.types.conversions import cast, is_integer, is_scalar, is_string
from kinst.dlang.vocabulary import builtins
from kinst.dlang.walk import expressions

LAST_WORDS = b"kinst: panic() in a D program"  # of a kernel that panic() ends
MOST_OFFSET = (1 << 31) - 1024  # of goto()

REFUSED = {
    "breakpoint": "the kernel in the VM has no debugger of its own; kinst is attached to it",
}


def is_destructive(action: typed.Action) -> bool:
    """Return whether an action needs the option -w."""
    if isinstance(action, typed.PerformAction):
        return action.name in ("system", "freopen")
    return isinstance(
        action,
        typed.ChillAction
        | typed.RefusedAction
        | typed.PerturbAction
        | typed.PanicAction
        | typed.RaiseAction,
    )


def destructive_name(action: typed.Action) -> str:
    """Return the name in D of a destructive action, such as "system( )" or "regs[ ] ="."""
    match action:
        case typed.PerformAction() | typed.RefusedAction():
            return f"{action.name}( )"
        case typed.SetRegisterAction():
            return "regs[ ] ="
        case typed.ReturnAction():
            return "return( )"
        case typed.SkipAction():
            return "skip( )"
        case typed.GotoAction():
            return "goto( )"
        case typed.PanicAction():
            return "panic( )"
        case typed.RaiseAction():
            return "stop( )" if action.signal is None else "raise( )"
    return "chill( )"


def _written(nodes: Sequence[tree.ExprNode]) -> tuple[str, ...]:
    """Return the text of each expression; the texts name the recorded values in the output."""
    return tuple(unparse_expression(node) for node in nodes)


def _mismatch(name: str, number: int, wanted: str, expr: typed.Expr) -> DError:
    message = (
        f"{name}( ) argument #{number} is incompatible with prototype: prototype: {wanted}, "
        f"argument: {expr.type}"
    )
    return DError(message, expr.span, "D_PROTO_ARG")


def _setopt(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 1, 2)
    args = [check(a, scope) for a in node.arguments]
    for number, arg in enumerate(args, 1):
        if not is_string(arg.type):
            raise _mismatch("setopt", number, "string", arg)
    return typed.PerformAction(node.span, "setopt", tuple(args))


def _ftruncate(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 0, 0)
    return typed.PerformAction(node.span, "ftruncate", ())


def _tracemem(node: tree.CallNode, scope: Scope) -> typed.Action:
    """Check a call of tracemem(address, size) or tracemem(address, size, bytes to show), where size
    is constant; return its action.
    """
    passed = len(node.arguments)
    if not 2 <= passed <= 3:
        message = f"tracemem( ) prototype mismatch: {passed} args passed, 2 or 3 expected"
        raise DError(message, node.span, "D_PROTO_LEN" if passed < 2 else "D_TRACEMEM_ARGS")
    address = check(node.arguments[0], scope)
    if not is_scalar(address.type):
        message = (
            "tracemem( ) argument #1 is incompatible with prototype: prototype: pointer or "
            f"integer, argument: {address.type}"
        )
        raise DError(message, address.span, "D_TRACEMEM_ADDR")
    size = check(node.arguments[1], scope)
    if not is_integer(size.type):
        message = (
            "tracemem( ) argument #2 is incompatible with prototype: prototype: size_t, "
            f"argument: {size.type}"
        )
        raise DError(message, size.span, "D_PROTO_ARG")
    if not isinstance(size, typed.IntConst) or not 0 < size.value < 1 << 31:
        message = "tracemem( ) argument #2 must be a non-zero positive integral constant expression"
        raise DError(message, size.span, "D_TRACEMEM_SIZE")
    args: list[typed.Expr] = [
        typed.RecordedMemory(DumpType(size.value), node.span, cast(address, PointerType(CHAR)))
    ]
    if passed == 3:
        shown = check(node.arguments[2], scope)
        if not is_integer(shown.type):
            message = (
                "tracemem( ) argument #3 is incompatible with prototype: prototype: integer, "
                f"argument: {shown.type}"
            )
            raise DError(message, shown.span, "D_TRACEMEM_DYNSIZE")
        args.append(cast(shown, INT64))
    return typed.PerformAction(
        node.span, "tracemem", tuple(args), names=_written(node.arguments[:1])
    )


def _chill(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 1, 1)
    duration = check(node.arguments[0], scope)
    if not is_integer(duration.type):
        raise _mismatch("chill", 1, "int", duration)
    return typed.ChillAction(node.span, cast(duration, UINT64))


def _return(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 1, 1)
    value = check(node.arguments[0], scope)
    if not is_scalar(value.type):
        raise _mismatch("return", 1, "integer or pointer", value)
    return typed.ReturnAction(node.span, value)


def _skip(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 0, 0)
    return typed.SkipAction(node.span)


def _goto(node: tree.CallNode, scope: Scope) -> typed.Action:
    """Check a call of goto(offset); return its action. Raises DError D_PROTO_ARG if the offset is
    not a constant from 0 to MOST_OFFSET.
    """
    expect_arguments(node, 1, 1)
    offset = check(node.arguments[0], scope)
    if not isinstance(offset, typed.IntConst) or not 0 <= offset.value <= MOST_OFFSET:
        raise _mismatch("goto", 1, "offset of an instruction (integer constant)", offset)
    return typed.GotoAction(node.span, offset.value)


def _is_register(node: tree.ExprNode, scope: Scope) -> bool:
    """Return whether an expression is regs[...]."""
    if not isinstance(node, tree.IndexNode) or not isinstance(node.base, tree.NameNode):
        return False
    return node.base.name == "regs" and "regs" not in scope.variables


def _set_register(node: tree.AssignmentNode, scope: Scope) -> typed.Action:
    """Check the statement regs[index] = value, or regs[index] op= value; return its action. Raises
    DError D_OP_LVAL if the register cannot be assigned.
    """
    register = check(node.left, scope)
    assert isinstance(register, typed.RegisterRead)
    assert isinstance(register.index, typed.IntConst)
    index = register.index.value
    reason = scope.environment.fixed_registers.get(index)
    if reason is not None:
        message = f"{unparse_expression(node.left)} cannot be assigned: {reason}"
        raise DError(message, node.left.span, "D_OP_LVAL")
    right = node.right
    if node.op != "=":
        right = tree.InfixNode(node.span, node.op.removesuffix("="), node.left, node.right)
    value = check(right, scope)
    if not is_scalar(value.type):
        message = f"regs[ ] cannot have a value of type {value.type}"
        raise DError(message, value.span, "D_OP_INCOMPAT", "an integer or a pointer")
    return typed.SetRegisterAction(node.span, index, cast(value, UINT64))


def _panic(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 0, 0)
    text = typed.StrConst(StringType(len(LAST_WORDS) + 1), node.span, LAST_WORDS)
    return typed.PanicAction(node.span, text)


def _raise(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 1, 1)
    signal = check(node.arguments[0], scope)
    if not is_integer(signal.type):
        raise _mismatch("raise", 1, "int", signal)
    return typed.RaiseAction(node.span, cast(signal, UINT64))


def _stop(node: tree.CallNode, scope: Scope) -> typed.Action:
    expect_arguments(node, 0, 0)
    return typed.RaiseAction(node.span, None)


def _refused(node: tree.CallNode, scope: Scope) -> typed.Action:
    """Check a call of breakpoint(), which kinst always refuses; return an action with the reason.

    session/check.py raises the error once the whole program is checked. Without -w, the user gets
    another error first: that breakpoint() needs -w.
    """
    assert isinstance(node.function, tree.NameNode)
    name = node.function.name
    expect_arguments(node, 0, 0)
    return typed.RefusedAction(node.span, name, REFUSED[name])


def _speculative(node: tree.CallNode, scope: Scope) -> typed.Action:
    """Check a call of speculate(id), commit(id) or discard(id); return its action."""
    assert isinstance(node.function, tree.NameNode)
    name = node.function.name
    expect_arguments(node, 1, 1)
    identifier = check(node.arguments[0], scope)
    if not is_integer(identifier.type):
        message = (
            f"{name}( ) argument #1 is incompatible with prototype: prototype: int, "
            f"argument: {identifier.type}"
        )
        raise DError(message, identifier.span, "D_PROTO_ARG")
    number = typed.Speculation(UINT64, node.span, name, cast(identifier, UINT64))
    return typed.PerformAction(node.span, name, (number,))


def _kind(action: typed.Action) -> str:
    if isinstance(action, typed.PerformAction) and action.name in (
        "speculate",
        "commit",
        "discard",
    ):
        return action.name
    if isinstance(action, typed.AggregateAction):
        return "aggregate"
    if isinstance(action, typed.ExitAction):
        return "exit"
    if isinstance(action, typed.EvaluateAction):
        return "destructive" if destructive_calls(tuple(expressions(action))) else "nothing"
    return "destructive" if is_destructive(action) else "records"


def _wrong(kind: str, done: set[str]) -> tuple[str, str] | None:
    """Return error tag and message if an action may not follow the earlier actions of its clause;
    None if it may follow them.

    Args:
        kind: the action's kind: "speculate", "commit", "discard", "aggregate", "exit",
            "destructive", "records" for any other action that records data, or "nothing".
        done: the kinds of the earlier actions.
    """
    data = "data-recording action(s)"
    after: dict[str, list[tuple[str, str, str]]] = {
        "commit": [("commit", "D_COMM_COMM", "commit( )"), ("records", "D_COMM_DREC", data)],
        "speculate": [
            ("speculate", "D_SPEC_SPEC", "speculate( )"),
            ("commit", "D_SPEC_COMM", "commit( )"),
            ("records", "D_SPEC_DREC", data),
        ],
        "aggregate": [
            ("speculate", "D_AGG_SPEC", "speculate( )"),
            ("commit", "D_AGG_COMM", "commit( )"),
        ],
        "exit": [("speculate", "D_EXIT_SPEC", "speculate( )")],
        "destructive": [("speculate", "D_ACT_SPEC", "speculate( )")],
        "records": [("commit", "D_DREC_COMM", "commit( )")],
    }
    subject = {
        "aggregate": "aggregating actions",
        "destructive": "destructive actions",
        "records": "data-recording actions",
    }.get(kind, f"{kind}( )")
    for before, tag, what in after.get(kind, []):
        if before in done:
            return tag, f"{subject} may not follow {what}"
    return None


def check_order(actions: Sequence[typed.Action]) -> None:
    """Check that each action of a clause may follow the actions before it.

    Raises DError D_SPEC_*, D_COMM_*, D_DREC_COMM, D_AGG_*, D_EXIT_SPEC or D_ACT_SPEC.
    """
    done: set[str] = set()
    for action in actions:
        kind = _kind(action)
        wrong = _wrong(kind, done)
        if wrong is not None:
            raise DError(wrong[1], action.span, wrong[0])
        if kind == "aggregate" or (kind == "records" and "speculate" not in done):
            done.add("records")
        done.add(kind)


_Handler = Callable[[tree.CallNode, Scope, Aggregations], typed.Action | Unfinished]


def statement(
    node: tree.ExprNode, scope: Scope, aggregations: Aggregations
) -> typed.Action | Unfinished:
    """Check one statement and return its action. If the action depends on aggregations, return a
    function that completes the action once all aggregations of the program are known. Raises
    DError.
    """
    if isinstance(node, tree.AssignmentNode) and is_aggregation(node.left):
        return aggregate(node, scope, aggregations)
    if isinstance(node, tree.AssignmentNode) and _is_register(node.left, scope):
        return _set_register(node, scope)
    if is_aggregation(node):
        name = parts_of(node)[0].name
        message = f"expression has null effect: @{name}"
        raise DError(message, node.span, "D_AGG_NULL", f"@{name} = count() and the like")
    if isinstance(node, tree.CallNode) and isinstance(node.function, tree.NameNode):
        handler = _HANDLERS.get(node.function.name)
        if handler is not None:
            return handler(node, scope, aggregations)
    return typed.EvaluateAction(node.span, without_void(check(node, scope)))


def _trace(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> typed.Action:
    shown = _shown("trace", "D_TRACE", node, scope)
    shown = with_size(node.arguments[0], shown)
    return typed.TraceAction(node.span, shown, _written(node.arguments))


def _print(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> typed.Action:
    shown = char_array_of(_shown("print", "D_PRINT", node, scope))
    return typed.PrintAction(node.span, shown, _written(node.arguments))


def _shown(name: str, prefix: str, node: tree.CallNode, scope: Scope) -> typed.Expr:
    """Check the argument of trace() or print(); return its typed tree. Raises DError <prefix>_AGG,
    <prefix>_DYN, <prefix>_VOID.

    Args:
        name: "trace" or "print".
        prefix: start of the error tags.
    """
    expect_arguments(node, 1, 1)
    argument = node.arguments[0]
    if is_aggregation(argument):
        message = f"{name}( ) may not be applied to an aggregation"
        raise DError(message, argument.span, f"{prefix}_AGG", "did you mean printa()?")
    expr = as_structure(undecayed(argument, scope), scope, check)
    if isinstance(expr, Translation):
        message = f"{name}( ) may not be applied to a translated pointer"
        raise DError(message, argument.span, f"{prefix}_DYN", "use the structure that it points to")
    if isinstance(expr.type, VoidType):
        message = f"{name}( ) may not be applied to a void expression"
        raise DError(message, argument.span, f"{prefix}_VOID")
    return expr


def _printf(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> typed.Action:
    return _formatted("printf", node, scope)


def _formatted(name: str, node: tree.CallNode, scope: Scope) -> typed.PrintfAction:
    """Check a call of an action that takes a format and values, as printf() does; return the call
    as a printf() action. Raises DError D_PROTO_LEN, D_PRINTF_*.
    """
    expect_arguments(node, 1, None)
    first = node.arguments[0]
    if not isinstance(first, tree.StringNode):
        shown_type = "aggregation" if is_aggregation(first) else str(check(first, scope).type)
        raise DError(
            f"{name}( ) argument #1 is incompatible with prototype: "
            f"prototype: string constant, argument: {shown_type}",
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
        whole = undecayed(argument, scope) if wide[number - 2 : number - 1] == [True] else None
        array = whole is not None and is_wide_text(whole.type)
        args.append(whole if whole is not None and array else check(argument, scope))
    values = [PrintedValue(a.type, a.span) for a in args]
    format_, stars = bind_format(name, parsed, values, first.span)
    for at in stars:
        args[at] = cast(args[at], INT)
    return typed.PrintfAction(node.span, format_, tuple(args), _written(node.arguments[1:]))


def _data(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> typed.Action:
    """Check a statement that is a call of stack(), sym() or the like; return the action that
    records the call's value.
    """
    expr = data_expression(node, scope, check)
    assert expr is not None
    return typed.TraceAction(node.span, expr, _written((node,)))


def _effect(
    make: Callable[[tree.CallNode, Scope], typed.Action],
) -> _Handler:
    """Return a handler that calls `make` with the call's syntax tree and the scope. The handler
    ignores the aggregations, which are the third argument of every handler.
    """
    return lambda node, scope, aggregations: make(node, scope)


def _with_format(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> typed.Action:
    """Check a call of system() or freopen(), which take the same arguments as printf(); return its
    action.
    """
    assert isinstance(node.function, tree.NameNode)
    name = node.function.name
    if name == "freopen" and [
        a.value for a in node.arguments if isinstance(a, tree.StringNode)
    ] == [b"."]:  # in libdtrace's records, "." stands for the original output
        raise DError('freopen( ) argument #1 cannot be "."', node.span, "D_FREOPEN_INVALID")
    if name == "freopen" and [
        a.value for a in node.arguments if isinstance(a, tree.StringNode)
    ] == [b""]:
        return typed.PerformAction(node.span, name, (), typed.PrintfFormat("", ()))
    action = _formatted(name, node, scope)
    return typed.PerformAction(node.span, name, action.args, action.format)


def _exit(node: tree.CallNode, scope: Scope, aggregations: Aggregations) -> typed.Action:
    expect_arguments(node, 1, 1)
    status = check(node.arguments[0], scope)
    if not is_integer(status.type):
        raise DError(
            "exit( ) argument #1 is incompatible with prototype: "
            f"prototype: int, argument: {status.type}",
            status.span,
            "D_PROTO_ARG",
        )
    return typed.ExitAction(node.span, cast(status, INT))


_HANDLERS: dict[str, _Handler] = {
    "clear": clear,
    "denormalize": normalize,
    "exit": _exit,
    "normalize": normalize,
    "print": _print,
    "printa": printa,
    "printf": _printf,
    "trace": _trace,
    "trunc": trunc,
    "chill": _effect(_chill),
    "freopen": _with_format,
    "ftruncate": _effect(_ftruncate),
    "goto": _effect(_goto),
    "panic": _effect(_panic),
    "raise": _effect(_raise),
    "return": _effect(_return),
    "skip": _effect(_skip),
    "stop": _effect(_stop),
    "setopt": _effect(_setopt),
    "system": _with_format,
    "tracemem": _effect(_tracemem),
    **dict.fromkeys(("speculate", "commit", "discard"), _effect(_speculative)),
    **dict.fromkeys(REFUSED, _effect(_refused)),
    **dict.fromkeys(STACKS | SYMBOLS, _data),
}

assert frozenset(_HANDLERS) == builtins.ACTIONS
