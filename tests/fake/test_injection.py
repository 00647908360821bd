"""The D program of `kinst inject` on the fake machine: exactly the n-th call below a function
fails, as the results of the function show."""

from __future__ import annotations

import re

import pytest

from kinst.core.dialect import TrialFacts
from kinst.isa import load
from kinst.systems.linux.dialect import dialect
from kinst.trials.failures import ErrorValue
from kinst.trials.programs import LISTING, injection_program
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import trace
from tests.tiers import ISAS

pytestmark = pytest.mark.parametrize("isa", ISAS)

COUNT, ERROR = 6, -12
BASE = 1_000_000_000


def facts() -> TrialFacts:
    """Return how the workload tells the number of a try: as the argument of add_atomic()."""
    found = dialect().trials
    assert found is not None
    return TrialFacts(
        found.script, BASE, "fbt::add_atomic:entry", "arg0", found.no_memory, found.signs
    )


def program(isa: str, kept: str) -> str:
    known = load(isa)
    pointer = next(r.d_name for r in known.registers if r.slot == known.sp_slot)
    value = ErrorValue("-ENOMEM", "integer", ERROR, -ERROR)
    flags = {("", "leaf"): kept} if kept else {}
    return injection_program(facts(), {value: [("", "leaf")]}, [("", "work")], pointer, flags)


def work(count: int, failing: int) -> int:
    """Return the result of work() (tests/fake/kernel.c), whose call number `failing` of leaf()
    fails."""
    total = 0
    for i in range(count):
        mixed = i * 3 + total
        if mixed & 1:
            mixed ^= 0x55
        total += ERROR if i + 1 == failing else mixed + 2 * i
    return total


def tell(number: int) -> Call:
    return Call("add_atomic", (BASE + number,))


def run(isa: str, *calls: Call, kept: str = "") -> list[tuple[int, ...]]:
    """Trace the workload, and return the numbers of each record.

    Args:
        kept: a D expression that is true for calls of leaf() that must not fail; "" if all may.
    """
    machine = FakeMachine(isa)
    before = machine.text
    settings = {"destructive": ""}
    text = re.sub(r"trace\((.*?)\);", r'printf(" %d", \1);', program(isa, kept))
    text = re.sub(r"stack\(\d*\);", r'printf("\\n");', text)
    out = trace(machine, text, calls, settings=settings).out
    assert machine.text == before
    return [tuple(map(int, line.split())) for line in out.splitlines() if line.strip()]


@pytest.mark.parametrize("number", [1, 2, COUNT])
def test_exactly_the_numbered_call_fails(isa: str, number: int) -> None:
    """Calls that are not below work() do not count, and later calls do not fail."""
    workload = [
        Call("leaf", (1, 2)), tell(number), Call("leaf", (1, 2)), Call("choose", (4, 1)),
        Call("work", (COUNT,)), Call("work", (COUNT,)),
    ]  # fmt: skip
    found = run(isa, *workload)
    assert [one[:2] for one in found] == [(2, number), (3, number)]
    assert found[1][2] == work(COUNT, number) != work(COUNT, 0)


def test_the_count_goes_on_over_several_calls_of_the_function(isa: str) -> None:
    found = run(isa, tell(COUNT + 2), Call("work", (COUNT,)), Call("work", (COUNT,)))
    assert [one[:2] for one in found] == [(2, COUNT + 2), (3, COUNT + 2)]
    assert found[1][2] == work(COUNT, 2)


def test_nothing_fails_without_a_number_or_after_it(isa: str) -> None:
    assert run(isa, Call("work", (COUNT,))) == []
    assert run(isa, tell(1), tell(0), Call("work", (COUNT,))) == []
    assert run(isa, tell(COUNT + 1), Call("work", (COUNT,))) == []


def test_calls_that_must_not_fail_are_listed_apart_and_not_counted(isa: str) -> None:
    """work() gives leaf() the number of the call, from 0, as the second argument."""
    calls = Call("work", (COUNT,))
    found = run(isa, tell(LISTING), calls, kept="arg1 & 1")
    assert found == [(1, 1), (5, 1), (1, 2), (5, 2), (1, 3), (5, 3)]
    found = run(isa, tell(2), calls, kept="arg1 & 1")
    assert [one[:2] for one in found] == [(2, 2), (3, 2)]
    assert found[1][2] == work(COUNT, 3)


def test_the_calls_are_listed(isa: str) -> None:
    found = run(isa, tell(LISTING), Call("leaf", (1, 2)), Call("work", (3,)))
    assert found == [(1, 1), (1, 2), (1, 3)]
