"""args[]: the arguments of a probe with their types (Dynamic Tracing Guide, "args"; errors as in
libdtrace's dt_idcook_args)."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import INT64, UINT8, DType, IntType, PointerType
from kinst.core.errors import DError, KinstError
from kinst.core.probe import ProbePattern
from kinst.dlang import typed
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast
from kinst.dlang.types.typenames import is_bool

BUILTINS = 10  # arg0 to arg9


def read(node: tree.Index, scope: Scope, check: Check) -> typed.Expr:
    """args[index].  Raises DError D_PROTO_LEN, D_PROTO_ARG, D_ARGS_NONE, D_ARGS_MULTI,
    D_ARGS_IDX, D_ARGS_TYPE."""
    span, count = node.span, len(node.arguments)
    if count != 1:
        message = f"args[ ] prototype mismatch: {count} args passed, 1 expected"
        raise DError(message, span, "D_PROTO_LEN")
    index = check(node.arguments[0], scope)
    if not isinstance(index, typed.IntConst):
        raise DError(
            "args[ ] argument #1 is incompatible with prototype: prototype: integer constant, "
            f"argument: {index.type}",
            index.span,
            "D_PROTO_ARG",
        )
    if not scope.patterns:
        message = "args[ ] may not be referenced outside of a probe clause"
        raise DError(message, span, "D_ARGS_NONE")
    # The parser makes a clause of each description; several stand for places of one probe.
    found = _type_of(scope.patterns[0], index.value, node, scope)
    value: typed.Expr = typed.Builtin(INT64, span, f"arg{index.value}")
    # Of a bool only the low byte is passed (System V psABI).
    value = cast(value, UINT8) if is_bool(found) else value
    return cast(value, found)


def _nothing(pattern: ProbePattern) -> Sequence[DType] | None:
    return ()


def _has_none(pattern: ProbePattern) -> bool:
    """Whether a description means probes without arguments, whatever the kernel is."""
    own = pattern.name in ("BEGIN", "END", "ERROR") and not pattern.function
    return pattern.provider == "kinst" or (own and pattern.provider in ("", "dtrace"))


def _type_of(pattern: ProbePattern, index: int, node: tree.Index, scope: Scope) -> DType:
    """The type of one argument of the probes that a description means."""
    known = _nothing if _has_none(pattern) else scope.environment.arguments
    try:
        types = known(pattern) if known is not None else None
    except KinstError as error:
        message = f"failed to resolve native type for {pattern} args[{index}]: {error.message}"
        raise DError(message, node.span, "D_ARGS_TYPE", error.hint) from error
    if types is None:
        message = (
            f"args[ ] may not be referenced because probe description {pattern} matches an"
            " unstable set of probes"
        )
        raise DError(message, node.span, "D_ARGS_MULTI", "arg0 to arg9 have no types")
    if not 0 <= index < min(len(types), BUILTINS):
        message = f"index {index} is out of range for {pattern} args[ ]"
        hint = f"it has {len(types)}" if types else "it has no arguments"
        raise DError(message, node.span, "D_ARGS_IDX", hint)
    type_ = types[index]
    if not isinstance(type_, IntType | PointerType):
        message = f"failed to resolve native type for {pattern} args[{index}]: it is {type_}"
        raise DError(message, node.span, "D_ARGS_TYPE", "it is not passed in a register")
    return type_
