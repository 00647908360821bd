"""D programs of tries, as text: the whole of kinst runs them in tests/vm/inject."""

from __future__ import annotations

import re

import pytest

from kinst.core.dialect import TrialFacts
from kinst.systems.linux.dialect import dialect
from kinst.trials.failures import usual_values
from kinst.trials.programs import LISTING, delay_program, injection_program

NULL = usual_values("ENOMEM", 12)["pointer"]


@pytest.fixture
def facts() -> TrialFacts:
    found = dialect().trials
    assert found is not None
    return found


def test_numbers_that_the_shell_tells_are_no_process(facts: TrialFacts) -> None:
    """kill(2) takes a positive int, and no process has an id of 4 million or more."""
    assert facts.base > 4 << 20 and facts.base + LISTING < 1 << 31


def test_only_the_numbered_call_below_fails(facts: TrialFacts) -> None:
    text = injection_program(facts, {NULL: [("", "kmalloc_trace")]}, [("m", "f_*")], "R_RSP", {})
    assert re.search(
        r"fbt::kmalloc_trace:entry\n/number && calls == number && self->top && regs\[R_RSP\] <"
        r" self->top/\n\{[^}]*return\(0\); /\* NULL \*/",
        text,
    )
    entry = text.index("fbt:m:f_*:entry")
    count, fail = text.index("{ calls++; }"), text.index("return(0);")
    leave = [at.start() for at in re.finditer(r"fbt:m:f_\*:return", text)]
    # A call counts before it fails; a result is recorded before the thread has left.
    assert entry < count < fail < leave[0] < leave[1]
    assert "self->failed = 0" in text[leave[0] : leave[1]]
    assert "self->top = 0" in text[leave[1] :]


def test_calls_that_must_not_fail_are_not_counted(facts: TrialFacts) -> None:
    """Each function is judged by its own argument; a function without flags fails at each call."""
    names = [("", "a"), ("", "b"), ("", "c")]
    kept = {("", "a"): "arg1 & 0x8000", ("", "b"): "arg2 & 0x8000"}
    text = injection_program(facts, {NULL: names}, [("", "f")], "R_RSP", kept)
    clauses = [part.split("\n", 2) for part in text.split("\n\n") if part.startswith("fbt::")]
    for name, argument in (("a", "arg1"), ("b", "arg2")):
        left, *others = [(test, body) for head, test, body in clauses if f"::{name}:" in head]
        assert f" && {argument} & 0x8000/" in left[0] and "kept++" in left[1]
        assert len(others) == 3 and all(f"!({argument} & 0x8000)/" in test for test, _ in others)
    assert not any("& 0x" in test for head, test, _ in clauses if "::c:" in head)


def test_many_functions_take_several_lines(facts: TrialFacts) -> None:
    names = [("", f"a_function_with_a_long_name_{n}") for n in range(30)]
    text = injection_program(facts, {NULL: names}, [("", "f")], "R_RSP", {})
    assert all(len(line) <= 130 for line in text.splitlines())
    assert text.count("a_function_with_a_long_name_29:entry") == 3


def test_delays(facts: TrialFacts) -> None:
    """Try n waits at one offset, for one time: all offsets for the first time, and so on."""
    text = delay_program(facts, "m:f", [0, 4, 9], [100, 2000], 1)
    assert re.findall(r"kinst:m:f:(\d+)", text) == ["0", "0", "4", "4", "9", "9"]
    assert "place = (number - 1) % 3; delay = (number - 1) / 3 == 0 ? 100 : 2000;" in text
    assert text.count("place == 1 && cpu == 1") == 2
