"""Warm starts print the same as cold starts.

Fifty of examples/ run in a guest that boots (--cold) and in one that continues from a saved state.
Times, addresses, process ids and counts that vary are masked; the masked lines are compared,
ignoring order and repetition.  A kernel does not behave the same twice, so if two runs differ,
both are repeated: whatever all cold runs printed, some warm run must have printed, and vice versa.
Counts that a script must find are in examples.cases, and hold in each run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.language.test_examples import Example, complaints, examples, run

pytestmark = [pytest.mark.vm, pytest.mark.slow]

RUNS = 50
ROUNDS = 5
_MASKS = (
    (r"\b20\d\d [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\b", "TIME"),
    (r"0x[0-9a-f]+", "N"),
    (r"\b[0-9a-f]{2}(?: [0-9a-f]{2}){3,}.*", "BYTES"),  # with their text
    (r"\b[0-9a-f]{8,}\b", "N"),
    (r"-?\d+", "N"),
    (r"\|[@ ]*", "| "),
    (r"\s+", " "),
)


def masked(text: str) -> set[str]:
    """Return the output with varying parts masked, line by line."""
    for pattern, stand_in in _MASKS:
        text = "\n".join(re.sub(pattern, stand_in, line).strip() for line in text.splitlines())
    return {line for line in text.splitlines() if line}


def differences(cold: list[set[str]], warm: list[set[str]]) -> set[str]:
    """Return lines that all runs of one kind print and no run of the other kind does."""
    return (set.intersection(*cold) - set.union(*warm)) | (
        set.intersection(*warm) - set.union(*cold)
    )


def test_what_is_masked() -> None:
    assert masked("deeds   12 0xffff80 us\n\n  4 |@@@   7\n  8 |      0") == {
        "deeds N N us", "N | N"
    }  # fmt: skip
    assert masked("2026 Nov 22 19:44:26 sh") == {"TIME sh"}


def test_what_differs() -> None:
    one, other = {"a", "b"}, {"a", "c"}
    assert differences([one], [one]) == set()
    assert differences([one], [other]) == {"b", "c"}
    assert differences([one, other], [other, other]) == set()
    assert differences([one, one], [other, other]) == {"b", "c"}


def chosen() -> list[Example]:
    every = examples()
    return [every[k * len(every) // RUNS] for k in range(RUNS)]


@pytest.mark.parametrize("example", chosen(), ids=str)
def test_warm_says_what_cold_says(example: Example, guest_program: Callable[[str], Path]) -> None:
    deeds = guest_program("deeds")
    said: dict[str, list[set[str]]] = {"cold": [], "warm": []}
    for _ in range(ROUNDS):
        for kind, outputs in said.items():
            done = run(example, deeds, *(["--cold"] if kind == "cold" else []))
            assert not complaints(example, done), kind
            outputs.append(masked(done.out + done.guest))
        if not differences(said["cold"], said["warm"]):
            break
    print(f"{example}: {len(said['cold'])} rounds")
    assert not differences(said["cold"], said["warm"])
