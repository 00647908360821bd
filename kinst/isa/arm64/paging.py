"""Page tables of arm64 (AArch64; pages of 4, 16 or 64 KB), read and extended through physical
memory.

Source: Arm Architecture Reference Manual (DDI 0487), D8 "The AArch64 Virtual Memory System
Architecture"; Linux, Documentation/arm64/memory.rst.  Everything is a function of
`read_physical(address, size) -> bytes`; nothing is kept.

Levels are counted from the last one up, as on every ISA of kinst: 1 is what the manual calls
level 3 (pages), 2 its level 2 (blocks, of 2 MB where pages have 4 KB), and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from kinst.core.errors import TargetError
from kinst.core.page_tables import Above, Format, Leaf, Read, Root, Tables, shift

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
# In table entries: what holds for everything below.
TABLE_PRIVILEGED_NO_EXECUTE = 1 << 59
TABLE_USER = 1 << 61  # APTable[0]: *no* access for the user
TABLE_READ_ONLY = 1 << 62

REACH = (128 << 20) - (1 << 20)  # of a direct branch, with a margin

# Below it are images and modules, in it and above the fixmap, where a kernel that is unmapped from
# user mode (KPTI) has its vectors (Linux, Documentation/arm64/memory.rst).
_FIXMAP = 0xFFFF_FBFF_F000_0000
_ADDRESS = 0x0000_FFFF_FFFF_F000
_PAGE_BITS = {1: 14, 2: 12, 3: 16}  # by TCR_EL1.TG1
_WIDE_DESCRIPTORS = 1 << 59  # TCR_EL1.DS: addresses of 52 bits with pages of 4 or 16 KB
_TRAMPOLINE_TABLES = 2  # pages; Linux, arch/arm64/kernel/vmlinux.lds.S: from it to swapper_pg_dir
_USER_SPACE = 1 << 48  # of TTBR1_EL1: USER_ASID_FLAG
_EL2_HOST = 1 << 34  # HCR_EL2.E2H: the kernel runs at EL2
_USER_MODE = 0  # of PSTATE.M[3:2]: EL0
_INIT_TEXT_WITHIN = 64 << 20  # after the text, where the code that only boots lies


def root_of(registers: Mapping[str, int]) -> Root:
    """The kernel's root as this CPU has it: TTBR1_EL1, and not the table with nothing but the
    way into the kernel that user mode has where the kernel is unmapped from it (KPTI).

    Raises TargetError when the stub gives no system registers, entries are those of 52-bit
    addresses, or the kernel runs at EL2.
    """
    _refuse_el2(registers)
    try:
        control, root = registers["TCR_EL1"], registers["TTBR1_EL1"] & _ADDRESS
    except KeyError as missing:
        raise TargetError(
            f"the GDB stub does not give {missing.args[0]}, which page tables need",
            "use QEMU's stub, or a kernel that runs at EL1",
        ) from missing
    page_bits = _PAGE_BITS.get(control >> 30 & 3, 0)
    if not page_bits or control & _WIDE_DESCRIPTORS:
        raise TargetError(
            "this kernel's page tables are of a form that kinst does not know (LPA2)",
            "a CPU of QEMU's without it, such as -cpu neoverse-n1, has other ones",
        )
    bits = 64 - (control >> 16 & 0x3F)
    vectors = registers.get("VBAR", registers.get("VBAR_EL1", 0))
    # With its vectors in the fixmap the kernel is unmapped from user mode, and then this bit of
    # its table's address-space number is only set while it is (Linux, asm/mmu.h).
    if vectors >= _FIXMAP and registers["TTBR1_EL1"] & _USER_SPACE:
        root += _TRAMPOLINE_TABLES << page_bits
    return Root(root, -(-(bits - page_bits) // (page_bits - 3)), page_bits, bits)


def _refuse_el2(registers: Mapping[str, int]) -> None:
    """At EL2 (Virtualization Host Extensions; DDI 0487, D8.1) what is called TTBR1_EL1 and
    TPIDR_EL1 in code is EL2's register, and the stub's registers of these names are a guest's."""
    if registers.get("HCR_EL2", 0) & _EL2_HOST:
        raise TargetError(
            "this kernel runs at EL2 (VHE), and kinst knows arm64 kernels at EL1 only",
            "start its machine without virtualization=on",
        )


def roots_of(registers: Mapping[str, int]) -> tuple[Root, ...]:
    """See core/paging.py."""
    return (root_of(registers),)


def in_user_mode(registers: Mapping[str, int]) -> bool:
    """Whether the CPU stands in user mode (EL0)."""
    return registers.get("cpsr", 0) >> 2 & 3 == _USER_MODE


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
    # The lowest bits of an address in an entry are others' where pages are large.
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


_TABLES = {page_bits: Tables(_format(page_bits)) for page_bits in _PAGE_BITS.values()}


def walk(read: Read, root: Root, address: int) -> Leaf | None:
    """See core/page_tables.py."""
    return _TABLES[root.page_bits].walk(read, root, address)


def leaves(read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
    """See core/page_tables.py."""
    return _TABLES[root.page_bits].leaves(read, root, low, high)


def slot_free(read: Read, root: Root, address: int) -> bool:
    """See core/page_tables.py."""
    return _TABLES[root.page_bits].slot_free(read, root, address)


def make_leaf(
    read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
) -> list[tuple[int, bytes]] | None:
    """See core/page_tables.py."""
    return _TABLES[root.page_bits].make_leaf(read, root, address, entry, new_table)


def free_slots(read: Read, root: Root, low: int, high: int) -> list[int]:
    """Virtual addresses in [low, high) of 2 MB slots that are free, in tables that exist or that
    make_leaf() can make: with KASLR the image may lie at the edge of a gigabyte."""
    return _TABLES[root.page_bits].free_slots(read, root, low, high, missing=True)


def find_text(read: Read, root: Root, image: tuple[int, int]) -> int:
    """The start of the kernel's text (_stext), KASLR or not: of the longest run of executable
    mappings, which no module's is.  Raises TargetError when there is none (the kernel is not
    up yet)."""
    runs = _executable_runs(read, root, image)
    if not runs:
        raise TargetError("no kernel text found in the guest's page tables")
    return max(runs, key=lambda run: run[1] - run[0])[0]


def _executable_runs(read: Read, root: Root, image: tuple[int, int]) -> list[tuple[int, int]]:
    """[start, end) of what the kernel may execute, adjacent mappings as one."""
    runs: list[tuple[int, int]] = []
    for leaf in leaves(read, root, *image):
        if not leaf.executable or leaf.user:
            continue
        end = leaf.address + leaf.size
        if runs and runs[-1][1] == leaf.address:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((leaf.address, end))
    return runs


def text_is_final(read: Read, registers: Mapping[str, int], image: tuple[int, int]) -> bool:
    """Whether Linux has given up the code that only boots, which it does just before it starts
    init (init/main.c, free_initmem), as a CPU with these registers sees it."""
    _refuse_el2(registers)
    if not registers.get("SCTLR", registers.get("SCTLR_EL1", 0)) & 1:
        return False
    root = root_of(registers)
    try:
        start = find_text(read, root, image)
    except TargetError:
        return False
    near = [at for at, _ in _executable_runs(read, root, image) if start <= at]
    return not any(at < start + _INIT_TEXT_WITHIN for at in near if at != start)


def leaf_entry(physical: int, like: Leaf) -> int:
    """An entry that maps 2 MB at physical writable and executable for the kernel, cached and
    global as the mapping `like` is.

    Raises TargetError when `like`, the kernel's code, guards its branch targets: the paciasp at
    a function's start is then one, and a probe must not take its place.
    """
    if like.entry & GUARDED:
        raise TargetError(
            "this kernel guards its branch targets (BTI), which probes would remove",
            "boot it with --append arm64.nobti",
        )
    kept = like.entry & (ATTRIBUTES | NOT_GLOBAL)
    return physical | kept | USER_NO_EXECUTE | SHAREABLE | ACCESSED | VALID
