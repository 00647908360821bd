"""amd64 page tables, against tables laid out here by hand from the SDM's figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.core.errors import TargetError
from kinst.core.page_tables import Root
from kinst.isa.amd64 import board as machine
from kinst.isa.amd64.paging import PAGING
from kinst.machines.attach.guardian import kernels_tables
from kinst.systems.linux.amd64 import LINUX
from tests.machines.page_table_ram import TableRam
from tests.tiers import draws

IMAGE = LINUX.virtual_layout.image

P, RW, US, PS, G, NX = 1, 2, 4, 0x80, 0x100, 1 << 63
TEXT = 0xFFFF_FFFF_8100_0000


class Ram(TableRam):
    """Physical memory of 4 MB, and a builder of 4-level tables in it."""

    def __init__(self, levels: int = 4) -> None:
        super().__init__(4 << 20)
        self.levels = levels

    def map(self, va: int, entry: int, size: int, upper: int = P | RW | US) -> None:
        """Map va by entry: 4096, 2 MB or 1 GB.  Indices are bits 47:39, 38:30, 29:21, 20:12."""
        shifts = [48, 39, 30, 21, 12][5 - self.levels :]
        last = {4096: 12, 2 << 20: 21, 1 << 30: 30}[size]
        table = self.root
        for shift in shifts:
            at = table + 8 * ((va >> shift) % 512)
            if shift == last:
                self.put(at, entry)
                return
            if not self.get(at):
                self.put(at, self.page() | upper)
            table = self.get(at) & 0xFFFFFFFFFF000


def kernel() -> Ram:
    ram = Ram()
    ram.map(TEXT, 0x200000 | P | PS | G, 2 << 20)
    ram.map(TEXT + (2 << 20), 0x3FF000 | P | RW | G | NX, 4096)
    ram.map(0x400000, 0x5000 | P | RW | US, 4096)
    ram.map(0xFFFF_8880_0000_0000, P | RW | PS | NX, 1 << 30)
    return ram


def test_walk_at_every_size() -> None:
    ram = kernel()
    root = Root(ram.root)
    text = PAGING.walk(ram.read, root, TEXT + 0x12345)
    assert text is not None
    assert (text.address, text.physical, text.size) == (TEXT, 0x200000, 2 << 20)
    assert (text.writable, text.executable) == (False, True)
    data = PAGING.walk(ram.read, root, TEXT + (2 << 20) + 0xFFF)
    assert data is not None
    assert (data.physical, data.size, data.writable, data.executable) == (
        0x3FF000,
        4096,
        True,
        False,
    )
    direct = PAGING.walk(ram.read, root, 0xFFFF_8880_2345_6789)
    assert direct is not None
    assert (direct.address, direct.physical, direct.size) == (0xFFFF_8880_0000_0000, 0, 1 << 30)
    user = PAGING.walk(ram.read, root, 0x400FFF)
    assert user is not None and user.user
    for hole in (0, TEXT - 1, TEXT + (2 << 20) + 4096, 0xFFFF_8880_4000_0000, 0x401000):
        assert PAGING.walk(ram.read, root, hole) is None


def test_rights_of_upper_levels_count() -> None:
    ram = Ram()
    ram.map(TEXT, 0x200000 | P | RW | PS | US, 2 << 20, upper=P | NX)
    leaf = PAGING.walk(ram.read, Root(ram.root), TEXT)
    assert leaf is not None
    assert not leaf.writable and not leaf.executable and not leaf.user


def test_leaves_come_in_order_with_canonical_addresses() -> None:
    ram = kernel()
    found = list(PAGING.leaves(ram.read, Root(ram.root), 0, 1 << 64))
    assert [(leaf.address, leaf.size) for leaf in found] == [
        (0x400000, 4096),
        (0xFFFF_8880_0000_0000, 1 << 30),
        (TEXT, 2 << 20),
        (TEXT + (2 << 20), 4096),
    ]
    inside = list(PAGING.leaves(ram.read, Root(ram.root), TEXT + 5, TEXT + 6))
    assert [leaf.address for leaf in inside] == [TEXT]


def test_five_levels() -> None:
    ram = Ram(levels=5)
    ram.map(TEXT, 0x200000 | P | PS, 2 << 20)
    ram.map(0xFF11_0000_0000_0000, P | RW | NX | PS, 2 << 20)
    root = PAGING.root_of({"cr3": ram.root | 0x3, "cr4": 1 << 12, "cs": 0x10})
    assert root == Root(ram.root, 5)
    found = [leaf.address for leaf in PAGING.leaves(ram.read, root, 0, 1 << 64)]
    assert found == [0xFF11_0000_0000_0000, TEXT]
    leaf = PAGING.walk(ram.read, root, TEXT + 1)
    assert leaf is not None and leaf.physical == 0x200000


def test_the_user_root_under_pti_is_turned_into_the_kernels() -> None:
    assert PAGING.root_of({"cr3": 0x12345F801 | 1 << 12, "cr4": 0, "cs": 0x33}).physical == (
        0x12345E000
    )
    assert PAGING.root_of({"cr3": 0x80000001_2345D801, "cr4": 0, "cs": 0x10}).physical == (
        0x12345D000
    )


def test_a_kernel_that_has_the_users_tables_still() -> None:
    """A CPU in the kernel's entries under PTI has the user's tables, 4 KiB after the kernel's."""
    entered = {"cr3": 0x1_2345_F001, "cr4": 0, "cs": 0x10}
    assert [root.physical for root in PAGING.roots_of(entered)] == [0x1_2345_F000, 0x1_2345_E000]
    inside = {"cr3": 0x1_2345_E001, "cr4": 1 << 12, "cs": 0x10}
    assert PAGING.roots_of(inside) == (Root(0x1_2345_E000, 5),)
    outside = {"cr3": 0x1_2345_F001, "cr4": 0, "cs": 0x33}
    assert PAGING.roots_of(outside) == (Root(0x1_2345_E000),)


def pair_of_tables() -> tuple[Ram, int, int]:
    """Return two top-level tables: the first begins at 8 KiB, the second is 4 KiB after it."""
    ram = Ram()
    first = next(page for page in iter(ram.page, None) if not page & 0x1000)
    second = ram.page()
    assert second == first + 0x1000
    return ram, first, second


def test_a_kernel_with_the_users_tables_is_found_by_its_own() -> None:
    """Under PTI the user's tables map the kernel's entries, but not the text before these."""
    ram, kernels, users = pair_of_tables()
    ram.root = users
    ram.map(TEXT + (8 << 20), 0x200000 | P | PS, 2 << 20)
    inside, entered = ({"cr3": cr3, "cr4": 0, "cs": 0x10} for cr3 in (kernels, users))
    with pytest.raises(TargetError):  # the kernel's table has no entry yet
        kernels_tables(PAGING, ram.read, inside, IMAGE)
    entries = kernels_tables(PAGING, ram.read, entered, IMAGE)
    assert entries == (TEXT + (8 << 20), Root(users))
    ram.root = kernels
    ram.map(TEXT, 0x200000 | P | PS, 2 << 20)
    for registers in (inside, entered):
        assert kernels_tables(PAGING, ram.read, registers, IMAGE) == (TEXT, Root(kernels))


def test_what_a_killed_kinst_left_below_the_text_is_not_the_text() -> None:
    ram = kernel()
    registers = {"cr3": ram.root, "cr4": 0, "cs": 0x10}
    like = PAGING.walk(ram.read, Root(ram.root), TEXT)
    assert like is not None
    ram.map(TEXT - (4 << 20), PAGING.leaf_entry(0x200000, like), 2 << 20)
    assert PAGING.find_text(ram.read, Root(ram.root), IMAGE) == TEXT - (4 << 20)
    assert kernels_tables(PAGING, ram.read, registers, IMAGE) == (TEXT, Root(ram.root))


def test_text_that_can_be_written_is_text_where_there_is_no_other() -> None:
    ram = Ram()
    ram.map(TEXT, 0x200000 | P | RW | PS, 2 << 20)
    registers = {"cr3": ram.root, "cr4": 0, "cs": 0x10}
    assert kernels_tables(PAGING, ram.read, registers, IMAGE) == (TEXT, Root(ram.root))


def test_tables_of_a_kernel_without_pti_may_be_anywhere() -> None:
    """The tables of another process may be at lower addresses."""
    ram, before, here = pair_of_tables()
    for root in (before, here):
        ram.root = root
        ram.map(TEXT, 0x200000 | P | PS, 2 << 20)
    registers = {"cr3": here, "cr4": 0, "cs": 0x10}
    assert kernels_tables(PAGING, ram.read, registers, IMAGE) == (TEXT, Root(here))


def test_find_text_passes_over_what_is_not_text() -> None:
    ram = kernel()
    ram.map(0xFFFF_FFFF_8000_0000, 0x1000 | P | RW | NX, 4096)
    assert PAGING.find_text(ram.read, Root(ram.root), IMAGE) == TEXT


def test_free_slots_are_the_zero_entries_of_the_existing_table() -> None:
    ram = kernel()
    low = TEXT - (8 << 20)
    free = PAGING.free_slots(ram.read, Root(ram.root), low, TEXT + (8 << 20))
    assert free == [low + i * (2 << 20) for i in (0, 1, 2, 3, 6, 7)]
    assert PAGING.free_slots(ram.read, Root(ram.root), 1 << 40, (1 << 40) + (1 << 30)) == []


def test_slots_that_make_leaf_may_use() -> None:
    ram = kernel()
    root = Root(ram.root)
    free = {at: PAGING.slot_free(ram.read, root, at) for at in (
        TEXT - (2 << 20), TEXT, TEXT + (2 << 20), 0xFFFF_8880_0000_0000, 0xFFFF_8880_4000_0000,
        0xFFFF_9000_0000_0000,
    )}  # fmt: skip
    assert list(free.values()) == [True, False, False, False, True, False]


@settings(max_examples=draws(25, 60), deadline=None)
@given(st.sets(st.integers(0, 2047), min_size=1, max_size=40))
def test_made_leaves_are_what_walk_then_finds(slots: set[int]) -> None:
    """Map four gigabytes beside the first ones of the direct map: tables are missing at first."""
    ram = kernel()
    root = Root(ram.root)
    like = PAGING.walk(ram.read, root, TEXT)
    assert like is not None
    entry = PAGING.leaf_entry(0x40000000, like)
    assert entry == 0x40000000 | 0x1E3
    base = 0xFFFF_8880_4000_0000
    before = {leaf.address for leaf in PAGING.leaves(ram.read, root, 0, 1 << 64)}
    for slot in slots:
        at = base + slot * (2 << 20)
        writes = PAGING.make_leaf(ram.read, root, at, entry, ram.page)
        assert writes is not None
        for place, data in writes:
            ram.data[place : place + 8] = data
        assert PAGING.make_leaf(ram.read, root, at, entry, ram.page) is None
    after = {leaf.address for leaf in PAGING.leaves(ram.read, root, 0, 1 << 64)}
    assert after - before == {base + slot * (2 << 20) for slot in slots}
    made = PAGING.walk(ram.read, root, base + min(slots) * (2 << 20))
    assert made is not None and made.writable and made.executable and not made.user


def test_no_leaf_where_a_process_would_need_its_own() -> None:
    ram = kernel()
    assert PAGING.make_leaf(ram.read, Root(ram.root), 0xFFFF_9000_0000_0000, 1, ram.page) is None


def test_ram_of_q35() -> None:
    gigabyte = 1 << 30
    assert machine.memory_map(2 * gigabyte) == ((0, 0, 2 * gigabyte),)
    assert machine.memory_map(3 * gigabyte) == (
        (0, 0, 2 * gigabyte),
        (4 * gigabyte, 2 * gigabyte, gigabyte),
    )
