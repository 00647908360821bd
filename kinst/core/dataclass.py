"""A dataclass decorator that costs less at start: it examines the fields of a class and compiles
its methods when they are first used.

dataclasses.dataclass() examines each field, compiles six functions for each class and makes a
signature for a class without a docstring. For kinst's 500 classes that took longer than everything
else that happens until a program is checked, although one run of the command creates instances of
only a few dozen classes.

Tested by tests/test_dataclass.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, frozen=False, slots=False, eq=True):
        """Make a class a dataclass, as dataclasses.dataclass() with these arguments does, but
        examine its fields and compile its methods later.

        Annotations must be strings (from __future__ import annotations).
        """

        def decorate(cls):
            return _decorated(cls, frozen=frozen, slots=slots, eq=eq)

        return decorate if cls is None else decorate(cls)


FIELDS = "__dataclass_fields__"  # where dataclasses.fields() and is_dataclass() look
CELL = "__kinst_fields__"  # where the _Cell of a class is
Fields = dict[str, dataclasses.Field[Any]]


@dataclasses.dataclass(frozen=True)
class _Parameters:
    """Value of the attribute __dataclass_params__ of a class. From it dataclasses.dataclass()
    learns whether a base class is frozen, and pprint whether __repr__() was generated.
    """

    frozen: bool
    repr: bool = True


class _Cell:
    """A class, with the fields that the class itself declares (not those of its base classes).

    Attributes:
        cls: the class; set when it has been created.
        annotations: name of each such field -> its type.
        defaults: name of a field -> its default value, or the result of dataclasses.field().
    """

    __slots__ = ("annotations", "cls", "defaults")
    cls: type

    def __init__(self, annotations: dict[str, str], defaults: dict[str, Any]) -> None:
        self.annotations, self.defaults = annotations, defaults


class _Field(NamedTuple):
    """The facts about a field that the generated methods of its class depend on. They have the
    names and meanings of the attributes of dataclasses.Field.
    """

    name: str
    default: Any = dataclasses.MISSING
    default_factory: Any = dataclasses.MISSING
    repr: bool = True
    compare: bool = True
    kw_only: bool = False


class _LateAttribute:
    """Attribute of a class that is computed when it is first read."""

    __slots__ = ("_cell", "_name", "_value")

    def __init__(self, cell: _Cell, name: str, value: Callable[[type], Any]) -> None:
        self._cell, self._name, self._value = cell, name, value

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        cls = self._cell.cls
        value = self._value(cls)
        setattr(cls, self._name, value)
        return value


def _decorated(cls: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    space = dict(cls.__dict__)
    annotations = {
        name: kind
        for name, kind in space.get("__annotations__", {}).items()
        if "ClassVar" not in kind
    }
    defaults = {name: space[name] for name in annotations if name in space}
    cell = _Cell(annotations, defaults)
    added: dict[str, Any] = {
        "__init__": _later(cell, "__init__", _init, frozen),
        "__repr__": _repr,
        "__match_args__": _LateAttribute(cell, "__match_args__", _match_args),
    }
    if eq:
        added["__eq__"] = _later(cell, "__eq__", _eq, frozen)
        added["__hash__"] = _later(cell, "__hash__", _hash, frozen) if frozen else None
        if space.get("__hash__", cls) is None:
            del space["__hash__"]  # Python's, because the class has an __eq__ of its own
    if frozen:
        added |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:
            added |= {"__getstate__": _state, "__setstate__": _set_state}
    added = {name: value for name, value in added.items() if name not in space}
    added[CELL] = cell
    added[FIELDS] = _LateAttribute(cell, FIELDS, _fields_of)
    added["__dataclass_params__"] = _Parameters(frozen)
    if slots:
        for name in ("__dict__", "__weakref__", *defaults):
            space.pop(name, None)
        space["__qualname__"], space["__slots__"] = cls.__qualname__, _slots(cls, annotations)
        cell.cls = type(cls)(cls.__name__, cls.__bases__, space | added)
        return cell.cls
    for name, value in defaults.items():
        if isinstance(value, dataclasses.Field):
            if value.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, value.default)
    for name, value in added.items():
        setattr(cls, name, value)
    cell.cls = cls
    return cls


def _slots(cls: type, annotations: dict[str, str]) -> tuple[str, ...]:
    """Return the names of the fields for which no base class has a slot."""
    names, taken = dict[str, None](), set[str]()
    for base in reversed(cls.__mro__[1:-1]):
        slots = base.__dict__.get("__slots__")
        if slots is None:
            names |= dict.fromkeys(getattr(base, FIELDS, ()))
        else:
            taken |= {slots} if isinstance(slots, str) else {*slots}
    return tuple(name for name in names | dict.fromkeys(annotations) if name not in taken)


def _fields_of(cls: type) -> Fields:
    """Return the fields of a class and of its base classes by name, for functions of
    dataclasses."""
    cell: _Cell = cls.__dict__[CELL]
    space = {
        "__annotations__": cell.annotations,
        "__module__": cls.__module__,
        "__doc__": cls.__name__,  # without a docstring, dataclass() makes a signature
        **cell.defaults,
    }
    bare = dataclasses.dataclass(init=False, repr=False, eq=False)
    fields: Fields = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= getattr(base, FIELDS, {})
    own: Fields = getattr(bare(type(cls.__name__, (), space)), FIELDS)
    return fields | own


def _fields_for_methods(cls: type) -> list[_Field]:
    """Return the fields of a class and of its base classes, in order.

    _fields_of() takes ten times as long, and most classes are only instantiated.
    """
    fields: dict[str, _Field] = {}
    for base in reversed(cls.__mro__[:-1]):
        cell = base.__dict__.get(CELL)
        if cell is not None:
            for name in cell.annotations:
                fields[name] = _read(name, cell.defaults.get(name, dataclasses.MISSING))
        elif FIELDS in base.__dict__:  # made by dataclasses.dataclass()
            fields |= {one.name: _read(one.name, one) for one in dataclasses.fields(base)}
    return list(fields.values())


def _read(name: str, default: Any) -> _Field:
    """Return the facts about a field, from its name and the value that the class assigns to it: a
    default value, or the result of dataclasses.field().

    Raises:
        ValueError: instances would share a default value that can be changed.
    """
    if isinstance(default, dataclasses.Field):
        return _Field(
            name, default.default, default.default_factory, default.repr,
            default.compare, default.kw_only is True,
        )  # fmt: skip
    if default.__class__.__hash__ is None:
        raise ValueError(f"mutable default {type(default)} for field {name}: use default_factory")
    return _Field(name, default)


def _match_args(cls: type) -> tuple[str, ...]:
    return tuple(one.name for one in _fields_for_methods(cls) if not one.kw_only)


def _later(
    cell: _Cell,
    name: str,
    text_of: Callable[[list[_Field], bool], str],
    frozen: bool,
) -> Callable[..., Any]:
    """Return a method that compiles the real method when first called, replaces itself by it, and
    calls it.

    Args:
        cell: gets the class after this call, but before the method is called.
        name: name of the method.
        text_of: returns the source text of the real method, from the fields and `frozen`.
        frozen: whether instances are immutable.
    """

    def method(self: object, *args: Any, **values: Any) -> Any:
        cls = cell.cls
        fields = _fields_for_methods(cls)
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


def _init(fields: list[_Field], frozen: bool) -> str:
    arguments, lines = ["self"], ["    pass"]
    for one in sorted(fields, key=lambda one: one.kw_only):
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


def _compared(fields: list[_Field], of: str) -> str:
    return "(" + "".join(f"{of}.{one.name}, " for one in fields if one.compare) + ")"


def _eq(fields: list[_Field], _frozen: bool) -> str:
    return (
        "def __eq__(self, other):\n"
        "    if other.__class__ is not self.__class__:\n"
        "        return NotImplemented\n"
        f"    return {_compared(fields, 'self')} == {_compared(fields, 'other')}"
    )


def _hash(fields: list[_Field], _frozen: bool) -> str:
    return f"def __hash__(self):\n    return hash({_compared(fields, 'self')})"


def _text(self: Any) -> str:
    shown = [one.name for one in dataclasses.fields(self) if one.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


_repr: Any = recursive_repr()(_text)
# pprint writes a field on each line only if it finds here a function that dataclasses made.
_text.__qualname__ = "__create_fn__.<locals>.__repr__"
_repr.__wrapped__ = _text


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
