"""The guest's virtual memory, by page tables and physical memory made here."""

from __future__ import annotations

import pytest

from kinst.core.errors import TargetError
from kinst.core.page_tables import Root
from kinst.isa.amd64.paging import PAGING
from kinst.machines.stub.memory import GuestMemory
from tests.isa.amd64.test_paging import TEXT, Ram, kernel


class Physical:
    def __init__(self, ram: Ram) -> None:
        self.ram = ram

    def read_physical(self, address: int, size: int) -> bytes:
        return self.ram.read(address, size)

    def write_physical(self, address: int, data: bytes) -> None:
        self.ram.data[address : address + len(data)] = data


def memory_of(ram: Ram) -> GuestMemory:
    memory = GuestMemory(PAGING, Physical(ram), (0x100000, 0x4000))
    memory.set_root(Root(ram.root))
    return memory


def test_a_range_is_read_in_pieces() -> None:
    """Two mappings are adjacent only in virtual memory."""
    ram = kernel()
    memory, end = memory_of(ram), TEXT + (2 << 20)
    assert list(memory.pieces(end - 16, 48)) == [(0x400000 - 16, 16), (0x3FF000, 32)]
    ram.data[0x400000 - 4 : 0x400000] = b"left"
    ram.data[0x3FF000:0x3FF005] = b"right"
    assert memory.read(end - 4, 9) == b"leftright"
    assert list(memory.pieces(TEXT, 0)) == []


def test_what_is_not_mapped_is_named() -> None:
    memory = memory_of(kernel())
    beyond = TEXT + (2 << 20) + 4096
    with pytest.raises(TargetError, match=f"{beyond:#x} cannot be read"):
        memory.read(beyond - 8, 16)
    with pytest.raises(TargetError, match="not known yet"):
        list(GuestMemory(PAGING, Physical(kernel()), (0, 0)).pieces(TEXT, 1))


def test_what_a_top_level_had_is_read_in_its_place() -> None:
    """The page of an ended process may be reused; tables of the kernel's own are read as they
    are."""
    ram = kernel()
    memory = memory_of(ram)
    was = bytes(ram.data[ram.root : ram.root + 4096])
    memory.set_root(Root(ram.root), was)
    ram.data[ram.root : ram.root + 4096] = bytes(4096)
    inside = bytes(ram.data[0x200000:0x200008])
    assert memory.read(TEXT, 8) == memory.reader()(TEXT, 8) == inside
    memory.set_root(Root(ram.root))
    with pytest.raises(TargetError, match="nothing is mapped"):
        memory.read(TEXT, 8)


def test_ram_for_tables_has_an_end() -> None:
    """A table is made for each gigabyte that has none."""
    memory = memory_of(kernel())
    memory.give_tables((0x100000, 0x2000))
    gigabytes = [TEXT - (n << 30) for n in (1, 2, 3)]
    for at in gigabytes[:2]:
        assert memory.map_at([0x400000], at, TEXT)
    with pytest.raises(TargetError, match="no room"):
        memory.map_at([0x400000], gigabytes[2], TEXT)
