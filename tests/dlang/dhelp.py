"""Helpers of the tests of the D front end."""

from __future__ import annotations

import dataclasses
from typing import Any

from kinst.codegen.subroutines import prototypes
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.api import Environment, Macros, compile_text
from kinst.dlang.syntax import tree
from kinst.providers import interfaces
from kinst.systems import of_host

REGISTERS = {"R_RAX": 14, "R_RDI": 8, "R_RSI": 9, "R_RSP": 20}
ENVIRONMENT = Environment(
    REGISTERS, 256, providers=interfaces(), dialect=of_host().dialect, subroutines=prototypes()
)


def compile_(text: str, macros: Macros | None = None) -> typed.TypedProgram:
    return compile_text(text, "t.d", macros, ENVIRONMENT)[1]


def actions(body: str, before: str = "") -> tuple[typed.Action, ...]:
    """Return the actions of one clause with this body."""
    return compile_(f"{before}BEGIN {{ {body} }}").clauses[-1].actions


def value(expression: str, before: str = "") -> typed.Expr:
    """Return the typed expression of trace(expression)."""
    action = actions(f"trace(({expression}));", before)[-1]
    assert isinstance(action, typed.TraceAction)
    return action.expr


def error(text: str, macros: Macros | None = None, script: bool = False) -> DError:
    """Return the error that a program raises."""
    try:
        compile_text(text, "t.d", macros, ENVIRONMENT, script=script)
    except DError as found:
        assert str(found.span).startswith("t.d:")
        assert "\n" not in found.message, "errors are one line"
        return found
    raise AssertionError(f"no error in {text!r}")


def without_spans(value: Any) -> Any:
    """Return a tree with every span replaced by the same one, for comparing trees."""
    if isinstance(value, Span):
        return None
    if isinstance(value, tuple):
        return tuple(without_spans(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [without_spans(getattr(value, f.name)) for f in dataclasses.fields(value)]
        return (type(value).__name__, *parts)
    return value


__all__ = [
    "DError",
    "actions",
    "compile_",
    "error",
    "tree",
    "typed",
    "value",
    "without_spans",
]
