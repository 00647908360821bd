"""Choice of the instructions that form runs, on lines written by hand, and against all possible
choices.

A line is written as words: a number is an instruction of so many bytes, followed by `!` if it is
planted, `-` if it cannot be in a run, `<` if other code leads to it, and `+N` for N bytes of
padding after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kinst.core.columns import Bools
from kinst.patch.runs import CodeLines, Run, find_runs, joined_runs, runs_of, shortest_runs

BASE, JUMP = 0x1000, 5
_WORD = re.compile(r"(\d+)([!<-]*)(?:\+(\d+))?\Z")


def drawn(text: str) -> tuple[CodeLines, Bools, Bools]:
    """Return a line, its planted instructions, and those of them with room for a jump.  A bar
    begins another function."""
    rows, at, padded = [], 0, True
    for word in text.split():
        if word == "|":
            at, padded = at + 64, True
            continue
        found = _WORD.match(word)
        assert found is not None, word
        size, marks, padding = int(found[1]), found[2], int(found[3] or 0)
        joins = "<" not in marks and "-" not in marks and not padded
        rows.append((at, size, padding, joins, "-" not in marks, "!" in marks))
        at, padded = at + size + padding, padding > 0
    position, size_of, room, joined, fits, planted = map(np.array, zip(*rows, strict=True))
    begins = np.ones(len(rows), np.bool_)
    lines = CodeLines(position, size_of.astype(np.uint8), room, joined, fits, begins)
    return lines, planted, planted & (size_of >= JUMP)


def shape(text: str) -> list[tuple[int, ...]]:
    """Return, for each run, the offsets of its members and its size."""
    line, planted, own = drawn(text)
    found = find_runs(line, planted, own, JUMP)
    rows = zip(found.first.tolist(), found.end.tolist(), found.size.tolist(), strict=True)
    return [(*line.position[first:behind].tolist(), size) for first, behind, size in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5! 6!", []),  # each has its own jump
        ("3! 3", [(0, 3, 6)]),  # one that was not requested helps
        ("3! 3!", [(0, 3, 6)]),
        ("3 3!", [(0, 3, 6)]),  # also when it is the first
        ("2! 2! 2!", [(0, 2, 4, 6)]),
        ("1 3! 7!", [(1, 4, 10)]),  # the long one is in the run: no jump of its own
        ("3 2! 5!", [(3, 5, 7)]),  # rather than one that was not requested
        ("3! 4< 3", []),  # entered in the middle
        ("3 3! 3< 4", [(0, 3, 6)]),  # so the other way
        ("3! 4- 3", []),
        ("3!- 3", []),
        ("4! 5-", []),
        ("1!+4", [(0, 5)]),  # a return, and padding
        ("4 1!", [(0, 4, 5)]),  # as far before it as a jump reaches
        ("1! 3 1", [(0, 1, 4, 5)]),  # and as far after it
        ("1!+3 4", []),  # too little of it
        ("3! 1+3", [(0, 3, 5)]),  # the jump takes as much of it as it needs
        ("3! 3! 3! 3!", [(0, 3, 6), (6, 9, 6)]),
        ("3! 3! 3! 3!<", [(0, 3, 6)]),  # the others stay traps
        ("4! 3 8 3 4!", [(0, 4, 7), (15, 18, 7)]),  # two unrelated runs
        ("4 4! 1! 6!", [(4, 8, 5)]),  # rather than two: one not requested, and the long one
        ("2! 2! 2! 3!", [(0, 2, 4, 6)]),  # the last is alone: three of four, not two
    ],
)
def test_drawn_lines(text: str, expected: list[tuple[int, ...]]) -> None:
    assert shape(text) == expected


def test_a_trap_that_is_used_counts_for_more_than_many_that_are_not() -> None:
    line, planted, own = drawn("4! 3! 1! 1! 4<")
    found = find_runs(line, planted, own, JUMP)
    assert (found.first.tolist(), found.end.tolist()) == ([1], [4])
    covered = np.array([False, True, True, True, False])
    found = find_runs(line, planted, own, JUMP, covered)
    assert (found.first.tolist(), found.end.tolist()) == ([0], [2])


def test_functions_have_nothing_to_do_with_each_other() -> None:
    assert shape("3 3! | 3! 3 | 4! 5- | 1!+4") == [(0, 3, 6), (70, 73, 6), (213, 5)]
    assert shape("4! | 3") == []


def test_runs_as_columns() -> None:
    rows = [
        Run((100, 103), 6, b"abcdef"),
        Run((90, 92, 94), 9, b"123456789"),
        Run((7,), 5, b"xxxxx"),
    ]
    runs = runs_of(rows)
    assert list(runs) == rows and runs[1] == rows[1] and list(runs[1:]) == rows[1:]
    assert runs.start.tolist() == [100, 90, 7] == [row.start for row in rows]
    assert list(runs.without(np.array([92, 103], np.uint64))) == rows[2:]
    assert list(runs.without(np.array([91], np.uint64))) == rows
    parts = [runs.take(np.array([0])), runs_of([]), runs.take(np.array([1, 2]))]
    assert list(joined_runs(parts)) == rows
    nothing = runs_of([])
    assert not list(nothing.without(np.array([91], np.uint64))) and not list(joined_runs([]))


@st.composite
def lines(draw: st.DrawFn) -> str:
    words = []
    for _ in range(draw(st.integers(1, 9))):
        word = str(draw(st.integers(1, 7)))
        word += draw(st.sampled_from(("!", "!", "!", "", "<", "!<", "-", "!-")))
        word += draw(st.sampled_from(("", "", "", "+2", "+4")))
        words.append(word)
    return " ".join(words)


def choices(line: CodeLines, at: int = 0) -> Iterator[list[tuple[int, int]]]:
    """Return every set of runs, as (first, end)."""
    if at >= len(line.position):
        yield []
        return
    yield from choices(line, at + 1)
    end = int(shortest_runs(line, np.array([at]), JUMP).end[0])
    if end:
        for rest in choices(line, end):
            yield [(at, end), *rest]


def worth(
    line: CodeLines, planted: Bools, own: Bools, covered: Bools, runs: list[tuple[int, int]]
) -> tuple[int, int, int]:
    """Return the faults of a choice, the worst first.

    First are traps that are used, then traps that may not be, then instructions that are displaced
    without request, each at twice the cost of a patch.
    """
    inside = {k for first, behind in runs for k in range(first, behind)}
    left = [k for k in np.flatnonzero(planted & ~own).tolist() if k not in inside]
    silent = sum(not planted[k] for k in inside)
    jumps = sum(k not in inside for k in np.flatnonzero(own).tolist())
    unused = sum(bool(covered[k]) for k in left)
    return len(left) - unused, unused, 2 * silent + len(runs) + jumps


@given(lines(), st.integers(0, 511))
def test_no_choice_is_better(text: str, bits: int) -> None:
    line, planted, own = drawn(text)
    covered = planted & np.array([bits >> k & 1 for k in range(len(planted))], np.bool_)
    found = find_runs(line, planted, own, JUMP, covered)
    bounds = list(zip(found.first.tolist(), found.end.tolist(), strict=True))
    every = [worth(line, planted, own, covered, one) for one in useful(line, planted, own)]
    assert worth(line, planted, own, covered, bounds) == min(every)


def useful(line: CodeLines, planted: Bools, own: Bools) -> Iterator[list[tuple[int, int]]]:
    """Return the choices in which every run serves a site, and none begins at an instruction with
    its own jump."""
    for one in choices(line):
        if all(planted[a:b].any() and not own[a] for a, b in one):
            yield one


@given(lines())
def test_no_choice_leaves_fewer_traps(text: str) -> None:
    line, planted, own = drawn(text)

    def traps(runs: list[tuple[int, int]]) -> int:
        inside = {k for first, behind in runs for k in range(first, behind)}
        return sum(k not in inside for k in np.flatnonzero(planted & ~own).tolist())

    runs = find_runs(line, planted, own, JUMP)
    bounds = list(zip(runs.first.tolist(), runs.end.tolist(), strict=True))
    assert traps(bounds) == min(map(traps, choices(line)))
    for (first, behind), size in zip(bounds, runs.size.tolist(), strict=True):
        start = line.position[first]
        assert all(line.fits[first:behind]) and all(line.joins[first + 1 : behind])
        assert size >= JUMP
        assert all(line.position[first:behind] < start + JUMP), "no longer than it must be"
        last = behind - 1
        assert start + size <= line.position[last] + line.size[last] + line.padding[last]
    used = [k for first, behind in bounds for k in range(first, behind)]
    assert used == sorted(set(used)), "runs do not overlap"
    inside = runs.inside(len(planted))
    assert np.flatnonzero(inside).tolist() == used
