"""errno: the error of a system call (Dynamic Tracing Guide, "Built-in Variables").

Linux keeps no error number in a thread: functions return the negative of one.  So it is known where
a function returns, and nowhere else.
"""

from __future__ import annotations

from kinst.core.dtypes import INT, INT64, UINT64
from kinst.core.errors import DError, Span
from kinst.core.probe import ProbePattern
from kinst.dlang import typed
from kinst.dlang.check.scope import Scope
from kinst.dlang.types.convert import binary, cast, constant, logical, unary

NAME = "errno"
_MOST = 4095  # MAX_ERRNO (include/linux/err.h)


def read(span: Span, scope: Scope) -> typed.Expr:
    """errno in a clause whose probes are all fbt::F:return.  Raises DError D_IDENT_UNDEF.

    An int of a function leaves the upper half of its register as it is, or 0."""
    others = [p for p in scope.patterns if not _is_return(p)]
    if others or not scope.patterns:
        where = f" at {others[0]}" if others else " outside of a probe clause"
        raise DError(
            f"errno is not available{where}: Linux keeps none in the thread",
            span,
            "D_IDENT_UNDEF",
            "fbt::F:return has the error that F returns",
        )
    value = typed.Builtin(INT64, span, "arg1")
    fails = logical("||", _from(value, -_MOST), _from(value, (1 << 32) - _MOST), span)
    error = unary("-", cast(value, INT), INT, span)
    return typed.Conditional(INT, span, fails, error, constant(0, INT, span))


def _from(value: typed.Expr, least: int) -> typed.Expr:
    """Whether value is one of the MAX_ERRNO numbers from least on."""
    span = value.span
    above = binary("-", cast(value, UINT64), constant(least, UINT64, span), UINT64, span)
    return binary("<", above, constant(_MOST, UINT64, span), INT, span)


def _is_return(pattern: ProbePattern) -> bool:
    return pattern.provider in ("", "fbt") and pattern.name == "return"
