"""The ELF file of a user program or a library: functions also if it is stripped, the addresses of
code that its data contain, and the libraries that it needs.

Source: System V ABI, chapter 4 ("Symbol Table", "Relocation", DT_RELR) and its AMD64 supplement,
4.4.1 (relocation types).

Tested by tests/image/test_program_elf.py."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.columns import Bools
from kinst.core.errors import KinstError
from kinst.image.elf import STT_FUNC, SYMBOL, U64, Elf, SymbolTable
from kinst.image.elf_file import SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_RELA, ElfSection
from kinst.image.exception_tables import frame_entries, landing_pads

_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_DYNSYM, _SHT_RELR = 2, 6, 11, 19
_DT_NEEDED, _DT_SONAME = 1, 14
_ET_EXEC = 2
_STT_GNU_IFUNC = 10  # its address is that of a function that chooses another one
_RELATIVE, _IRELATIVE, _64 = 8, 37, 1  # R_X86_64_*
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<u8")])
_WORD, _WORDS_OF_BITMAP = 8, 63
_SIGN = 1 << 31  # of a 32-bit number
_ENTRY = struct.Struct("<24xQ")  # e_entry, in the file's header
_START_SIZE = 64  # bytes of the code at the program's entry
# The end of glibc's _start() (sysdeps/x86_64/start.S): `lea rdi, [rip + main]` or `mov rdi, main`,
# and the call of __libc_start_main().
_CALLS_MAIN = re.compile(
    rb"\x48(?:\x8d\x3d(?P<distance>.{4})|\xc7\xc7(?P<address>.{4}))(?:\xff\x15|\x67?\xe8)",
    re.DOTALL,
)


class ProgramElf(Elf):
    """An opened file of a user program, or of a library. program_elf() makes it."""

    @cached_property
    def needed(self) -> Sequence[str]:
        """Names of the libraries that the dynamic linker loads together with this file
        (DT_NEEDED)."""
        return self._dynamic(_DT_NEEDED)

    @cached_property
    def own_name(self) -> str:
        """The name by which other files need this library (DT_SONAME); "" if the file says none."""
        return next(iter(self._dynamic(_DT_SONAME)), "")

    @cached_property
    def imported(self) -> frozenset[str]:
        """Names of the functions and variables that this file takes from other files, such as
        malloc from libc.so.6."""
        section = self._first(_SHT_DYNSYM)
        if section is None:
            return frozenset()
        table = self._table(section)
        return frozenset(filter(None, table.names_of(np.flatnonzero(table.section == 0))))

    def _first(self, kind: int) -> ElfSection | None:
        """Return the first section of a kind (SHT_*); None if the file has no such section."""
        return next((s for s in self.sections if s.kind == kind), None)

    def _dynamic(self, tag: int) -> Sequence[str]:
        """Return the strings of all entries in the dynamic section that have this tag, such as
        DT_NEEDED."""
        section = self._first(_SHT_DYNAMIC)
        if section is None:
            return ()
        strings = self.data(self.sections[section.link])
        entries = np.frombuffer(self.data(section), "<u8").reshape(-1, 2).tolist()
        return [
            strings[at : strings.index(b"\0", at)].decode(errors="replace")
            for kind, at in entries
            if kind == tag
        ]

    @cached_property
    def symbols(self) -> SymbolTable:
        """The program's symbols, and the functions that only its unwind tables have.

        The symbols come from the symbol table, or from the dynamic symbol table if the program is
        stripped. A function that only the unwind tables have is named f_ADDRESS, with its linked
        address in hexadecimal. There are two exceptions. A function at the start of a section other
        than .text is named after the section ("plt"). The function that the code at the program's
        entry passes to glibc is named main."""
        table = self._first(_SHT_DYNSYM)
        try:
            named = super().symbols
        except KinstError:
            named = self._table(table) if table else _symbols(np.zeros(0, SYMBOL), b"\0")
        kind = np.where(named.kind == _STT_GNU_IFUNC, STT_FUNC, named.kind).astype(np.uint8)
        starts, ends = _spans(named, (kind == STT_FUNC) & (named.section != 0))
        strings = bytearray(named.strings)
        rows = []
        for entry in frame_entries(self):
            at = int(np.searchsorted(starts, np.uint64(entry.low), side="right")) - 1
            if at < 0 or entry.low >= int(ends[at]):
                section = self._section_of(entry.low)
                rows.append((len(strings), STT_FUNC, 0, section, entry.low, entry.high - entry.low))
                strings += self._name(entry.low, self.sections[section]).encode() + b"\0"
        more = _symbols(np.array(rows, SYMBOL), b"")
        return SymbolTable(
            np.concatenate([named.address, more.address]), np.concatenate([named.size, more.size]),
            np.concatenate([kind, more.kind]), np.concatenate([named.binding, more.binding]),
            np.concatenate([named.section, more.section]),
            np.concatenate([named.name, more.name]), bytes(strings),
        )  # fmt: skip

    @cached_property
    def resolvers(self) -> frozenset[int]:
        """Linked addresses of the functions that the dynamic linker calls to choose the
        implementation of a function (STT_GNU_IFUNC)."""
        tables = [self._table(s) for s in self.sections if s.kind in (_SHT_SYMTAB, _SHT_DYNSYM)]
        chosen = [t.address[(t.kind == _STT_GNU_IFUNC) & (t.section != 0)] for t in tables]
        return frozenset(address for some in chosen for address in some.tolist())

    def _table(self, table: ElfSection) -> SymbolTable:
        strings = self.data(self.sections[table.link])
        return _symbols(np.frombuffer(self.data(table), SYMBOL), strings + b"\0")

    def _name(self, address: int, section: ElfSection) -> str:
        if section.address == address and section.name != ".text":
            return section.name.strip(".").replace(".", "_")
        return "main" if address == self._main else f"f_{address:x}"

    @cached_property
    def _main(self) -> int:
        """Linked address of main(); -1 if the code at the program's entry is not glibc's."""
        (entry,) = _ENTRY.unpack_from(self.mapped)
        try:
            code = self.read(entry, _START_SIZE)
        except KinstError:
            return -1
        found = _CALLS_MAIN.search(code)
        if found is None:
            return -1
        if found["address"]:
            return int.from_bytes(found["address"], "little")
        distance = int.from_bytes(found["distance"], "little", signed=True)
        return int(entry) + found.end("distance") + distance

    def _section_of(self, address: int) -> int:
        code = (s for s in self.sections if s.flags & SHF_EXECINSTR)
        return next((s.index for s in code if s.address <= address < s.end), 0)

    @cached_property
    def code_pointers(self) -> U64:
        """Linked addresses of code to which control may come through data: landing pads of
        exceptions, and pointers to code in the program's data. Ascending, each once.

        Every number in the data that is an address in the code counts as a pointer. Some of these
        numbers may mean something else.
        """
        found = [np.array(landing_pads(self), np.uint64)]
        ranges = self.code_segments
        low, high = min(start for start, _ in ranges), max(end for _, end in ranges)
        data = [
            self.data(s) for s in self.sections
            if s.flags & SHF_ALLOC and not s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS
        ]  # fmt: skip
        if self.kind == _ET_EXEC:
            # Words of 4 bytes at any address: tables of compilers may have such.
            for piece in data:
                for shift in range(min(4, len(piece))):
                    words = np.frombuffer(piece, "<u4", max(len(piece) - shift, 0) // 4, shift)
                    found.append(words[(words >= low) & (words < high)].astype(np.uint64))
        else:
            found += self._relocated()
        every = np.unique(np.concatenate(found))
        inside: U64 = every[(every >= np.uint64(low)) & (every < np.uint64(high))]
        return inside

    def table_targets(self, starts: U64) -> U64:
        """Return the linked addresses of code to which jump tables lead, ascending, each once.

        The entries of these tables are 32-bit distances from the table's start. A table ends at the
        first entry that leads to no code of the program. It does not end at an entry that leads to
        another function, since compilers move parts of functions away.

        Args:
            starts: linked addresses at which tables may begin.
        """
        ranges = self.code_segments
        low, high = min(start for start, _ in ranges), max(end for _, end in ranges)
        found = [np.zeros(0, np.int64)]
        for section in self.sections:
            if not section.flags & SHF_ALLOC or section.kind == SHT_NOBITS:
                continue
            data = np.frombuffer(self.data(section), np.uint8).astype(np.int64)
            base = starts.astype(np.int64)
            base = base[(base >= section.address) & (base < section.end)]
            at = base - section.address
            while len(at):
                whole = at + 4 <= len(data)
                base, at = base[whole], at[whole]
                entry = sum((data[at + k] << 8 * k for k in range(4)), np.zeros(len(at), np.int64))
                target = base + (entry ^ _SIGN) - _SIGN
                leads = (target >= low) & (target < high)
                found.append(target[leads])
                base, at = base[leads], at[leads] + 4
        every: U64 = np.unique(np.concatenate(found)).astype(np.uint64)
        return every

    def _relocated(self) -> Iterator[U64]:
        """Yield the addresses that the dynamic linker writes into the data of a program that can be
        loaded anywhere."""
        for section in self.sections:
            if not section.flags & SHF_ALLOC:
                continue
            if section.kind == SHT_RELA:
                rows = np.frombuffer(self.data(section), _RELA)
                yield rows["addend"][np.isin(rows["type"], (_RELATIVE, _IRELATIVE, _64))]
            elif section.kind == _SHT_RELR:
                words = np.frombuffer(self.data(section), "<u8").tolist()
                yield np.array(
                    [int.from_bytes(self.read(at, _WORD), "little") for at in _relr(words)],
                    np.uint64,
                )  # fmt: skip


def _relr(words: Sequence[int]) -> Iterator[int]:
    """Yield the addresses that the words of a DT_RELR table stand for."""
    at = 0
    for word in words:
        if not word & 1:
            yield word
            at = word + _WORD
            continue
        for bit in range(_WORDS_OF_BITMAP):
            if word >> bit + 1 & 1:
                yield at + bit * _WORD
        at += _WORDS_OF_BITMAP * _WORD


def _symbols(rows: npt.NDArray[np.void], strings: bytes) -> SymbolTable:
    return SymbolTable(
        np.ascontiguousarray(rows["value"]), np.ascontiguousarray(rows["size"]),
        (rows["info"] & 15).astype(np.uint8), (rows["info"] >> 4).astype(np.uint8),
        np.ascontiguousarray(rows["section"]), np.ascontiguousarray(rows["name"]), strings,
    )  # fmt: skip


def _spans(symbols: SymbolTable, which: Bools) -> tuple[U64, U64]:
    """Return the addresses at which the selected symbols start and those at which they end, as two
    arrays sorted by start.

    Args:
        which: for each symbol, whether it is selected.
    """
    start = symbols.address[which]
    order = np.argsort(start, kind="stable")
    size = np.maximum(symbols.size[which], np.uint64(1))
    return start[order], (start + size)[order]


def program_elf(elf: Elf) -> ProgramElf:
    """Return an opened ELF file as the file of a user program."""
    return ProgramElf(elf.path, elf.mapped, elf.machine, elf.kind, elf.sections)
