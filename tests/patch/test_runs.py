"""Which instructions form runs, on lines that are drawn by hand, and against all possible choices.

A line is written as words: a number is an instruction of so many bytes; behind it, `!` when it is
planted, `-` when it cannot be in a run, `<` when something else leads to it, `+N` for bytes of
padding behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kinst.patch.runs import Line, Run, find_runs, insides, run_at

BASE, JUMP = 0x1000, 5
_WORD = re.compile(r"(\d+)([!<-]*)(?:\+(\d+))?\Z")


def drawn(text: str) -> tuple[Line, dict[int, bool]]:
    """A line and its planted instructions."""
    starts, sizes, room, joins, fits, planted = [], [], [], [], [], {}
    at, padded = BASE, True
    for word in text.split():
        found = _WORD.match(word)
        assert found is not None, word
        size, marks, padding = int(found[1]), found[2], int(found[3] or 0)
        starts.append(at)
        sizes.append(size)
        room.append(padding)
        joins.append("<" not in marks and "-" not in marks and not padded)
        fits.append("-" not in marks)
        if "!" in marks:
            planted[at] = size >= JUMP
        at, padded = at + size + padding, padding > 0
    return Line(starts, sizes, room, joins, fits), planted


def shape(runs: list[Run]) -> list[tuple[int, ...]]:
    """For each run, the offsets of its members and its size."""
    return [(*(at - BASE for at in run.members), run.size) for run in runs]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5! 6!", []),  # each has its own jump
        ("3! 3", [(0, 3, 6)]),  # one that nobody asked for helps
        ("3! 3!", [(0, 3, 6)]),
        ("3 3!", [(0, 3, 6)]),  # also when it is the first
        ("2! 2! 2!", [(0, 2, 4, 6)]),
        ("1 3! 7!", [(1, 4, 10)]),  # the long one is in the run: no jump of its own
        ("3! 4< 3", []),  # entered in the middle
        ("3 3! 3< 4", [(0, 3, 6)]),  # so the other way
        ("3! 4- 3", []),
        ("3!- 3", []),
        ("4! 5-", []),
        ("1!+4", [(0, 5)]),  # a return, and padding
        ("1!+3 4", []),  # too little of it
        ("3! 1+3", [(0, 3, 5)]),  # of which the jump takes what it needs
        ("3! 3! 3! 3!", [(0, 3, 6), (6, 9, 6)]),
        ("3! 3! 3! 3!<", [(0, 3, 6)]),  # the others stay traps
        ("4! 3 8 3 4!", [(0, 4, 7), (15, 18, 7)]),  # two that have nothing to do with each other
        ("2! 2! 2! 3!", [(0, 2, 4, 6)]),  # the last is alone: three of four, not two
    ],
)
def test_drawn_lines(text: str, expected: list[tuple[int, ...]]) -> None:
    line, planted = drawn(text)
    assert shape(find_runs(line, planted, JUMP)) == expected


def test_insides_are_all_but_the_first() -> None:
    runs = [Run((100, 103), 6), Run((90, 92, 94), 9)]
    assert insides(runs).tolist() == [92, 94, 103]


@st.composite
def lines(draw: st.DrawFn) -> str:
    words = []
    for _ in range(draw(st.integers(1, 9))):
        word = str(draw(st.integers(1, 7)))
        word += draw(st.sampled_from(("!", "!", "!", "", "<", "!<", "-", "!-")))
        word += draw(st.sampled_from(("", "", "", "+2", "+4")))
        words.append(word)
    return " ".join(words)


def choices(line: Line, at: int = 0) -> Iterator[list[tuple[int, int]]]:
    """Every set of runs, as (first, behind the last)."""
    if at >= len(line.starts):
        yield []
        return
    yield from choices(line, at + 1)
    found = run_at(line, at, JUMP)
    if found is not None:
        for rest in choices(line, found[0]):
            yield [(at, found[0]), *rest]


@given(lines())
def test_no_choice_leaves_fewer_traps(text: str) -> None:
    line, planted = drawn(text)

    def traps(runs: list[set[int]]) -> int:
        inside = set[int]().union(*runs)
        return sum(not own and at not in inside for at, own in planted.items())

    runs = find_runs(line, planted, JUMP)
    least = min(
        traps([set(line.starts[first:behind]) for first, behind in choice])
        for choice in choices(line)
    )
    assert traps([set(run.members) for run in runs]) == least
    for run in runs:
        covered = [k for k, at in enumerate(line.starts) if at in run.members]
        assert covered == list(range(covered[0], covered[-1] + 1))
        assert all(line.fits[k] for k in covered) and all(line.joins[k] for k in covered[1:])
        assert run.size >= JUMP
        assert all(at < run.start + JUMP for at in run.members), "no longer than it must be"
        behind = line.starts[covered[-1]] + line.sizes[covered[-1]] + line.room[covered[-1]]
        assert run.start + run.size <= behind
    used = [at for run in runs for at in run.members]
    assert used == sorted(set(used)), "runs do not overlap"
