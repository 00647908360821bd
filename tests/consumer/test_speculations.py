"""Speculations, bufpolicy and flowindent on the consumer's side (Dynamic Tracing Guide,
"Speculative Tracing", "Buffers and Buffering", "dtrace(1M) Utility" for -F)."""

from __future__ import annotations

import struct

import numpy as np

from kinst.consumer.flow import HEADER, Flow
from kinst.consumer.policies import Kept
from kinst.consumer.rings import Chunk
from kinst.consumer.speculations import Speculations
from kinst.core.probe import Crossing, Probe, ProbeName


def test_what_is_kept_is_shown_by_commit_and_never_by_discard() -> None:
    out: list[str] = []
    kept = Speculations()
    for use, text in ((0x101, "a"), (0x102, "x"), (0x101, "b")):
        kept.keep(use, lambda text=text: out.append(text))  # type: ignore[misc]
    assert out == []
    kept.commit(0x101)
    kept.discard(0x102)
    kept.commit(0)
    assert out == ["a", "b"]
    # Records of other CPUs may arrive after the one that ended their speculation.
    kept.keep(0x101, lambda: out.append("late"))
    kept.keep(0x102, lambda: out.append("never"))
    kept.commit(0x102)
    assert out == ["a", "b", "late"]


def records(first: int, count: int) -> np.ndarray:
    """Records of 32 bytes: header and one number."""
    blob = b"".join(struct.pack("<IIIIQQ", 32, 0, 1, 0, n, n) for n in range(first, first + count))
    return np.frombuffer(blob, np.uint8)


def numbers(kept: Kept) -> list[int]:
    (chunk,) = kept.all()
    return chunk.data.view("<u8")[3::4].tolist()


def test_ring_keeps_the_last() -> None:
    kept = Kept("ring", 100)
    for first in range(0, 1000, 10):
        kept.add([Chunk(0, records(first, 10))])
    assert not kept.full
    assert numbers(kept) == [997, 998, 999]


def test_fill_keeps_the_first_and_says_when_it_is_full() -> None:
    kept = Kept("fill", 100)
    kept.add([Chunk(0, records(0, 3))])
    assert not kept.full
    kept.add([Chunk(0, records(3, 3))])
    assert kept.full
    assert numbers(kept) == [0, 1, 2]


def probe(number: int, function: str, name: str, provider: str = "fbt") -> Probe:
    return Probe(number, ProbeName(provider, "vmlinux", function, name))


def test_flow_of_inlined_functions() -> None:
    """Two copies begin at one instruction; the outer one's second clause does not indent again."""
    site, after, end = (probe(n, "caller", o, "kinst") for n, o in ((1, "8"), (2, "9"), (3, "20")))
    outer, inner = Crossing("entry", "outer"), Crossing("entry", "inner")
    flow = Flow(
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
    flow = Flow()
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
