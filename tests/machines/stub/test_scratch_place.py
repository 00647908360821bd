"""Placement of scratch near an arm64 kernel, whose branches reach 128 MB.

Tables are made by hand (DDI 0487, D8.3: a 2 MB block's entry, and the index bits 47:39, 38:30 and
29:21 of an address).
"""

from __future__ import annotations

import re

import pytest

from kinst.core.errors import TargetError
from kinst.core.page_tables import LEAF_SIZE, Root
from kinst.isa.arm64.paging import PAGING
from kinst.machines.stub.memory import GuestMemory
from kinst.systems.linux.arm64 import LINUX
from tests.machines.page_table_ram import TableRam

MB, GB = 1 << 20, 1 << 30
BLOCK = 2 * MB
REACH = 128 * MB
TEXT_SIZE, IMAGE_SIZE = 12 * MB, 30 * MB
READ_ONLY_BLOCK = 0x40_0000_0000_0781  # inner shareable, accessed, not for user mode
SCRATCH = 0x8000_0000


class Ram(TableRam):
    """Physical memory of 1 MB for the kernel's own tables and kinst's."""

    def __init__(self, text: int) -> None:
        super().__init__(MB)
        for at in range(text, text + IMAGE_SIZE, BLOCK):
            self.map(at, 0x4000_0000 + at - text | READ_ONLY_BLOCK)

    def map(self, address: int, entry: int) -> None:
        table = self.root
        for shift in (39, 30):
            at = table + 8 * (address >> shift & 511)
            if not self.get(at):
                self.put(at, self.page() | 3)
            table = self.get(at) & ~0xFFF
        self.put(table + 8 * (address >> 21 & 511), entry)

    def read_physical(self, address: int, size: int) -> bytes:
        return bytes(self.data[address : address + size])

    def write_physical(self, address: int, data: bytes) -> None:
        self.data[address : address + len(data)] = data


def place(ram: Ram, text: int, size: int, data: int) -> int:
    """Return the address of scratch; check that all of it is mapped, in order, and that code
    reaches the text and back."""
    memory = GuestMemory(PAGING, ram, (0x8_0000, 0x4_0000))
    memory.set_root(Root(ram.root))
    near = (text, text + TEXT_SIZE)
    frames = range(SCRATCH, SCRATCH + size, LEAF_SIZE)
    found = memory.map_near(frames, near, LINUX.virtual_layout, near, data)
    for offset in range(0, size, BLOCK):
        leaf = PAGING.walk(ram.read_physical, Root(ram.root, 4), found + offset)
        assert leaf is not None and leaf.executable and leaf.writable and not leaf.user
        assert leaf.physical == SCRATCH + offset
    code, end = found + data, found + size
    assert abs(text + TEXT_SIZE - code) < REACH and abs(end - text) < REACH
    return found


KASLR = 0xFFFF_A123_4000_0000


def test_a_gigabyte_that_has_no_table_yet() -> None:
    """The image begins with a gigabyte, and memory after it is used: there is room below."""
    text = KASLR
    assert text % GB == 0
    ram = Ram(text)
    for at in range(text + IMAGE_SIZE, text + 160 * MB, 8 * MB):
        ram.map(at, 0x5000_0000 | READ_ONLY_BLOCK)
    assert place(ram, text, 40 * MB, 0) + 40 * MB == text


@pytest.mark.parametrize("offset", [0, 500 * MB, GB - 32 * MB])
def test_data_need_not_be_in_reach(offset: int) -> None:
    ram = Ram(KASLR + offset)
    assert place(ram, KASLR + offset, 600 * MB, 590 * MB) < KASLR + offset


def test_scratch_lies_before_the_image_where_it_can() -> None:
    """Free memory after the image is sooner or later used by vmalloc, if there is no KASLR."""
    text = 0xFFFF_8000_0800_0000
    ram = Ram(text)
    assert place(ram, text, 8 * MB, 6 * MB) == text - 8 * MB
    with pytest.raises(TargetError, match="130 MB"):
        place(Ram(text), text, 130 * MB, 6 * MB)  # before the first address there is nothing


def test_too_much_code_says_what_there_is() -> None:
    ram = Ram(KASLR)
    with pytest.raises(TargetError) as failed:
        place(ram, KASLR, 300 * MB, 2 * MB)
    text = str(failed.value)
    assert "300 MB" in text and "aggsize" in failed.value.hint
    (most,) = map(int, re.findall(r"most in one piece there are (\d+) MB", text))
    assert 100 <= most < 140
