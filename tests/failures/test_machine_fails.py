"""The machine fails, once or for ever, at each of its calls in turn.

Then the kernel's text is restored and no breakpoint is left, or the messages report how many sites
may still be planted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kinst.core.errors import KinstError, TargetError
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import trace
from tests.tiers import ISAS

BROKEN = "the line is broken"
WORKLOAD = [Call("leaf", (2, 1), 0), Call("leaf", (1, 2), 1)]
PROGRAM = "kinst::leaf: { @ = count(); }"


class Failing:
    """A machine whose calls raise an error if fails(number of the call, from 1) is true."""

    def __init__(
        self, machine: FakeMachine, fails: Callable[[int], bool],
        error: Callable[[], BaseException] = lambda: TargetError(BROKEN),
    ) -> None:  # fmt: skip
        self._machine, self._fails, self._error = machine, fails, error
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._machine, name)
        if not callable(value) or name == "close":
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            if self._fails(len(self.calls)):
                raise self._error()
            return value(*arguments, **named)

        return call


def outcome(isa: str, way: str, fails: Callable[[int], bool]) -> tuple[list[str], bool, list[str]]:
    """Return (the machine's calls, whether nothing is left in the kernel, messages and the
    error)."""
    machine = FakeMachine(isa)
    before = machine.text
    failing = Failing(machine, fails)
    said: list[str] = []
    try:
        trace(machine, PROGRAM, WORKLOAD, settings={"plant": way}, target=failing, said=said)
    except KinstError as error:
        said.append(str(error))
    assert machine.closed
    return failing.calls, machine.text == before and not machine.breakpoints, said


WAYS = ("auto", "trap", "stop", "no-run")  # auto: by jumps and runs
SLOW = pytest.mark.slow
# Unplanting and its messages do not depend on the ISA: a few tests of the other ISAs check that.
QUICK = {
    ("amd64", "auto", "once"), ("amd64", "stop", "for ever"), ("arm64", "auto", "for ever"),
    ("riscv64", "stop", "once"),
}  # fmt: skip
FULL = {("amd64", "auto", "for ever"), ("amd64", "stop", "once")}
EVERY = [(isa, way, lasts) for isa in ISAS for way in WAYS for lasts in ("once", "for ever")]


@pytest.mark.parametrize(
    ("isa", "way", "lasts"),
    [
        pytest.param(*one, marks=() if one in QUICK else pytest.mark.full if one in FULL else SLOW)
        for one in EVERY
    ],
)
def test_every_failure_is_undone_or_told(isa: str, way: str, lasts: str) -> None:
    calls, clean, _ = outcome(isa, way, lambda _: False)
    assert clean
    wrong = []
    for number, name in enumerate(calls, 1):
        _, clean, said = outcome(isa, way, failing_at(number, lasts))
        told = any("may still be planted" in text for text in said)
        if (not clean and not told) or (lasts == "once" and (not clean or told)):
            wrong.append(f"call {number}, {name}: clean {clean}, said {said}")
        elif not clean and not any(BROKEN in text for text in said):
            wrong.append(f"call {number}, {name}: the reason is not said: {said}")
    assert not wrong, "\n".join(wrong)


def failing_at(number: int, lasts: str) -> Callable[[int], bool]:
    """Return a function for Failing: true at this call, and at all later ones if it lasts for
    ever."""
    return lambda call: call == number or (lasts == "for ever" and call > number)


class TornError(Exception):
    """An exception that no code of kinst expects."""


# Errors that can happen to kinst itself: no memory, no descriptor, and an unforeseen exception.
ERRORS: list[Callable[[], BaseException]] = [
    MemoryError,
    lambda: OSError(errno.EMFILE, "Too many open files"),
    lambda: TornError("a defect"),
    KeyboardInterrupt,
]
QUICK_ERROR = ("amd64", "auto", 2)


@pytest.mark.parametrize(
    ("isa", "way", "number"),
    [
        pytest.param(isa, way, number, marks=() if (isa, way, number) == QUICK_ERROR else SLOW)
        for isa in ISAS
        for way in WAYS
        for number in range(len(ERRORS))
    ],
)
def test_whatever_is_raised_the_text_is_restored(isa: str, way: str, number: int) -> None:
    """The exception is raised once, in place of the answer to each of the machine's calls.

    kinst raises it, or an error that it caused, and the kernel's text is restored.
    """
    calls, clean, _ = outcome(isa, way, lambda _: False)
    assert clean
    wrong = []
    for at, name in enumerate(calls, 1):
        machine = FakeMachine(isa)
        before = machine.text
        failing = Failing(machine, lambda call, at=at: call == at, ERRORS[number])  # type: ignore[misc]
        said: list[str] = []
        try:
            trace(machine, PROGRAM, WORKLOAD, settings={"plant": way}, target=failing, said=said)
        except (KinstError, MemoryError, OSError, TornError, KeyboardInterrupt) as error:
            said.append(repr(error))
        if machine.text != before or machine.breakpoints or not machine.closed:
            told = any("may still be planted" in text for text in said)
            wrong.append(f"call {at}, {name}: told {told}, {said}")
    assert not wrong, "\n".join(wrong)
