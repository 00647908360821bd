"""Patches, pieces of code and pairs as columns equal the plain values."""

from __future__ import annotations

import pytest

from kinst.core.columns import NO_PAIRS, Pairs
from kinst.patch.patches import NO_PATCHES, NO_PIECES, Patch, patches_of, pieces_of

HIGH = 0xFFFFFFFF81000000
ROWS = [
    Patch(HIGH + 16, b"\xe9abcd", b"12345"), Patch(HIGH, b"\xcc", b"x"), Patch(HIGH + 7, b"", b""),
]  # fmt: skip


def test_patches_are_a_sequence() -> None:
    patches = patches_of(ROWS)
    assert list(patches) == ROWS and len(patches) == 3 and patches.size.tolist() == [5, 1, 0]
    assert patches[1] == ROWS[1] and patches[-3] == ROWS[0] and list(patches[1:]) == ROWS[1:]
    with pytest.raises(IndexError):
        patches[3]
    assert not NO_PATCHES and list(NO_PATCHES) == []


def test_patches_joined_and_chosen() -> None:
    patches = patches_of(ROWS[:1]) + patches_of([]) + patches_of(ROWS[1:])
    assert list(patches) == ROWS
    assert list(patches[::-1]) == ROWS[::-1]
    assert list(patches[2:0]) == [] and not patches[2:0]


def test_pieces_lie_in_one_block() -> None:
    rows = [(HIGH, b"abc"), (HIGH + 3, b"de"), (HIGH + 16, b"f")]
    pieces = pieces_of(rows)
    assert list(pieces) == rows and pieces[2] == rows[2] and list(pieces[1:]) == rows[1:]
    assert (pieces.address, pieces.block) == (HIGH, b"abcde" + bytes(11) + b"f")
    assert list(pieces_of([])) == [] == list(NO_PIECES)


def test_pairs() -> None:
    rows = [(HIGH, 1), (2, (1 << 64) - 1)]
    pairs = Pairs.of(rows)
    assert list(pairs) == rows and pairs[1] == rows[1] and list(pairs[1:]) == rows[1:]
    assert not Pairs.of([]) and list(NO_PAIRS) == []
