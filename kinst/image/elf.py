"""ELF files with their symbols as numpy arrays; elf_file.py reads the rest of the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.elf_file import SHT_SYMTAB, ElfFile, read_headers
from kinst.image.string_index import StringIndex

U64 = npt.NDArray[np.uint64]

SHN_UNDEF = 0
SHN_ABS = 0xFFF1
STT_NOTYPE = 0
STT_OBJECT = 1
STT_FUNC = 2
STB_LOCAL = 0
STB_GLOBAL = 1
STB_WEAK = 2

_WORD = 8  # bytes of a name that are compared together

# Elf64_Sym.
SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)


@dataclass(frozen=True)
class SymbolTable:
    """A symbol table of an ELF file: parallel arrays, one element for each symbol, in the file's
    order.

    Attributes:
        address: value of the symbol, as linked.
        size: bytes.
        kind: STT_*.
        binding: STB_*.
        section: index of the section that defines the symbol.
        name: offset of the symbol's name in `strings`.
        strings: the string table.
    """

    address: U64
    size: U64
    kind: npt.NDArray[np.uint8]
    binding: npt.NDArray[np.uint8]
    section: npt.NDArray[np.uint16]
    name: npt.NDArray[np.uint32]
    strings: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.address)

    def name_of(self, index: int) -> str:
        """Return the name of the symbol with this index; "" if its name lies outside the string
        table."""
        start = int(self.name[index])
        end = self.strings.find(b"\0", start)
        return self.strings[start : end if end >= 0 else None].decode("utf-8", "replace")

    def names_of(self, indexes: Sequence[int] | npt.NDArray[np.int64]) -> list[str]:
        """Return the names of the symbols with these indexes, in the same order."""
        find, strings = self.strings.find, self.strings
        text = strings.decode("latin-1")
        starts: list[int] = self.name[np.asarray(indexes, dtype=np.int64)].tolist()
        return [text[at : find(b"\0", at)] for at in starts]

    def begin_with(
        self, indexes: npt.NDArray[np.int64], prefixes: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Return for each of these symbols whether its name begins with one of the prefixes."""
        text = np.frombuffer(self.strings + bytes(_WORD), np.uint8)
        words = np.ndarray((len(self.strings) + 1,), "<u8", text.data, strides=(1,))
        starts = self.name[indexes].astype(np.int64)
        first = words[starts]
        matches = np.zeros(len(starts), dtype=np.bool_)
        for prefix in map(str.encode, prefixes):
            begin, rest = prefix[:_WORD], prefix[_WORD:]
            wanted, mask = (int.from_bytes(b, "little") for b in (begin, b"\xff" * len(begin)))
            alike = np.flatnonzero(first & np.uint64(mask) == np.uint64(wanted))
            for k, byte in enumerate(rest, _WORD):
                alike = alike[text[np.minimum(starts[alike] + k, len(text) - 1)] == byte]
            matches[alike] = True
        return matches

    def indexes(self, name: str) -> list[int]:
        """Return the indexes of all defined symbols with this name, in the file's order.

        The string table may have a name only as the end of a longer name (System V ABI, "String
        Table"); such names are found too.
        """
        return [i for i in self._by_name.find(name) if self.section[i] != SHN_UNDEF]

    @cached_property
    def _by_name(self) -> StringIndex:
        return StringIndex(self.strings, self.name)


class Elf(ElfFile):
    """An opened ELF file with its symbols. open_elf() makes it."""

    @cached_property
    def symbols(self) -> SymbolTable:
        """The file's symbol table (.symtab). Raises KinstError if the file is stripped or the table
        is damaged."""
        table = next((s for s in self.sections if s.kind == SHT_SYMTAB), None)
        if table is None:
            raise KinstError(
                f"{self.path}: no symbol table (stripped)", "give the unstripped file with --debug"
            )
        if not 0 < table.link < len(self.sections):
            raise KinstError(f"{self.path}: damaged: the symbol table names no string table")
        strings = self.data(self.sections[table.link])
        raw = self.data(table)
        rows = np.frombuffer(raw, dtype=SYMBOL, count=len(raw) // SYMBOL.itemsize)
        if len(rows) and (not strings or int(rows["name"].max()) >= len(strings)):
            raise KinstError(f"{self.path}: damaged: symbol names lie outside the string table")
        return SymbolTable(
            np.ascontiguousarray(rows["value"]),
            np.ascontiguousarray(rows["size"]),
            (rows["info"] & 15).astype(np.uint8),
            (rows["info"] >> 4).astype(np.uint8),
            np.ascontiguousarray(rows["section"]),
            np.ascontiguousarray(rows["name"]),
            strings if strings.endswith(b"\0") else strings + b"\0",
        )

    @cached_property
    def placed_addresses(self) -> U64:
        """Address of each symbol: as linked or, in a relocatable file, as its layout
        (ElfFile.layout) places the symbol's section."""
        base = np.zeros(1 << 16, dtype=np.uint64)
        for index, address in self.layout.items():
            base[index & 0xFFFF] = address
        return self.symbols.address + base[self.symbols.section]

    @cached_property
    def _addresses(self) -> dict[str, int]:
        """Cache of address(): linked addresses by symbol name."""
        return {}

    def address(self, name: str) -> int | None:
        """Return the linked address of the first symbol with this name; None if no symbol has
        it."""
        addresses = self._addresses
        if name not in addresses:
            indexes = self.symbols.indexes(name)
            if not indexes:
                return None
            addresses[name] = int(self.symbols.address[indexes[0]])
        return addresses[name]


def with_symbols(file: ElfFile) -> Elf:
    """Return an opened ELF file as an Elf, which also reads symbols."""
    if isinstance(file, Elf):
        return file
    return Elf(file.path, file.mapped, file.machine, file.kind, file.sections)


def open_elf(path: str | Path, machine: int | None = None) -> Elf:
    """Open an ELF file whose symbols are to be read; the file's headers are read now, the symbols
    on demand.

    Args:
        machine: the e_machine that the file must have, None for any.

    Raises:
        KinstError: the file is missing, unreadable, not ELF, truncated, damaged or for another
            machine.
    """
    path = Path(path)
    return Elf(path, *read_headers(path, machine))
