"""flowindent (Dynamic Tracing Guide, "dtrace(1M) Utility", -F)."""

from __future__ import annotations

from kinst.core.probe import Crossing, Probe, ProbeName
from kinst.render.dtrace.flow import HEADER, FlowIndent


def probe(number: int, function: str, name: str, provider: str = "fbt") -> Probe:
    return Probe(number, ProbeName(provider, "vmlinux", function, name))


def test_flow_of_inlined_functions() -> None:
    """Two copies begin at one instruction; the outer one's second clause does not indent again."""
    site, after, end = (probe(n, "caller", o, "kinst") for n, o in ((1, "8"), (2, "9"), (3, "20")))
    outer, inner = Crossing("entry", "outer"), Crossing("entry", "inner")
    flow = FlowIndent(
        {
            (0, "caller", "8"): outer,
            (1, "caller", "8"): outer,
            (2, "caller", "8"): inner,
            (3, "caller", "20"): Crossing("return", "inner"),
            (4, "caller", "20"): Crossing("return", "outer"),
        }
    )
    rows = [
        flow.prefix(0, site, 0, (1, 1)),
        flow.prefix(0, site, 1, (1, 2)),
        flow.prefix(0, site, 2, (2, 5)),
        flow.prefix(0, after, 5, (3, 3)),
        flow.prefix(0, end, 3, (3, 4)),
        flow.prefix(0, end, 4, None),
    ]
    assert [row.rstrip()[4:] for row in rows] == [
        " -> outer",
        "  | outer:entry",
        "   -> inner",
        "    | caller:9",
        "   <- inner",
        " <- outer",
    ]


def test_flow() -> None:
    outer, inner = probe(1, "outer", "entry"), probe(2, "inner", "entry")
    back, over = probe(3, "inner", "return"), probe(4, "outer", "return")
    flow = FlowIndent()
    shown = [
        flow.prefix(0, outer, 0, (1, 1)),
        flow.prefix(0, outer, 1, (2, 0)),  # its second clause does not indent again
        flow.prefix(1, inner, 0, None),  # another CPU
        flow.prefix(0, inner, 0, (9, 0)),
        flow.prefix(0, probe(9, "inner", "12", "kinst"), 0, (3, 0)),
        flow.prefix(0, back, 0, (3, 1)),  # its last clause goes back
        flow.prefix(0, back, 1, (4, 0)),
        flow.prefix(0, over, 0, None),
        flow.prefix(0, over, 0, None),
    ]
    assert [line.rstrip() for line in shown] == [
        "  0  -> outer",
        "  0   | outer:entry",
        "  1  -> inner",
        "  0    -> inner",
        "  0     | inner:12",
        "  0     | inner:return",
        "  0    <- inner",
        "  0  <- outer",
        "  0  <- outer",
    ]
    assert all(len(line) == 46 for line in shown) and HEADER == "CPU FUNCTION" + " " * 33 + "\n"
