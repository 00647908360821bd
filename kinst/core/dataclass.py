"""A dataclass decorator that costs less at start: it compiles a class's methods when they are first
called.

dataclasses.dataclass() compiles six functions for each class. For kinst's 400 classes that took
longer than everything else that happens until a program is checked, although one run of the command
creates instances of only a few dozen classes.

Tested by tests/test_dataclass.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, frozen=False, slots=False, eq=True):
        """Make a class a dataclass, as dataclasses.dataclass() with these arguments does, but
        compile its methods later."""

        def decorate(cls):
            return _decorated(cls, frozen=frozen, slots=slots, eq=eq)

        return decorate if cls is None else decorate(cls)


def _decorated(cls: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    own = frozenset(cls.__dict__)
    bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)
    made: type = bare(cls)
    methods: dict[str, Any] = {"__init__": _later(made, _init, frozen), "__repr__": _repr}
    if eq:
        methods["__eq__"] = _later(made, _eq, frozen)
        methods["__hash__"] = _later(made, _hash, frozen) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _later(
    cls: type, text_of: Callable[[list[dataclasses.Field[Any]], bool], str], frozen: bool
) -> Callable[..., Any]:
    """Return a method that compiles the real method when first called, replaces itself by it, and
    calls it.

    Args:
        text_of: returns the source text of the real method, from the fields and `frozen`.
    """
    name = f"_{text_of.__name__}__"

    def method(self: object, *args: Any, **values: Any) -> Any:
        fields = list(dataclasses.fields(cls))
        space: dict[str, Any] = {"set_": object.__setattr__, "missing": dataclasses.MISSING}
        for one in fields:
            space[f"default_{one.name}"] = one.default
            space[f"make_{one.name}"] = one.default_factory
        exec(text_of(fields, frozen), space)
        compiled = space[name]
        compiled.__qualname__, compiled.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, compiled)
        return compiled(self, *args, **values)

    return method


def _init(fields: list[dataclasses.Field[Any]], frozen: bool) -> str:
    arguments, lines = ["self"], ["    pass"]
    for one in sorted(fields, key=lambda one: bool(one.kw_only)):
        if one.kw_only and "*" not in arguments:
            arguments.append("*")
        value = one.name
        if one.default is not dataclasses.MISSING:
            arguments.append(f"{one.name}=default_{one.name}")
        elif one.default_factory is not dataclasses.MISSING:
            arguments.append(f"{one.name}=missing")
            value = f"make_{one.name}() if {one.name} is missing else {one.name}"
        else:
            arguments.append(one.name)
        lines.append(
            f"    set_(self, {one.name!r}, {value})" if frozen else f"    self.{one.name} = {value}"
        )
    return f"def __init__({', '.join(arguments)}):\n" + "\n".join(lines)


def _compared(fields: list[dataclasses.Field[Any]], of: str) -> str:
    return "(" + "".join(f"{of}.{one.name}, " for one in fields if one.compare) + ")"


def _eq(fields: list[dataclasses.Field[Any]], _frozen: bool) -> str:
    return (
        "def __eq__(self, other):\n"
        "    if other.__class__ is not self.__class__:\n"
        "        return NotImplemented\n"
        f"    return {_compared(fields, 'self')} == {_compared(fields, 'other')}"
    )


def _hash(fields: list[dataclasses.Field[Any]], _frozen: bool) -> str:
    return f"def __hash__(self):\n    return hash({_compared(fields, 'self')})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [one.name for one in dataclasses.fields(self) if one.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    """Return the field values of a frozen instance with slots, for pickle and copy."""
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, values: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), values, strict=True):
        object.__setattr__(self, one.name, value)
