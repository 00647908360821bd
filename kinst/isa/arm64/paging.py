"""The page table format of arm64 (AArch64), with pages of 4, 16 or 64 KB.

Source: Arm Architecture Reference Manual (DDI 0487), D8 "The AArch64 Virtual Memory System
Architecture"; Linux, Documentation/arm64/memory.rst.

Levels are counted from the last one up, as in core/page_tables.py: 1 is the manual's level 3
(pages), 2 is the manual's level 2 (blocks, of 2 MB if pages have 4 KB), and so on.

Tested by tests/isa/arm64/test_paging.py and test_code.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kinst.core.errors import TargetError
from kinst.core.page_tables import Above, Format, Leaf, Paging, Read, Root, no_text, shift

VALID = 1 << 0
TABLE = 1 << 1  # in a last-level entry: a page
ATTRIBUTES = 7 << 2  # which memory type, an index into MAIR_EL1
USER = 1 << 6  # AP[1]
READ_ONLY = 1 << 7  # AP[2]
SHAREABLE = 3 << 8  # inner shareable
ACCESSED = 1 << 10
NOT_GLOBAL = 1 << 11
GUARDED = 1 << 50  # GP: indirect branches must land on BTI
PRIVILEGED_NO_EXECUTE = 1 << 53
USER_NO_EXECUTE = 1 << 54
# Bits of table entries that restrict every mapping below the table.
TABLE_PRIVILEGED_NO_EXECUTE = 1 << 59
TABLE_USER = 1 << 61  # APTable[0]: *no* access for the user
TABLE_READ_ONLY = 1 << 62

# Images and modules lie below this address. The fixmap, in which a kernel that is unmapped from
# user mode (KPTI) has its vectors, lies above it (Linux, Documentation/arm64/memory.rst).
_FIXMAP = 0xFFFF_FBFF_F000_0000
_ADDRESS = 0x0000_FFFF_FFFF_F000
_PAGE_BITS = {1: 14, 2: 12, 3: 16}  # by TCR_EL1.TG1
_WIDE_DESCRIPTORS = 1 << 59  # TCR_EL1.DS: addresses of 52 bits with pages of 4 or 16 KB
# Pages from user mode's table to swapper_pg_dir; Linux, arch/arm64/kernel/vmlinux.lds.S.
_TRAMPOLINE_TABLES = 2
_USER_SPACE = 1 << 48  # of TTBR1_EL1: USER_ASID_FLAG
_EL2_HOST = 1 << 34  # HCR_EL2.E2H: the kernel runs at EL2
_MMU = 1 << 0  # of SCTLR_EL1
_USER_MODE = 0  # of PSTATE.M[3:2]: EL0


def _refuse_el2(registers: Mapping[str, int]) -> None:
    """Raise TargetError for a kernel at EL2 (Virtualization Host Extensions; DDI 0487, D8.1).

    Such a kernel has its page tables and per-CPU base in registers of EL2, which its code calls
    TTBR1_EL1 and TPIDR_EL1. But a stub shows the registers of EL1, which belong to a virtual
    machine of that kernel.
    """
    if registers.get("HCR_EL2", 0) & _EL2_HOST:
        raise TargetError(
            "this kernel runs at EL2 (VHE), and kinst knows arm64 kernels at EL1 only",
            "start its machine without virtualization=on",
        )


def _leaf(page_bits: int, address: int, entry: int, level: int, above: Above) -> Leaf:
    size = 1 << shift(level, page_bits)
    denied = 0
    for table in above:
        denied |= table
    return Leaf(
        address & -size,
        entry & _ADDRESS & -size,
        size,
        entry,
        not entry & READ_ONLY and not denied & TABLE_READ_ONLY,
        not entry & PRIVILEGED_NO_EXECUTE and not denied & TABLE_PRIVILEGED_NO_EXECUTE,
        bool(entry & USER) and not denied & TABLE_USER,
    )


def _format(page_bits: int) -> Format:
    # With large pages the lowest bits of an entry's address mean something else.
    address = _ADDRESS & -(1 << page_bits)
    return Format(
        # A last-level entry without the second bit is reserved, and no translation.
        valid=lambda entry, level: bool(entry & VALID) and (level > 1 or bool(entry & TABLE)),
        is_leaf=lambda entry, level: level == 1 or not entry & TABLE,
        table=lambda entry: entry & address,
        link=lambda table: table | TABLE | VALID,
        leaf=partial(_leaf, page_bits),
        canonical=False,
        page_bits=page_bits,
        page=lambda entry: entry | TABLE,
    )


class Arm64Paging(Paging):
    """The page table format of arm64; implements Paging (core/page_tables.py)."""

    REACH = (128 << 20) - (1 << 20)
    USER_END = 1 << 48  # of TTBR0_EL1 with T0SZ 16 (Arm ARM, D8.2)
    FREE_IN_NEW_TABLES = True  # with KASLR the image may lie at the edge of a gigabyte

    def root_of(self, registers: Mapping[str, int]) -> Root:
        """Return the root of the kernel's page tables, by TTBR1_EL1. In user mode under KPTI,
        TTBR1_EL1 has a table that maps only the entry to the kernel; the kernel's own table is
        returned instead.

        Raises:
            TargetError: the stub gives no system registers, page table entries have addresses of 52
                bits, or the kernel runs at EL2.
        """
        _refuse_el2(registers)
        try:
            control, root = registers["TCR_EL1"], registers["TTBR1_EL1"] & _ADDRESS
        except KeyError as missing:
            raise TargetError(
                f"the GDB stub does not give the register {missing.args[0]}, which leads to the"
                " page tables",
                "use QEMU's stub, or a kernel that runs at EL1",
            ) from missing
        page_bits = _PAGE_BITS.get(control >> 30 & 3, 0)
        if not page_bits or control & _WIDE_DESCRIPTORS:
            raise TargetError(
                "this kernel's page tables are of a form that kinst does not know (LPA2)",
                "use a CPU without LPA2, such as QEMU's -cpu neoverse-n1",
            )
        bits = 64 - (control >> 16 & 0x3F)
        vectors = registers.get("VBAR", registers.get("VBAR_EL1", 0))
        # A kernel with its vectors in the fixmap is unmapped from user mode: then this bit of its
        # table's address-space number is set in user mode only (Linux, asm/mmu.h).
        if vectors >= _FIXMAP and registers["TTBR1_EL1"] & _USER_SPACE:
            root += _TRAMPOLINE_TABLES << page_bits
        return Root(root, -(-(bits - page_bits) // (page_bits - 3)), page_bits, bits)

    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Return whether the CPU is in user mode (the exception level is EL0)."""
        return registers.get("cpsr", 0) >> 2 & 3 == _USER_MODE

    def translates(self, registers: Mapping[str, int]) -> bool:
        """Return whether the CPU translates addresses (SCTLR_EL1.M is set). Raises TargetError if
        the kernel runs at EL2."""
        _refuse_el2(registers)
        return bool(registers.get("SCTLR", registers.get("SCTLR_EL1", 0)) & _MMU)

    def find_text(self, read: Read, root: Root, image: tuple[int, int]) -> int:
        """Return the address of the kernel's text: the start of the longest executable range
        between the two addresses `image`. Shorter executable ranges there are modules.

        Raises TargetError if no range is executable.
        """
        ranges = list(self.executable_ranges(read, root, image))
        if not ranges:
            raise no_text()
        return max(ranges, key=lambda each: each[1] - each[0])[0]

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """Return a page table entry that maps a physical address, executable for the kernel only.
        It is cached and global as `like` is, which maps the kernel's code.

        Raises:
            TargetError: the kernel guards its branch targets (BTI), as `like` shows. In such a
                kernel the paciasp at a function's start is a branch target, which a probe must not
                replace.
        """
        if like.entry & GUARDED:
            raise TargetError(
                "this kernel guards its branch targets (BTI), some of which probes would replace",
                "boot it with --append arm64.nobti",
            )
        kept = like.entry & (ATTRIBUTES | NOT_GLOBAL)
        return physical | kept | USER_NO_EXECUTE | SHAREABLE | ACCESSED | VALID


PAGING = Arm64Paging(*map(_format, _PAGE_BITS.values()))
