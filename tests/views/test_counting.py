"""The program that counts whole functions, and reading its results."""

from __future__ import annotations

import pytest

from kinst.core.code import OUTSIDE
from kinst.core.errors import KinstError
from kinst.events import Aggregation
from kinst.views.counting import COUNT, check_counts, counted, counted_functions, plan_counting
from tests.views.made_code import BASE, STEP, made

# Two computed jumps to the same two blocks, which branch to the same two.
CODE = made(
    [("taken", 1), ("next", 3)],
    [("computed", OUTSIDE), ("computed", 2), ("computed", 4)],
    [("taken", 5), ("next", 6)],
    [("computed", OUTSIDE), ("computed", 2), ("computed", 4)],
    [("taken", 5), ("next", 6)],
    [("return", OUTSIDE)],
    [("return", OUTSIDE)],
)
SITE = ("string", "string", "string")


def table(name: str, rows: dict[int, int]) -> Aggregation:
    keys = {("vmlinux", "made", str(offset)): count for offset, count in rows.items()}
    return Aggregation(name, "count", SITE, keys)


def test_program() -> None:
    program = plan_counting([CODE], "pid == $target").program
    assert program == (
        "kinst:vmlinux:made:\n/pid == $target/\n"
        "{ @count[probemod, probefunc, probename] = count(); }\n"
        f"kinst:vmlinux:made:{3 * STEP + 4}\n/pid == $target/\n"
        "{ @went[probemod, probefunc, probename, (uint64_t)(regs[R_RAX])] = count(); }\n"
        f"kinst:vmlinux:made:{4 * STEP + 4}\n/(pid == $target) && (edge == 0)/\n"
        "{ @taken[probemod, probefunc, probename] = count(); }\n"
    )


def test_results() -> None:
    """Nine walks: 5 by block 1, of which 2 leave there and 3 go to block 2; 4 by block 3, of which
    1 leaves, 1 goes to block 2 and 2 go to block 4. From there all go to 5, and from block 2 one
    does."""
    ran = [9, 5, 4, 4, 2, 3, 3]
    both = {STEP * block + k: count for block, count in enumerate(ran) for k in (0, 4)}
    where = {0xFFFF_FFFF_8000_0000 - (1 << 64): 1, BASE + 2 * STEP: 1, BASE + 4 * STEP: 2}
    went = {("vmlinux", "made", str(3 * STEP + 4), to): count for to, count in where.items()}
    found = [
        table("count", both),
        table("taken", {4 * STEP + 4: 2}),
        Aggregation("went", "count", (*SITE, "uint64_t"), went),
    ]
    (flow,) = counted(plan_counting([CODE]), found)
    assert flow.mismatches == () and flow.entered == 9
    edges = [[flow.edges[n, k] for k in range(len(b.edges))] for n, b in enumerate(CODE.blocks)]
    assert edges == [[5, 4], [2, 3, 0], [1, 3], [1, 1, 2], [2, 0], [3], [3]]


def test_instructions_that_did_not_run_and_that_were_not_planted() -> None:
    (flow,) = counted(plan_counting([CODE]), [], [BASE])
    assert BASE not in flow.instructions and flow.instructions[BASE + 4] == 0
    assert flow.entered == 0


def test_results_of_another_kernel() -> None:
    with pytest.raises(KinstError, match=r"made\+2 was counted, but no instruction"):
        counted(plan_counting([CODE]), [table("count", {2: 1})])
    by_name = Aggregation("count", "count", ("string",), {("ls",): 1})
    with pytest.raises(KinstError, match="the keys of @count are not probemod"):
        counted(plan_counting([CODE]), [by_name])


def test_a_result_of_another_program_has_no_counts() -> None:
    key = ("vmlinux", "f.cold", "3")
    counts = Aggregation(COUNT, "count", ("string",) * 3, {key: 1})
    other = Aggregation("stacks", "count", ("stack",), {("x",): 1})
    check_counts([])
    check_counts([other, counts])
    assert counted_functions([other, counts]) == ["vmlinux:f"]
    for refuse in (check_counts, counted_functions):
        with pytest.raises(KinstError, match="the result has no counts of functions"):
            refuse([other])
