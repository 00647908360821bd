"""arm64 page tables, against tables laid out here by hand from the manual's figures (DDI 0487,
D8.3, "Translation table descriptor formats"; D8.2 for the sizes; TCR_EL1)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from kinst.core.errors import TargetError
from kinst.core.page_tables import Leaf, Root
from kinst.isa.arm64.paging import PAGING
from kinst.systems.linux.arm64 import LINUX
from tests.machines.page_table_ram import TableRam

IMAGE = LINUX.virtual_layout.image
MB, GB = 1 << 20, 1 << 30
TEXT = 0xFFFF_8000_0800_0000
SHIFTS = {4: 39, 3: 30, 2: 21, 1: 12}  # bits of an address below the index, by level from the last

# Attributes of blocks and pages, and of tables.
AP_USER, AP_READ_ONLY, SHARED, AF, NG = 1 << 6, 1 << 7, 3 << 8, 1 << 10, 1 << 11
GP, CONTIGUOUS, PXN, UXN = 1 << 50, 1 << 52, 1 << 53, 1 << 54
PXN_TABLE, UXN_TABLE, NO_USER_TABLE, READ_ONLY_TABLE = 1 << 59, 1 << 60, 1 << 61, 1 << 62


class Ram(TableRam):
    """Physical memory of 1 MB for 4-level tables of 4 KB."""

    def __init__(self) -> None:
        super().__init__(MB)

    def map(
        self, address: int, entry: int, level: int, above: Mapping[int, int] | None = None
    ) -> None:
        """Write the entry that maps the address at a level.

        Args:
            above: attributes of the tables above, by level.
        """
        table = self.root
        for here in range(4, level, -1):
            at = table + 8 * (address >> SHIFTS[here] & 511)
            if not self.get(at):
                self.put(at, self.page() | 3 | (above or {}).get(here, 0))
            table = self.get(at) & 0xFFFF_FFFF_F000
        self.put(table + 8 * (address >> SHIFTS[level] & 511), entry)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes", [sum(some) for n in range(4) for some in
                   itertools.combinations((AP_USER, AP_READ_ONLY, PXN), n)]
)  # fmt: skip
def test_rights_of_blocks_and_pages(level: int, attributes: int) -> None:
    """Rights of entries: whether the processor may write and execute at EL1, and whether user mode
    has any access."""
    ram, size = Ram(), 1 << SHIFTS[level]
    kind = 3 if level == 1 else 1
    ram.map(TEXT & -size, 0x12_4000_0000 | AF | SHARED | UXN | attributes | kind, level)
    leaf = PAGING.walk(ram.read, Root(ram.root), TEXT + 0x567)
    assert leaf is not None
    assert (leaf.address, leaf.size, leaf.physical) == (TEXT & -size, size, 0x12_4000_0000)
    assert leaf.writable == (not attributes & AP_READ_ONLY)
    assert leaf.executable == (not attributes & PXN)
    assert leaf.user == bool(attributes & AP_USER)


@pytest.mark.parametrize("level", [2, 3, 4])
@pytest.mark.parametrize(
    ("table", "denied"),
    [(PXN_TABLE, "executable"), (NO_USER_TABLE, "user"), (READ_ONLY_TABLE, "writable"),
     (UXN_TABLE, ""), (1 << 58, ""), (1 << 63, "")],
)  # fmt: skip
def test_what_tables_deny_counts_for_all_below(level: int, table: int, denied: str) -> None:
    """APTable and PXNTable restrict all levels below; UXNTable is about user mode, bit 63 about
    security."""
    ram = Ram()
    ram.map(TEXT, 0x4000_0000 | AF | AP_USER | 3, 1, {level: table})
    leaf = PAGING.walk(ram.read, Root(ram.root), TEXT)
    assert leaf is not None
    rights = {name for name in ("writable", "executable", "user") if getattr(leaf, name)}
    assert rights == {"writable", "executable", "user"} - {denied}


def test_entries_that_map_nothing() -> None:
    """Bit 0 is clear or, in the last level, bit 1."""
    for level, entry in ((1, 1), (1, 2), (1, 0), (2, 2), (2, 0), (3, 2), (3, 0)):
        ram = Ram()
        ram.map(TEXT, 0x4000_0000 | AF | entry, level)
        assert PAGING.walk(ram.read, Root(ram.root), TEXT) is None
        assert list(PAGING.leaves(ram.read, Root(ram.root), *IMAGE)) == []


def test_addresses_below_the_kernels_half_are_not_mapped() -> None:
    ram = Ram()
    ram.map(TEXT, 0x4000_0000 | AF | 1, 2)
    assert PAGING.walk(ram.read, Root(ram.root), TEXT & (1 << 48) - 1) is None
    assert not PAGING.slot_free(ram.read, Root(ram.root), 0)


def test_text_is_the_longest_run() -> None:
    """Text is the longest run: those of modules are shorter, wherever they are; user mode's do not
    count."""
    code = AF | AP_READ_ONLY | SHARED | UXN
    ram = Ram()
    for n in range(3):
        ram.map(TEXT - 64 * MB + 4096 * n, 0x5000_0000 + 4096 * n | code | 3, 1)
    for n in range(4):
        ram.map(TEXT + 2 * MB * n, 0x4000_0000 + 2 * MB * n | code | 1, 2)
    for n in range(8):  # data, and user memory
        ram.map(TEXT + (4 + n) * 2 * MB, 0x4800_0000 | AF | PXN | UXN | 1, 2)
        ram.map(TEXT + (32 + n) * 2 * MB, 0x4900_0000 | AF | AP_USER | 1, 2)
    root = Root(ram.root)
    assert PAGING.find_text(ram.read, root, IMAGE) == TEXT
    empty = Ram()
    with pytest.raises(TargetError, match="no kernel text"):
        PAGING.find_text(empty.read, Root(empty.root), IMAGE)


# (TG1, T1SZ): the levels, by D8.2's tables of address sizes and lookup levels.
SIZES = [
    (2, 16, 4, 12), (2, 25, 3, 12), (2, 24, 4, 12), (2, 34, 2, 12), (2, 33, 3, 12),
    (1, 16, 4, 14), (1, 17, 3, 14), (1, 28, 2, 14), (1, 27, 3, 14),
    (3, 16, 3, 16), (3, 12, 3, 16), (3, 22, 2, 16), (3, 21, 3, 16),
]  # fmt: skip


@pytest.mark.parametrize(("granule", "size", "levels", "page_bits"), SIZES)
def test_levels_of_every_size(granule: int, size: int, levels: int, page_bits: int) -> None:
    registers = {"TTBR1_EL1": 0x7_4158_0001 | 0xABCD << 48, "TCR_EL1": size << 16 | granule << 30}
    assert PAGING.root_of(registers) == Root(0x7_4158_0000, levels, page_bits, 64 - size)


def test_what_a_stub_does_not_give() -> None:
    for given in ({"TCR_EL1": 2 << 30}, {"TTBR1_EL1": 0}, {}):
        with pytest.raises(TargetError, match="does not give the register T"):
            PAGING.root_of(given)
    with pytest.raises(TargetError, match="LPA2"):  # a reserved granule
        PAGING.root_of({"TTBR1_EL1": 0, "TCR_EL1": 16 << 16})


def test_the_new_leaf_is_as_the_text_is() -> None:
    """The new leaf has the text's memory type (AttrIndx, bits 4 to 2) and nG.

    It is writable and executable at EL1, never in user mode; shareable; and accessed, or the first
    access would fault.
    """
    for memory in range(8):
        for flags in (0, NG):
            entry = 0x4000_0000 | AF | SHARED | AP_READ_ONLY | CONTIGUOUS | memory << 2 | flags | 1
            text = Leaf(TEXT, 0x4000_0000, 2 * MB, entry, False, True, False)
            made = PAGING.leaf_entry(0x1_8060_0000, text)
            assert made == 0x1_8060_0000 | UXN | SHARED | AF | memory << 2 | flags | 1


def test_reach_is_less_than_a_branch_has() -> None:
    """The branch reaches plus and minus 128 MB (C6.2, B)."""
    assert 64 * MB < PAGING.REACH < 128 * MB
