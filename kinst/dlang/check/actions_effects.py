"""Actions with effects: on the consumer's side (system, freopen, ftruncate, setopt, tracemem)
and on the traced machine (chill; and those that are refused) (Dynamic Tracing Guide, "Actions
and Subroutines"; errors as in libdtrace's dt_cc.c)."""

from __future__ import annotations

from kinst.core.dtypes import CHAR, INT64, UINT64, DumpType, PointerType, StringType
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check.expressions import check
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast, is_integer, is_scalar, is_string

MOST_CHILL = 500_000_000  # ns, as DTrace: a CPU that is away for longer is taken for dead
REFUSED = {
    "breakpoint": "the kernel in the VM has no debugger of its own; kinst is attached to it",
    "panic": "ending the guest would end the trace with it: exit() ends the trace",
    "raise": "a signal cannot be sent from a probe: it takes locks that the probed code may hold",
    "stop": "a process cannot be stopped from a probe: it takes locks that the probed code may"
    " hold",
}


def is_destructive(action: typed.Action) -> bool:
    """Whether -w must permit it."""
    if isinstance(action, typed.Perform):
        return action.name in ("system", "freopen")
    return isinstance(action, typed.Chill | typed.Refused)


def name_of(action: typed.Action) -> str:
    """What a destructive action is called in D."""
    return action.name if isinstance(action, typed.Perform | typed.Refused) else "chill"


def _count(node: tree.Call, least: int, most: int) -> None:
    passed = len(node.arguments)
    if not least <= passed <= most:
        assert isinstance(node.function, tree.Name)
        args = "1 arg" if passed == 1 else f"{passed} args"
        message = f"{node.function.name}( ) prototype mismatch: {args} passed, {least} expected"
        raise DError(message, node.span, "D_PROTO_LEN")


def _mismatch(name: str, number: int, wanted: str, expr: typed.Expr) -> DError:
    message = (
        f"{name}( ) argument #{number} is incompatible with prototype: prototype: {wanted}, "
        f"argument: {expr.type}"
    )
    return DError(message, expr.span, "D_PROTO_ARG")


def setopt(node: tree.Call, scope: Scope) -> typed.Action:
    _count(node, 1, 2)
    args = [check(a, scope) for a in node.arguments]
    for number, arg in enumerate(args, 1):
        if not is_string(arg.type):
            raise _mismatch("setopt", number, "string", arg)
    return typed.Perform(node.span, "setopt", tuple(args))


def ftruncate(node: tree.Call, scope: Scope) -> typed.Action:
    _count(node, 0, 0)
    return typed.Perform(node.span, "ftruncate", ())


def tracemem(node: tree.Call, scope: Scope) -> typed.Action:
    """tracemem(address, constant size[, size shown])."""
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
        typed.Memory(DumpType(size.value), node.span, cast(address, PointerType(CHAR)))
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
    return typed.Perform(node.span, "tracemem", tuple(args))


def chill(node: tree.Call, scope: Scope) -> typed.Action:
    _count(node, 1, 1)
    duration = check(node.arguments[0], scope)
    if not is_integer(duration.type):
        raise _mismatch("chill", 1, "int", duration)
    return typed.Chill(node.span, cast(duration, UINT64))


def refused(node: tree.Call, scope: Scope) -> typed.Action:
    """panic() and the like: known, so that -w is asked for first, and then refused."""
    assert isinstance(node.function, tree.Name)
    name = node.function.name
    _count(node, *((1, 1) if name == "raise" else (0, 0)))
    for argument in node.arguments:
        if isinstance(check(argument, scope).type, StringType):
            raise _mismatch(name, 1, "int", check(argument, scope))
    return typed.Refused(node.span, name, REFUSED[name])
