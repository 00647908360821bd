"""riscv64 page tables, against tables laid out here by hand from the specification's figures
(Sv39, Sv48 and Sv57 page-table entries; satp)."""

from __future__ import annotations

import pytest

from kinst.core.errors import TargetError
from kinst.core.page_tables import Root
from kinst.isa.riscv64 import board as machine
from kinst.isa.riscv64.paging import PAGING
from kinst.systems.linux.riscv64 import LINUX
from tests.machines.page_table_ram import TableRam

IMAGE = LINUX.virtual_layout.image

V, R, W, X, U, G, A, D = (1 << n for n in range(8))
TEXT = 0xFFFF_FFFF_8020_0000
MEGABYTE = 1 << 20


class Ram(TableRam):
    """Physical memory of 1 MB, and a builder of tables in it."""

    def __init__(self, levels: int) -> None:
        super().__init__(MEGABYTE)
        self.levels = levels

    def map(self, virtual: int, entry: int, level: int) -> None:
        """Make `entry` the leaf at a level (1: 4 KB, 2: 2 MB, 3: 1 GB)."""
        table = self.root
        for here in range(self.levels, level, -1):
            at = table + (virtual >> (3 + 9 * here) & 511) * 8
            value = self.get(at)
            if not value & V:
                value = self.page() >> 12 << 10 | V
                self.put(at, value)
            table = value >> 10 << 12
        self.put(table + (virtual >> (3 + 9 * level) & 511) * 8, entry)


def entry(physical: int, flags: int) -> int:
    return physical >> 12 << 10 | flags


@pytest.fixture(params=[3, 4, 5])
def ram(request: pytest.FixtureRequest) -> Ram:
    made = Ram(request.param)
    made.map(TEXT - 0x20_0000, entry(0x8000_0000, V | R | W | A | D | G), 2)
    made.map(TEXT, entry(0x8020_0000, V | R | X | A | D | G), 2)
    made.map(TEXT + 0x20_3000, entry(0x8123_4000, V | R | W | A | D | G), 1)
    made.map(0x40_0000, entry(0x9000_0000, V | R | X | U | A), 1)
    return made


def test_walk(ram: Ram) -> None:
    root = Root(ram.root, ram.levels)
    leaf = PAGING.walk(ram.read, root, TEXT + 0x12345)
    assert leaf is not None
    assert (leaf.address, leaf.physical, leaf.size) == (TEXT, 0x8020_0000, 2 * MEGABYTE)
    assert (leaf.writable, leaf.executable, leaf.user) == (False, True, False)
    small = PAGING.walk(ram.read, root, TEXT + 0x20_3FFF)
    assert small is not None
    assert (small.physical, small.size, small.writable) == (0x8123_4000, 4096, True)
    assert PAGING.walk(ram.read, root, TEXT + 0x20_4000) is None
    user = PAGING.walk(ram.read, root, 0x40_0000)
    assert user is not None and user.user


def test_a_contiguous_page_of_64_kb(ram: Ram) -> None:
    """Svnapot: PPN bits 3 to 0 are 1000 and the address's own bits take their place."""
    for n in range(16):
        ram.map(TEXT + 0x21_0000 + n * 0x1000, entry(0x8200_8000, V | R | A) | 1 << 63, 1)
    root = Root(ram.root, ram.levels)
    leaf = PAGING.walk(ram.read, root, TEXT + 0x21_5678)
    assert leaf is not None
    assert (leaf.address, leaf.physical, leaf.size) == (TEXT + 0x21_0000, 0x8200_0000, 0x1_0000)
    found = list(PAGING.leaves(ram.read, root, TEXT, TEXT + 0x40_0000))
    assert [(x.address, x.size) for x in found] == [
        (TEXT, 2 * MEGABYTE), (TEXT + 0x20_3000, 4096), (TEXT + 0x21_0000, 0x1_0000),
    ]  # fmt: skip


def test_text_is_the_lowest_executable_mapping_of_the_kernels(ram: Ram) -> None:
    assert PAGING.find_text(ram.read, Root(ram.root, ram.levels), IMAGE) == TEXT
    empty = Ram(3)
    with pytest.raises(TargetError, match="no kernel text"):
        PAGING.find_text(empty.read, Root(empty.root, 3), IMAGE)


def test_a_leaf_is_added_near(ram: Ram) -> None:
    root = Root(ram.root, ram.levels)
    free = PAGING.free_slots(ram.read, root, *IMAGE)
    assert TEXT + 0x40_0000 in free
    assert TEXT not in free and TEXT + 0x20_0000 not in free
    at = TEXT + 0x40_0000
    assert PAGING.slot_free(ram.read, root, at) and not PAGING.slot_free(ram.read, root, TEXT)
    like = PAGING.walk(ram.read, root, TEXT)
    assert like is not None
    value = PAGING.leaf_entry(0xC000_0000, like)
    assert value == entry(0xC000_0000, V | R | W | X | A | D | G)
    writes = PAGING.make_leaf(ram.read, root, at, value, ram.page)
    assert writes is not None and len(writes) == 1
    for where, data in writes:
        ram.put(where, int.from_bytes(data, "little"))
    leaf = PAGING.walk(ram.read, root, at + 5)
    assert leaf is not None and leaf.physical == 0xC000_0000 and leaf.executable
    assert PAGING.make_leaf(ram.read, root, at, value, ram.page) is None


def test_missing_tables_are_made_but_not_at_the_top(ram: Ram) -> None:
    root = Root(ram.root, ram.levels)
    like = PAGING.walk(ram.read, root, TEXT)
    assert like is not None
    value = PAGING.leaf_entry(0xC000_0000, like)
    elsewhere = 0xFFFF_FFFF_C020_0000 if ram.levels > 3 else 0xFFFF_FFC0_0000_0000
    writes = PAGING.make_leaf(ram.read, root, elsewhere, value, ram.page)
    assert (writes is None) == (ram.levels == 3)
    assert PAGING.slot_free(ram.read, root, elsewhere) == (ram.levels > 3)
    for where, data in writes or ():
        ram.put(where, int.from_bytes(data, "little"))
    leaf = PAGING.walk(ram.read, root, elsewhere)
    assert (leaf is not None) == (ram.levels > 3)


def test_registers() -> None:
    for mode, levels in ((8, 3), (9, 4), (10, 5)):
        satp = mode << 60 | 0x1234 << 44 | 0x8_1234
        assert PAGING.root_of({"satp": satp}) == Root(0x8123_4000, levels)
    with pytest.raises(TargetError, match="no page tables"):
        PAGING.root_of({"satp": 0})
    assert PAGING.in_user_mode({"priv": 0}) and not PAGING.in_user_mode({"priv": 1})


def test_a_hart_that_waits_is_not_one_that_hangs() -> None:
    timer = 1 << 5
    idle = {"priv": 1, "sstatus": 0, "sip": 0, "sie": timer}
    assert not machine.interrupts_off(idle)
    assert machine.interrupts_off({**idle, "sip": timer})
    assert not machine.interrupts_off({**idle, "sip": timer, "sstatus": 2})
    assert not machine.interrupts_off({**idle, "sip": timer, "priv": 0})
    assert machine.memory_map(1 << 30) == ((0x8000_0000, 0, 1 << 30),)


def test_a_cpu_that_faults_in_its_trap_entry_is_lost() -> None:
    """The registers were read from such a CPU: a store to a stack that is no longer mapped."""
    entry = 0xFFFFFFFF80A7662C
    seen = {"stvec": entry, "pc": entry, "sepc": entry + 0xA8, "scause": 15}
    assert machine.is_lost(seen) and machine.is_lost({**seen, "pc": entry + 4, "scause": 13})
    # Privileged specification, "scause": page faults are 12, 13 and 15.
    lost = [cause for cause in range(64) if machine.is_lost({**seen, "scause": cause})]
    assert lost == [12, 13, 15]
    timer = 1 << 63 | 5
    for other in (
        {"pc": entry + 4096}, {"sepc": entry - 4}, {"scause": timer}, {"scause": 8},
        {"stvec": entry + 4096}, {"sepc": entry + 4096}, {"pc": 0x802010BC},
    ):  # fmt: skip
        assert not machine.is_lost({**seen, **other}), other
