"""Strings as pointers to their characters: s[i], *s, s + n, n + s, s - n (libdtrace's
dt_cook_op2(), where + and - take strings for pointers, and a string is an array of char).

A sum is a string again, the one that begins there.  What has no one address here, as kinst may
keep a string in several places, is refused: &s[i], and the difference of two strings.
"""

from __future__ import annotations

from kinst.core.dtypes import CHAR, PointerType, StringType
from kinst.core.errors import Span
from kinst.dlang import typed
from kinst.dlang.check.operators import move
from kinst.dlang.types.convert import cast, is_integer, is_string
from kinst.dlang.types.members import decayed, string_place


def as_pointer(expr: typed.Expr) -> typed.Expr:
    """What arrays and strings are where they are indexed and dereferenced; others as they are."""
    place = decayed(string_place(expr))
    if not is_string(place.type):
        return place
    if isinstance(place, typed.Load):  # the string at an address: not copied for it
        return cast(place.address, PointerType(CHAR))
    return typed.Cast(PointerType(CHAR), expr.span, place)


def arithmetic(op: str, left: typed.Expr, right: typed.Expr, span: Span) -> typed.Expr | None:
    """left op right where one is a string and the other fits it; None for anything else."""
    a, b = is_string(left.type), is_string(right.type)
    if a and is_integer(right.type) and op in ("+", "-"):
        return typed.Load(StringType(), span, move(op, as_pointer(left), right, span))
    if b and is_integer(left.type) and op == "+":
        return typed.Load(StringType(), span, move(op, left, as_pointer(right), span))
    return None
