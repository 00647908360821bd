"""Speculations and bufpolicy on the consumer's side (Dynamic Tracing Guide, "Speculative Tracing",
"Buffers and Buffering")."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kinst.consumer.policies import SLACK, KeptRecords
from kinst.consumer.rings import Chunk
from kinst.consumer.speculations import Speculations


def test_what_is_kept_is_shown_by_commit_and_never_by_discard() -> None:
    kept: Speculations[str] = Speculations()
    for use, text in ((0x101, "a"), (0x102, "x"), (0x101, "b")):
        assert not kept.keep(use, text)
    assert kept.commit(0x101) == ["a", "b"]
    kept.discard(0x102)
    assert kept.commit(0) == []
    # Records of other CPUs may arrive after the one that ended their speculation.
    assert kept.keep(0x101, "late")
    assert not kept.keep(0x102, "never")
    assert kept.commit(0x102) == kept.commit(0x101) == []


def records(first: int, count: int) -> np.ndarray:
    """Records of 32 bytes: header and one number."""
    blob = b"".join(struct.pack("<IIIIQQ", 32, 0, 1, 0, n, n) for n in range(first, first + count))
    return np.frombuffer(blob, np.uint8)


def numbers(kept: KeptRecords) -> list[int]:
    (chunk,) = kept.all()
    assert chunk.start == chunk.data.view("<u8")[3] * 32, "what its ring had given before"
    return chunk.data.view("<u8")[3::4].tolist()


def test_ring_keeps_the_last() -> None:
    kept = KeptRecords("ring", 100)
    for first in range(0, 1000, 10):
        kept.add([Chunk(0, records(first, 10))])
        # Older records go before the end, not all at once at the end.
        assert kept._bytes[0] <= SLACK * 100 + 320
    assert not kept.full
    assert numbers(kept) == [997, 998, 999]


@pytest.mark.parametrize("policy", ["ring", "fill"])
def test_a_record_is_kept_whole_or_not_at_all(policy: str) -> None:
    kept = KeptRecords(policy, 31)
    kept.add([Chunk(0, records(0, 9))])
    (chunk,) = kept.all()
    assert len(chunk.data) == 0


def test_fill_keeps_the_first_and_says_when_it_is_full() -> None:
    kept = KeptRecords("fill", 100)
    kept.add([Chunk(0, records(0, 3))])
    assert not kept.full
    kept.add([Chunk(0, records(3, 3))])
    assert kept.full
    assert numbers(kept) == [0, 1, 2]
