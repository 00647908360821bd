"""Many small reads combined into few: the same bytes, and no read of memory that was not
requested."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.core.errors import UnmappedError
from kinst.machines.attach.near_reads import NEAR, read_ranges

PAGE = 4096
MAPPED = {0, 1, 3, 8, 9, 10}  # existing pages of memory
PLACES = st.lists(
    st.tuples(st.sampled_from(sorted(MAPPED)), st.integers(0, PAGE - 8), st.integers(0, 8)),
    max_size=40,
)


class Memory:
    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    def read(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        if not {at // PAGE for at in range(address, address + size)} <= MAPPED:
            raise UnmappedError(f"{address:#x}")
        return bytes(at * 7 + at // PAGE & 0xFF for at in range(address, address + size))


@given(PLACES)
def test_the_same_bytes_in_their_order(rows: list[tuple[int, int, int]]) -> None:
    places = [(page * PAGE + offset, size) for page, offset, size in rows]
    assert read_ranges(Memory().read, places) == [Memory().read(*place) for place in places]


def test_near_ones_are_one_read_and_far_ones_are_not() -> None:
    memory = Memory()
    read_ranges(memory.read, [(100, 4), (8, 8), (104 + NEAR, 2), (3 * PAGE, 8), (3 * PAGE, 8)])
    assert memory.reads == [(8, 98 + NEAR), (3 * PAGE, 8)]


def test_what_is_not_mapped_is_an_error() -> None:
    with pytest.raises(UnmappedError):
        read_ranges(Memory().read, [(8, 8), (2 * PAGE, 8)])
