"""The call of speculation()."""

from __future__ import annotations

from kinst.core.dtypes import INT
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.syntax import tree

NEW = "speculation()"  # its name as a typed.Builtin, which it is like


def new(node: tree.Call) -> typed.Expr:
    """speculation()."""
    if node.arguments:
        passed = len(node.arguments)
        args = "1 arg" if passed == 1 else f"{passed} args"
        message = f"speculation( ) prototype mismatch: {args} passed, 0 expected"
        raise DError(message, node.span, "D_PROTO_LEN")
    return typed.Builtin(INT, node.span, NEW)
