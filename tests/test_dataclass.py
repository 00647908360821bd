"""kinst.core.dataclass makes the same classes as dataclasses.dataclass."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pprint import pformat
from typing import Any

import pytest

from kinst.core import dataclass as own
from kinst.core.probe import ProbeName

lazy: Callable[..., Any] = vars(own)["dataclass"]
OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


def made(decorator: Callable[..., Any], options: dict[str, bool]) -> Any:
    """Return a decorated subclass of a decorated class."""

    class Base:
        """A base."""

        first: int
        second: list[int] = dataclasses.field(default_factory=list, repr=False)

    base: Any = decorator(**options)(Base)

    class Derived(base):  # type: ignore[misc]
        """A class that inherits fields."""

        third: str = dataclasses.field(default="c", compare=False)
        alone: int = dataclasses.field(default=7, kw_only=True)

        def __str__(self) -> str:
            return f"<{self.first}>"

    return decorator(**options)(Derived)


def outcome(work: Callable[[], Any]) -> Any:
    """Return what a call returns, or the type of the exception that it raises."""
    try:
        return work()
    except Exception as error:
        return type(error)


def seen(cls: Any) -> list[Any]:
    """Return everything observable of a class that made() returned."""
    one, other, same = cls(1, [2]), cls(2), cls(1, [2], "d")
    return [
        repr(one), str(one), pformat(one, width=20), one == same, one == other,
        one == 1, one != same,
        outcome(lambda: cls(1, (2,), alone=3)), outcome(cls), outcome(lambda: cls(1, 2, 3, 4)),
        outcome(lambda: cls(1, nothing=1)), outcome(lambda: setattr(other, "first", 9)),
        outcome(lambda: delattr(other, "first")), outcome(lambda: other.first),
        dataclasses.replace(one, first=5).first, dataclasses.replace(one).second,
        dataclasses.astuple(one), dataclasses.asdict(one), cls.__match_args__,
        hasattr(one, "__dict__"), copy.copy(one).first, copy.deepcopy(one).second,
        [field.name for field in dataclasses.fields(cls)], cls(3).second is cls(3).second,
        cls.__hash__ is None,
    ]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_instances_are_as_those_of_the_standard_library(options: dict[str, bool]) -> None:
    expected = seen(made(dataclasses.dataclass, options))
    assert repr(seen(made(lazy, options))) == repr(expected)


def test_equal_frozen_instances_have_one_hash() -> None:
    @lazy(frozen=True, slots=True)
    class Key:
        """A key."""

        name: str
        number: int
        shown: str = dataclasses.field(default="", compare=False)

    one, other, third = Key("a", 1), Key("a", 1, "x"), Key("b", 1)
    assert hash(one) == hash(other) == hash(("a", 1))
    assert len({one, other, third}) == 2


def test_methods_are_compiled_when_they_are_first_called() -> None:
    cls = made(lazy, {"frozen": True, "slots": True, "eq": True})
    before = cls.__init__
    cls(1)
    assert cls.__init__ is not before
    assert cls.__init__.__code__.co_varnames[:2] == ("self", "first")


def test_pickled_and_back() -> None:
    name = ProbeName("fbt", "vmlinux", "vfs_read", "entry")
    assert pickle.loads(pickle.dumps(name)) == name
