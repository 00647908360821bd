"""Instructions planted in batches: all batches together count what one trace counts, and state
that should last from one batch to the next does."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from kinst.errors import KinstError
from kinst.session import batches
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_reference import steps
from tests.fake.fake_tracing import Traced, trace
from tests.tiers import ISAS

FUNCTIONS = ("leaf", "work", "fibonacci", "choose", "exercise")
ONLY = "with -x batch= a program can only aggregate"
SITES = ", ".join(f"kinst::{name}:" for name in FUNCTIONS)
TOLD = re.compile(r"kinst: (\d+) instructions were planted, in (\d+) batches")
WORK = [Call("exercise", (n,), n % 2) for n in range(6)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a batch to a function or two."""
    monkeypatch.setattr(batches, "BYTES", 100)


def in_batches(isa: str, program: str, **more: str) -> Traced:
    return trace(FakeMachine(isa), program, WORK, settings={"batch": "100s", **more})


def expected(isa: str) -> Counter[tuple[str, int]]:
    """Return how often an emulator executes each instruction in the workload, by function and
    offset."""
    symbols = FakeMachine(isa).kernel.symbols
    found: Counter[tuple[str, int]] = Counter()
    for step in steps(isa, WORK, FUNCTIONS):
        for name in FUNCTIONS:
            low, size = symbols[name]
            if low <= step.address < low + size:
                found[name, step.address - low] += 1
    return found


@pytest.mark.parametrize("isa", ISAS)
def test_every_batch_runs_the_workload_once(isa: str) -> None:
    done = in_batches(isa, f"{SITES} {{ @[probefunc, probename] = count(); }}")
    words = done.out.split()
    rows = zip(words[::3], words[1::3], words[2::3], strict=True)
    assert Counter({(f, int(o)): int(n) for f, o, n in rows}) == expected(isa)
    (told,) = (m for line in done.said if (m := TOLD.match(line)))
    assert int(told[1]) >= len(expected(isa))
    assert int(told[2]) > 2


def test_aggregations_go_on() -> None:
    """One key in all batches; a minimum, which is not a sum; BEGIN and END fire once."""
    done = in_batches(
        "amd64",
        f"BEGIN {{ @begun = count(); }} {SITES} {{ @all = count(); @least = min(7); }}"
        " END { @ended = count(); printa(@begun, @all, @least, @ended); }",
    )
    assert done.numbers == [1, sum(expected("amd64").values()), 7, 1]


def test_a_called_clause_goes_on_too() -> None:
    """The clause computes keys, and has a predicate."""
    done = in_batches("amd64", f"{SITES} /regs[R_RSP] != 0/ {{ @[pid * 0 + 3] = sum(2); }}")
    assert done.numbers == [3, 2 * sum(expected("amd64").values())]


@pytest.mark.parametrize("isa", ISAS)
def test_with_less_room_near_the_kernel_than_it_would_take(isa: str) -> None:
    machine = FakeMachine(isa, scratch=60 << 20)
    program = f"{SITES} {{ @ = count(); }}"
    done = trace(machine, program, WORK, settings={"batch": "100s"})
    assert done.numbers == [sum(expected(isa).values())]


def test_with_no_room_it_is_refused() -> None:
    machine = FakeMachine("amd64", scratch=16 << 20)
    with pytest.raises(KinstError, match="scratch of"):
        trace(machine, f"{SITES} {{ @ = count(); }}", WORK, settings={"batch": "100s"})


def test_the_text_is_as_it_was() -> None:
    machine = FakeMachine("amd64")
    before = machine.text
    trace(machine, f"{SITES} {{ @ = count(); }}", WORK, settings={"batch": "100s"})
    assert machine.text == before


def test_time_ends_a_batch() -> None:
    """Batches without a command are traced for their time each; the workload is never begun."""
    done = trace(
        FakeMachine("amd64"), f"{SITES} {{ @ = count(); }}", settings={"batch": "10ms"},
        command=False,
    )  # fmt: skip
    assert any("batches" in line for line in done.said)
    assert done.status == 0


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (f"{SITES} {{ printf(\"x\"); }}", f"{ONLY}: a clause at an instruction"),
        (f"{SITES} {{ }}", f"{ONLY}: a clause at an instruction"),
        (f"int n; {SITES} /n/ {{ @ = count(); }}", f"{ONLY}: n would be lost"),
        ("tick-1s { @ = count(); }", "there is nothing to plant in batches"),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused(program: str, message: str) -> None:
    with pytest.raises(KinstError, match=message):
        in_batches("amd64", program)


def test_a_wrong_time() -> None:
    with pytest.raises(KinstError, match="invalid value 'soon' for option 'batch'"):
        in_batches("amd64", SITES + " { @ = count(); }", batch="soon")
