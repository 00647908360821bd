"""speculation(), speculate(), commit() and discard(), and which actions may follow which (Dynamic
Tracing Guide, "Speculative Tracing"; libdtrace's dt_stmt_append())."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import UINT64
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check.actions_effects import is_destructive
from kinst.dlang.check.expressions import check
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast, is_integer


def about(node: tree.Call, scope: Scope) -> typed.Action:
    """speculate(id), commit(id), discard(id)."""
    assert isinstance(node.function, tree.Name)
    name, passed = node.function.name, len(node.arguments)
    if passed != 1:
        args = "1 arg" if passed == 1 else f"{passed} args"
        message = f"{name}( ) prototype mismatch: {args} passed, 1 expected"
        raise DError(message, node.span, "D_PROTO_LEN")
    identifier = check(node.arguments[0], scope)
    if not is_integer(identifier.type):
        message = (
            f"{name}( ) argument #1 is incompatible with prototype: prototype: int, "
            f"argument: {identifier.type}"
        )
        raise DError(message, identifier.span, "D_PROTO_ARG")
    number = typed.Speculation(UINT64, node.span, name, cast(identifier, UINT64))
    return typed.Perform(node.span, name, (number,))


def _kind(action: typed.Action) -> str:
    if isinstance(action, typed.Perform) and action.name in ("speculate", "commit", "discard"):
        return action.name
    if isinstance(action, typed.Aggregate):
        return "aggregate"
    if isinstance(action, typed.Exit):
        return "exit"
    if isinstance(action, typed.Evaluate):
        return "nothing"
    return "destructive" if is_destructive(action) else "records"


def _wrong(kind: str, done: set[str]) -> tuple[str, str] | None:
    """(tag, message) when an action of this kind may not follow those done before."""
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
    """Raise DError D_SPEC_*, D_COMM_*, D_DREC_COMM, D_AGG_*, D_EXIT_SPEC, D_ACT_SPEC for an
    action of a clause that may not follow those before it."""
    done: set[str] = set()
    for action in actions:
        kind = _kind(action)
        wrong = _wrong(kind, done)
        if wrong is not None:
            raise DError(wrong[1], action.span, wrong[0])
        if kind == "aggregate" or (kind == "records" and "speculate" not in done):
            done.add("records")
        done.add(kind)
