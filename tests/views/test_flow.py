"""Counts of edges from counts of instructions: equal to those of walks that counted independently,
with no more questions than necessary, and none for edges that cannot be known."""

from __future__ import annotations

import random

import pytest

from kinst.core.code import OUTSIDE, FunctionCode
from kinst.views.flow import ENTRY, INSIDE, EdgeKey, FlowCounts, questions, solve, taken_share
from tests.views.made_code import BASE, LOOP, STEP, Walked, counts, made, random_code


def answered(code: FunctionCode, walked: Walked) -> dict[EdgeKey, int]:
    """Return the answers of a trace to all questions."""
    found = {}
    for one in questions(code):
        ways = range(len(code.blocks[one.block].edges)) if one.edge == OUTSIDE else [one.edge]
        found.update({(one.block, way): walked.edges[one.block, way] for way in ways})
    return found


def walks(code: FunctionCode, number: int, seed: int) -> Walked:
    walked = Walked()
    for _ in range(number):
        walked.walk(code, random.Random(seed + number))
        seed += 1
    return walked


def flow(code: FunctionCode, walked: Walked) -> FlowCounts:
    return solve(code, counts(walked, code), answered(code, walked))


def conserved(code: FunctionCode, found: FlowCounts) -> None:
    """Check that in = out = block, summed up here from the edges alone."""
    into = [0] * len(code.blocks)
    into[code.root] = found.edges[ENTRY]
    for number, block in enumerate(code.blocks):
        out = 0
        for k, edge in enumerate(block.edges):
            out += found.edges[number, k]
            if edge.to != OUTSIDE:
                into[edge.to] += found.edges[number, k]
        assert out + found.edges.get((number, INSIDE), 0) == found.exits[number]
    assert into == list(found.entries)


@pytest.mark.parametrize("seed", range(60))
def test_random_functions(seed: int) -> None:
    choose = random.Random(seed)
    code = random_code(choose)
    walked = walks(code, 20, seed)
    found = flow(code, walked)
    assert found.mismatches == ()
    edges = [(n, k) for n, block in enumerate(code.blocks) for k in range(len(block.edges))]
    assert {key: found.edges[key] for key in edges} == {key: walked.edges[key] for key in edges}
    assert found.entered == 20
    conserved(code, found)


def test_a_loop_needs_one_question_at_most() -> None:
    """Everything that leaves the loop entered it: two ways meet again only around `if (b)`, and the
    way by f() is counted."""
    asked = questions(LOOP)
    assert asked == []
    walked = walks(LOOP, 9, 1)
    found = flow(LOOP, walked)
    assert taken_share(found, LOOP, 2) == (walked.edges[2, 0], walked.instructions[BASE + 2 * STEP])
    assert taken_share(found, LOOP, 0) is None


def test_two_ways_over_the_same_blocks_are_asked_for() -> None:
    """Blocks 0 and 1 both branch to 2 or 3."""
    code = made(
        [("taken", 1), ("next", 4)],
        [("taken", 2), ("next", 3)],
        [("return", OUTSIDE)],
        [("return", OUTSIDE)],
        [("taken", 2), ("next", 3)],
    )
    asked = questions(code)
    assert len(asked) == 1 and asked[0].block in (1, 4)
    walked = walks(code, 40, 3)
    conserved(code, flow(code, walked))
    unasked = solve(code, counts(walked, code), {})
    assert {key for key in unasked.edges if key[0] in (1, 4)} == set()
    assert unasked.edges[0, 0] == walked.edges[0, 0] and unasked.mismatches == ()


def test_a_thread_that_was_inside_of_a_call() -> None:
    """It entered before counting began: the code after the call of block 1 has one more."""
    code = made([("taken", 2), ("next", 1)], [("call", 2)], [("return", OUTSIDE)])
    walked = walks(code, 12, 5)
    calls = walked.instructions[BASE + STEP]
    instructions = {**counts(walked, code)}
    for k in range(2):
        instructions[BASE + 2 * STEP + 4 * k] += 1
    assert questions(code) == []
    found = solve(code, instructions, {})
    assert found.edges[1, 0] == calls + 1 and found.edges[1, INSIDE] == -1
    assert found.edges[0, 0] == walked.edges[0, 0] and found.mismatches == ()


def test_a_call_in_the_middle_of_a_block() -> None:
    code = made([("return", OUTSIDE)], sizes=[3])
    found = solve(code, {BASE: 4, BASE + 4: 4, BASE + 8: 3}, {})
    assert (found.entries, found.exits) == ([4], [3])
    assert found.entered == 4 and found.edges[0, 0] == 3 and found.mismatches == ()


def test_a_block_of_which_nothing_is_counted() -> None:
    code = made(
        [("taken", 2), ("next", 1)], [("next", 2)], [("return", OUTSIDE)], refused=frozenset({1})
    )
    walked = walks(code, 12, 7)
    assert [one.block for one in questions(code, {BASE + STEP, BASE + STEP + 4})] == [0]
    found = solve(code, counts(walked, code), {(0, 0): walked.edges[0, 0]})
    assert found.entries[1] is None and found.edges[0, 1] == found.edges[1, 0] == walked.edges[0, 1]


def test_faults_that_share_their_way_out() -> None:
    """Two loads with one fix-up: which of them faulted is unknown, unless none did."""
    code = made(
        [("next", 1), ("fault", 3)],
        [("next", 2), ("fault", 3)],
        [("return", OUTSIDE)],
        [("return", OUTSIDE)],
    )
    clean = solve(code, dict.fromkeys((i.address for i in code.instructions[:6]), 5)
                  | dict.fromkeys((i.address for i in code.instructions[6:]), 0), {})  # fmt: skip
    assert clean.edges[0, 1] == clean.edges[1, 1] == 0 and clean.edges[0, 0] == 5
    walked = walks(code, 20, 2)
    found = solve(code, counts(walked, code), {})
    assert (0, 1) not in found.edges and (1, 1) not in found.edges
    assert found.edges[0, 0] == walked.edges[0, 0] and found.mismatches == ()


def test_what_does_not_add_up_is_said() -> None:
    walked = walks(LOOP, 9, 1)
    instructions = {**counts(walked, LOOP)}
    for k in range(2):
        instructions[BASE + 4 * STEP + 4 * k] += 1000
    found = solve(LOOP, instructions, {})
    assert any("made+" in one for one in found.mismatches)
