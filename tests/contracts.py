"""Checks an implementation against its protocol as far as a test can, without a type checker."""

from __future__ import annotations

import inspect
from typing import Any


def members(protocol: type) -> dict[str, Any]:
    """Return the names that a protocol and its parents require; methods with their function, plain
    attributes with None."""
    found: dict[str, Any] = {}
    for part in reversed(protocol.__mro__):
        if getattr(part, "_is_protocol", False):
            for name in getattr(part, "__annotations__", {}):
                found.setdefault(name, None)
            found |= {n: v for n, v in vars(part).items() if inspect.isfunction(v)}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.name != "self"]


def missing(protocol: type, thing: Any, *, methods_only: bool = False) -> list[str]:
    """Return the members of a protocol that a thing lacks, and methods that take other arguments.

    Args:
        methods_only: the thing is a class whose __init__ makes the attributes.
    """
    wrong = []
    for name, method in members(protocol).items():
        if method is None and methods_only:
            continue
        if not hasattr(thing, name):
            wrong.append(f"{name} is missing")
        elif method is not None:
            theirs = getattr(thing, name)
            if not callable(theirs):
                wrong.append(f"{name} is no method")
            elif (asked := _positional(method)) != _positional(theirs)[: len(asked)]:
                wrong.append(f"{name}({', '.join(_positional(theirs))}): asked is {asked}")
    return wrong
