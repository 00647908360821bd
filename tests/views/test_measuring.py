"""--by: the clauses for another number, and their results."""

from __future__ import annotations

import pytest

from kinst.core.code import OUTSIDE
from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket
from kinst.views.measuring import MeasuringPlan
from tests.views.made_code import BASE, placed_code

CODE = placed_code()
SITE = ("string", "string", "string")


@pytest.mark.parametrize(
    ("expression", "action"),
    [
        ("arg0", "avg(arg0)"),
        ("quantize(regs[R_RDX])", "quantize(regs[R_RDX])"),
        ("max(arg0) + 1", "avg(max(arg0) + 1)"),
        ("minimum(arg0)", "avg(minimum(arg0))"),
    ],
)
def test_an_expression_at_each_instruction(expression: str, action: str) -> None:
    assert MeasuringPlan((CODE,), expression, "pid == 7").program == (
        f"kinst:vmlinux:made:\n/pid == 7/\n{{ @by[probemod, probefunc, probename] = {action}; }}\n"
    )


def test_values() -> None:
    buckets = (Bucket(1, 2, 3),)
    rows = {("vmlinux", "made", "0"): buckets, ("vmlinux", "made", "4"): -3}
    (found,) = MeasuringPlan((CODE,), "quantize(arg0)").measured(
        [Aggregation("by", "quantize", SITE, rows)]
    )
    assert found.values == {BASE: buckets, BASE + 4: -3} and found.edges == {}


def test_latency_between_blocks() -> None:
    plan = MeasuringPlan((CODE,), "latency")
    starts = "kinst:vmlinux:made:0,\nkinst:vmlinux:made:12,\nkinst:vmlinux:made:32,\n"
    assert plan.program.count(starts) == 2
    assert "kinst:vmlinux:made:20,\nkinst:vmlinux:made:40\n/self->block1/" in plan.program
    pairs = {(BASE, BASE + 0xC): (2, 50), (BASE, BASE + 0x20): (3, 100), (BASE + 0xC, 0): (2, 9)}
    keys = ("uint64_t", "uint64_t")
    signed = {(a - (1 << 64) if a > 1 << 63 else a, b): value for (a, b), value in pairs.items()}
    times = Aggregation("times", "count", keys, {pair: v[0] for pair, v in signed.items()})
    took = Aggregation("took", "sum", keys, {pair: v[1] for pair, v in signed.items()})
    (found,) = plan.measured([times, took])
    assert found.edges == {(0, 1): 25, (0, 2): 33, (1, OUTSIDE): 4}
    assert found.values == {BASE: 30, BASE + 0xC: 4}


def test_nothing_is_asked_without_it() -> None:
    plan = MeasuringPlan((CODE,), "")
    assert plan.program == "" and plan.measured([])[0].values == {}


def test_results_without_it() -> None:
    count = Aggregation("count", "count", SITE, {})
    with pytest.raises(KinstError, match="the results lack @by"):
        MeasuringPlan((CODE,), "arg0").measured([count])
