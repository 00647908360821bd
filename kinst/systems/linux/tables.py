"""Linux's own tables of special code, read from a vmlinux or module file.

Each table lists code that the kernel rewrites, looks up by address, or forbids to probe. All
addresses are linked addresses. The file also has the tables that the kernel frees after boot.

Source: struct exception_table_entry, jump_entry, static_call_site, alt_instr, paravirt_patch_site
and bug_entry of the kernel's headers. The sizes of entries are checked against the table's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.columns import distinct
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.elf import Elf
from kinst.image.relocations import pointers

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    """Ranges of addresses, sorted by start. They may overlap.

    Attributes:
        start: start address of each range.
        size: size of each range in bytes, in the same order.
    """

    start: U64
    size: U64

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def _reach(self) -> U64:
        # The highest end so far, which makes overlaps() correct for nested spans.
        return np.maximum.accumulate(self.start + self.size) if len(self.start) else self.start

    def overlaps(self, addresses: U64, sizes: U64) -> npt.NDArray[np.bool_]:
        """Return, for each range [address, address + size), in the same order, whether any span
        overlaps it."""
        if not len(self.start):
            return np.zeros(len(addresses), dtype=np.bool_)
        before = np.searchsorted(self.start, addresses + sizes, side="left")
        reach = self._reach[np.maximum(before - 1, 0)]
        return (before > 0) & (reach > addresses)


def spans(start: U64, size: U64) -> Spans:
    """Make Spans of ranges that are given in any order. Empty ranges are left out.

    Args:
        start: start address of each range.
        size: size of each range in bytes, in the same order.
    """
    start, size = start[size > 0], size[size > 0]
    order = np.argsort(start, kind="stable")
    return Spans(start[order], size[order])


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the kernel's code, [start, end) in linked addresses, that two symbols delimit."""

    name: str
    start: int
    end: int


# (name, symbol at the start, symbol at the end) of each region.
REGIONS = (
    ("noinstr", "__noinstr_text_start", "__noinstr_text_end"),
    ("entry", "__entry_text_start", "__entry_text_end"),
    ("irqentry", "__irqentry_text_start", "__irqentry_text_end"),
    ("softirqentry", "__softirqentry_text_start", "__softirqentry_text_end"),
    ("kprobes", "__kprobes_text_start", "__kprobes_text_end"),
    ("static call trampolines", "__static_call_text_start", "__static_call_text_end"),
    ("thunks", "__indirect_thunk_start", "__indirect_thunk_end"),
    ("idmap", "__idmap_text_start", "__idmap_text_end"),
    ("hypervisor", "__hyp_text_start", "__hyp_text_end"),
    ("hypervisor", "__kvm_nvhe___hyp_text_start", "__kvm_nvhe___hyp_text_end"),
    ("idmap", "__hyp_idmap_text_start", "__hyp_idmap_text_end"),
    ("not mapped", "_text", "_stext"),
    ("not mapped", "__entry_tramp_text_start", "__entry_tramp_text_end"),
    ("not mapped", "__hibernate_exit_text_start", "__hibernate_exit_text_end"),
    ("not mapped", "__relocate_new_kernel_start", "__relocate_new_kernel_end"),
    ("init", "__init_begin", "__init_end"),
)


_Names = tuple[str, str, str]  # symbols at the start and the end of a table, and its section
_EXCEPTION_TABLE = "__start___ex_table", "__stop___ex_table", "__ex_table"
# Bytes of an entry: address, fix-up and handler; before Linux 5.16 there is no handler on arm64 and
# riscv64.
_EXCEPTION_SIZES = (12, 8)
_BUG_TABLE = "__start___bug_table", "__stop___bug_table", "__bug_table"
# Bytes of an entry: address, file, line, flags and, since Linux 6.19, format.
_BUG_SIZES = (12, 16)
SHF_EXECINSTR = 4  # a flag of sections
# Lowest bits of the address of the key in a struct static_call_site (the kernel's
# include/linux/static_call_types.h).
STATIC_CALL_FLAGS = 3


class KernelTables:
    """Tables of special code in one file, each read when it is first used.

    A property is empty if the kernel was built without its table, and raises KinstError if the
    table is damaged. All addresses are linked addresses.
    """

    def __init__(self, elf: Elf, label_size: int = 0) -> None:
        """Describe the tables of an ELF file; each is read when it is first used.

        Args:
            label_size: size of a jump label in bytes; 0 if the label's first byte tells its size
                (x86).
        """
        self._elf = elf
        self._label_size = label_size

    def _bytes(self, start: str, stop: str, section: str, entry: int) -> tuple[int, bytes]:
        """Return the linked address and the bytes of a table; (0, b"") if the file does not have
        it.

        Args:
            start: symbol at the table's start.
            stop: symbol at the table's end.
            section: section with the whole table, for a file that lacks one of the two symbols.
            entry: size of an entry in bytes.

        Raises KinstError if the table's size is no multiple of `entry`.
        """
        first, last = self._elf.address(start), self._elf.address(stop)
        if first is None or last is None:
            whole = self._elf.section(section)
            if whole is None:
                return 0, b""
            first, last = whole.address, whole.end
        if last < first or (last - first) % entry:
            raise KinstError(
                f"{self._elf.path}: the table at {start} has {last - first} bytes, "
                f"not a multiple of {entry}: a layout that kinst does not know"
            )
        return first, self._elf.read(first, last - first) if last > first else b""

    def _relative(self, table: tuple[int, bytes], entry: int, offset: int = 0) -> U64:
        """Return the addresses that a table stores as 32-bit distances, in the table's order.

        Args:
            table: the table's linked address and bytes.
            entry: size of an entry in bytes.
            offset: where in each entry the distance is, in bytes. The table means this address: the
                distance, plus the linked address of the distance itself.
        """
        base, raw = table
        words = np.frombuffer(raw, dtype="<i4").reshape(-1, entry // 4)[:, offset // 4]
        at = np.arange(len(words), dtype=np.int64) * entry + offset
        return (words.astype(np.int64) + at).astype(np.uint64) + np.uint64(base)

    def _sites(self, name: str) -> U64:
        """Return the addresses that the table __NAME (section .NAME) stores as 32-bit distances,
        ascending."""
        return np.sort(self._relative(self._bytes(f"__{name}", f"__{name}_end", f".{name}", 4), 4))

    def _first_bytes(self, addresses: U64) -> npt.NDArray[np.uint8]:
        """Return the byte that the file has at each code address, in the same order; 0 for an
        address at which the file has no bytes."""
        first = np.zeros(len(addresses), dtype=np.uint8)
        for section in self._elf.sections:
            inside = (addresses >= np.uint64(section.address)) & (
                addresses < np.uint64(section.end)
            )
            if section.flags & 2 and section.address and np.any(inside):
                data = np.frombuffer(self._elf.view(section), dtype=np.uint8)
                if len(data):
                    offsets = (addresses[inside] - np.uint64(section.address)).astype(np.int64)
                    first[inside] = data[offsets]
        return first

    def _size_in_code(self, table: _Names, sizes: Sequence[int], fields: Sequence[int]) -> int:
        """Return the size in bytes of a table's entries, for a table whose layout differs between
        kernels.

        With the right size, all code addresses in the table are in code. If that is true of several
        sizes, the table is sorted with the right size, since the kernel's build sorts it for
        lookups. Raises KinstError if no size fits.

        Args:
            table: symbols at the start and end of the table, and its section.
            sizes: possible sizes of an entry.
            fields: offsets of the code addresses in an entry.
        """
        code = [part for part in self._elf.sections if part.flags & SHF_EXECINSTR]
        inside = spans(
            np.array([part.address for part in code], np.uint64),
            np.array([part.end - part.address for part in code], np.uint64),
        )
        base, raw = self._bytes(*table, 1)
        fitting: list[tuple[bool, int]] = []
        for size in sizes:
            if len(raw) % size:
                continue
            addresses = np.concatenate([self._relative((base, raw), size, at) for at in fields])
            if inside.overlaps(addresses, np.ones(len(addresses), np.uint64)).all():
                first = addresses[: len(raw) // size]
                fitting.append((bool((first[:-1] <= first[1:]).all()), size))
        if fitting:
            return max(fitting)[1]
        raise KinstError(
            f"{self._elf.path}: the table at {table[0]} has {len(raw)} bytes of a layout that "
            "kinst does not know"
        )

    @cached_property
    def exception_size(self) -> int:
        """Size in bytes of a struct exception_table_entry in this kernel: some kernels have two
        addresses in an entry, others also a type of handler."""
        return self._size_in_code(_EXCEPTION_TABLE, _EXCEPTION_SIZES, (0, 4))

    @cached_property
    def _exception_table(self) -> tuple[int, bytes]:
        return self._bytes(*_EXCEPTION_TABLE, self.exception_size)

    @cached_property
    def exceptions(self) -> U64:
        """Addresses of the instructions that have an exception-table entry, ascending."""
        return np.sort(self._relative(self._exception_table, self.exception_size))

    @cached_property
    def fixups(self) -> dict[int, int]:
        """Address at which control continues after a fault, for each instruction with an
        exception-table entry."""
        table, size = self._exception_table, self.exception_size
        where, to = self._relative(table, size).tolist(), self._relative(table, size, 4).tolist()
        return dict(zip(where, to, strict=True))

    @cached_property
    def bug_size(self) -> int:
        """Size in bytes of a struct bug_entry in this kernel: newer kernels add the message's
        format."""
        return self._size_in_code(_BUG_TABLE, _BUG_SIZES, (0,))

    @cached_property
    def bugs(self) -> U64:
        """Addresses of BUG() and WARN() instructions, ascending. The kernel looks these
        instructions up by address when they trap."""
        table = self._bytes(*_BUG_TABLE, self.bug_size)
        return np.sort(self._relative(table, self.bug_size))

    @cached_property
    def fatal_bugs(self) -> U64:
        """Addresses of BUG() instructions, ascending: the entries of the bug table without the flag
        of a warning.

        Source: include/asm-generic/bug.h, BUGFLAG_WARNING is bit 0 of the u16 that ends an entry.
        """
        table, size = self._bytes(*_BUG_TABLE, self.bug_size), self.bug_size
        flags = np.frombuffer(table[1], dtype="<u2").reshape(-1, size // 2)[:, -1]
        return np.sort(self._relative(table, size)[flags & 1 == 0])

    @cached_property
    def jump_labels(self) -> Spans:
        """Spans of the instructions of static keys, each a nop or a jump. The running kernel
        replaces nops by jumps and jumps by nops."""
        table = self._bytes("__start___jump_table", "__stop___jump_table", "__jump_table", 16)
        code = self._relative(table, 16)
        if self._label_size:
            return spans(code, np.full(len(code), self._label_size, dtype=np.uint64))
        # jmp rel32 or the 5-byte nop (0f 1f ...); else jmp rel8 or the 2-byte nop (66 90).
        first = self._first_bytes(code)
        return spans(code, np.where((first == 0xE9) | (first == 0x0F), 5, 2).astype(np.uint64))

    @cached_property
    def label_targets(self) -> U64:
        """Addresses that the jumps of static keys lead to, ascending: of all sites, also those that
        have a nop now."""
        table = self._bytes("__start___jump_table", "__stop___jump_table", "__jump_table", 16)
        return np.sort(self._relative(table, 16, 4))

    @cached_property
    def _static_call_table(self) -> tuple[int, bytes]:
        return self._bytes(
            "__start_static_call_sites", "__stop_static_call_sites", ".static_call_sites", 8
        )

    @cached_property
    def static_call_keys(self) -> tuple[U64, U64]:
        """The address of each site of a static call, and of its struct static_call_key."""
        table = self._static_call_table
        return self._relative(table, 8), self._relative(table, 8, 4) & ~np.uint64(STATIC_CALL_FLAGS)

    @cached_property
    def static_calls(self) -> Spans:
        """Spans of the instructions of static calls: calls and tail jumps (5 bytes), conditional
        tail jumps (6 bytes)."""
        code = self._relative(self._static_call_table, 8)
        return spans(code, np.where(self._first_bytes(code) == 0x0F, 6, 5).astype(np.uint64))

    @cached_property
    def ftrace(self) -> U64:
        """Addresses of ftrace's call sites (at the start of nearly every function) as the compiler
        listed them, ascending. When the kernel boots, it moves some call sites by an instruction,
        and drops others."""
        table = self._bytes("__start_mcount_loc", "__stop_mcount_loc", "__mcount_loc", 8)
        return np.sort(pointers(self._elf, *table))

    @cached_property
    def alternatives(self) -> Spans:
        """Spans of code for which the boot selects an alternative that suits the CPU. The code does
        not change afterwards.

        Layouts: struct alt_instr has 12 bytes up to Linux 6.2, with the length of the original code
        (u8) at offset 10; since 6.3 it has 14 bytes, with the length at offset 12. riscv's struct
        alt_entry has 16 bytes, with the length (u16) at offset 10.
        """
        other = self._elf.section(".alternative")
        if other is not None:
            table = self._bytes("__alt_start", "__alt_end", ".alternative", 16)
            lengths = np.frombuffer(table[1], dtype="<u2").reshape(-1, 8)[:, 5]
            return spans(self._relative(table, 16), lengths.astype(np.uint64))
        size = self._entry_size("__alt_instructions", "__alt_instructions_end", (12, 14))
        base, raw = self._bytes(
            "__alt_instructions", "__alt_instructions_end", ".altinstructions", size
        )
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, size)
        words = np.ascontiguousarray(rows[:, :4]).view("<i4").reshape(-1).astype(np.int64)
        start = (words + np.arange(len(rows), dtype=np.int64) * size).astype(np.uint64)
        length = rows[:, 10 if size == 12 else 12].astype(np.uint64)
        return spans(start + np.uint64(base), length)

    def _entry_size(self, start: str, stop: str, sizes: tuple[int, int]) -> int:
        """Return which of two sizes the entries of a table have. With the right size, the distances
        in the first entries lead to code. If there is no table, return the first size.

        Args:
            start: symbol at the table's start.
            stop: symbol at the table's end.
        """
        first, last = self._elf.address(start), self._elf.address(stop)
        if first is None or last is None or last <= first:
            return sizes[0]
        text = [(s.address, s.end) for s in self._elf.sections if s.flags & 4]
        for size in sizes:
            if (last - first) % size:
                continue
            table = first, self._elf.read(first, min(16, (last - first) // size) * size)
            rows = [int.from_bytes(table[1][i : i + 4], "little", signed=True) + first + i
                    for i in range(0, len(table[1]), size)]  # fmt: skip
            if all(any(low <= row < high for low, high in text) for row in rows):
                return size
        raise KinstError(f"{self._elf.path}: the table at {start} has a layout kinst does not know")

    @cached_property
    def paravirt(self) -> Spans:
        """Spans of the indirect calls of paravirtual operations, which boot replaces.

        struct paravirt_patch_site has 16 bytes; the last 4 are padding, which kernels before Linux
        5.18 leave out of the last entry.
        """
        table = self._bytes("__parainstructions", "__parainstructions_end", ".parainstructions", 4)
        raw = table[1] + bytes(4 if len(table[1]) % 16 == 12 else 0)
        if len(raw) % 16:
            raise KinstError(
                f"{self._elf.path}: the table at __parainstructions has {len(table[1])} bytes, "
                "which are no whole entries: a layout that kinst does not know"
            )
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 16)
        start = np.ascontiguousarray(rows[:, :8]).view("<u8").reshape(-1)
        return spans(start, rows[:, 9].astype(np.uint64))

    @cached_property
    def locks(self) -> U64:
        """Addresses of the lock prefixes of instructions, ascending. A kernel on one CPU replaces
        these prefixes at boot."""
        base, raw = self._bytes("__smp_locks", "__smp_locks_end", ".smp_locks", 4)
        # The linker pads the table with zeros to a page.
        used = np.frombuffer(raw, dtype="<i4") != 0
        return np.sort(self._relative((base, raw), 4)[used])

    @cached_property
    def retpolines(self) -> U64:
        """Addresses of indirect calls and jumps through thunks, ascending. Only boot may rewrite
        these instructions."""
        return self._sites("retpoline_sites")

    @cached_property
    def returns(self) -> U64:
        """Addresses of jumps to the return thunk, ascending. Only boot may rewrite these
        instructions."""
        return self._sites("return_sites")

    @cached_property
    def calls(self) -> U64:
        """Addresses of calls, ascending, that boot redirects through thunks. Only kernels that
        track the depth of calls do this (since Linux 6.2)."""
        return self._sites("call_sites")

    @cached_property
    def seals(self) -> U64:
        """Addresses of endbr64 instructions that no indirect branch leads to, ascending. Boot
        replaces these instructions (since Linux 5.18)."""
        return self._sites("ibt_endbr_seal")

    @cached_property
    def blacklist(self) -> U64:
        """Addresses of the functions that the kernel itself forbids to probe (NOKPROBE_SYMBOL),
        ascending."""
        table = self._bytes(
            "__start_kprobe_blacklist", "__stop_kprobe_blacklist", "_kprobe_blacklist", 8
        )
        return distinct(pointers(self._elf, *table))

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """All regions of REGIONS whose symbols this kernel has."""
        regions = []
        for name, start, end in REGIONS:
            low, high = self._elf.address(start), self._elf.address(end)
            if low is not None and high is not None and low < high:
                regions.append(Region(name, low, high))
        return tuple(regions)

    def is_boot_code(self, address: int) -> bool:
        """Return whether a linked address is in code that the kernel frees at the end of its
        boot."""
        return any(r.name == "init" and r.start <= address < r.end for r in self.regions)
