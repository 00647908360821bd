"""The functions of an image, from its symbol table: lookup by name, by glob, by address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.probe import Function
from kinst.core.words import MASK
from kinst.image.elf import STB_GLOBAL, STB_WEAK, STT_FUNC, STT_NOTYPE, Elf
from kinst.image.elf_file import SHF_EXECINSTR

# Labels that are no functions.
MARKERS = re.compile(r".*(_start|_end)$|_s?text$|_(e|sinit|einit)text$")
# Marks between code and data (ELF for the Arm 64-bit architecture, "Mapping symbols"; RISC-V's
# psABI has them, too) and local labels that an assembler kept.
NO_FUNCTIONS = ("$", ".L")


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Functions and their symbols: one row for each (name, address), in address order, canonical
    names first.

    Attributes:
        symbols: symbol index of each row.
        function: index of the function that a row belongs to.
        canonical: symbol index of each function.
        place: of each symbol: index of its function, or -1.
        address: of each function.
        size: bytes of each function.
    """

    symbols: npt.NDArray[np.int64]
    function: npt.NDArray[np.int64]
    canonical: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    address: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint64]


class FunctionTable:
    """Functions of one linked image that runs `slide` bytes above its linked addresses.

    Symbols of one address are one function with several names: a global name is preferred to a weak
    or local one, then fewer leading underscores.  A function ends where its symbol says, and at the
    next symbol at the latest; an assembly label outside of every function reaches to the next
    symbol.
    """

    def __init__(
        self, elf: Elf, slide: int, module: str, no_functions: tuple[str, ...] = NO_FUNCTIONS
    ) -> None:
        """Describe the table; it is made when first needed.

        Args:
            elf: the image.
            slide: bytes between linked and running addresses.
            module: the image's name in D.
            no_functions: prefixes of symbols that are not functions.
        """
        self._elf = elf
        self._slide = slide
        self._module = module
        self._no_functions = no_functions

    @cached_property
    def _arrays(self) -> _Arrays:
        symbols = self._elf.symbols
        text = [s for s in self._elf.sections if s.flags & SHF_EXECINSTR]
        # Newer kernels have an executable .data: its labels are of data.
        code = [s.index for s in text if s.name != ".data"]
        chosen = np.isin(symbols.section, np.array([s.index for s in text], dtype=np.uint16))
        functions = np.flatnonzero(chosen & (symbols.kind == STT_FUNC))
        chosen = np.isin(symbols.section, np.array(code, dtype=np.uint16))
        labels = np.flatnonzero(chosen & (symbols.kind == STT_NOTYPE))
        labels = labels[~self._inside(symbols.address[labels], functions)]
        rows = np.concatenate([functions, labels])
        keep = ~symbols.begin_with(rows, self._no_functions)
        marks = [not MARKERS.match(name) for name in symbols.names_of(labels)]
        keep[len(functions) :] &= np.array(marks, dtype=np.bool_)
        rows = rows[keep]
        rows = rows[np.argsort(symbols.address[rows], kind="stable")]
        begins = np.ones(len(rows), dtype=np.bool_)
        begins[1:] = np.diff(symbols.address[rows]) != 0
        first, group = np.flatnonzero(begins), np.cumsum(begins) - 1
        address = symbols.address[rows[first]]
        self._order_aliases(rows, first)
        size = np.zeros(len(address), dtype=np.uint64)
        np.maximum.at(size, group, symbols.size[rows])
        room = self._section_ends(address)
        room[:-1] = np.minimum(room[:-1], address[1:])
        room -= address
        size = np.where(size == 0, room, np.minimum(size, room))
        place = np.full(len(symbols), -1, dtype=np.int64)
        place[rows] = group
        slide = np.uint64(self._slide & MASK)
        return _Arrays(rows, group, rows[first], place, address + slide, size)

    def _order_aliases(self, rows: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> None:
        """Sort the symbols of each address by preference.

        Args:
            rows: symbol indexes in address order; changed in place.
            first: where the symbols of each address begin.
        """
        symbols = self._elf.symbols
        ranks = {STB_GLOBAL: 0, STB_WEAK: 1}

        def score(row: int) -> tuple[int, int, str]:
            name = symbols.name_of(row)
            rank = ranks.get(int(symbols.binding[row]), 2)
            return rank, len(name) - len(name.lstrip("_")), name

        ends = np.append(first[1:], len(rows))
        for group in np.flatnonzero(ends - first > 1).tolist():
            part = slice(int(first[group]), int(ends[group]))
            rows[part] = sorted(rows[part].tolist(), key=score)

    def _inside(
        self, addresses: npt.NDArray[np.uint64], functions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which addresses lie in (or at the start of) a function symbol."""
        if not len(functions):
            return np.zeros(len(addresses), dtype=np.bool_)
        symbols = self._elf.symbols
        order = functions[np.argsort(symbols.address[functions], kind="stable")]
        starts = symbols.address[order]
        ends = starts + np.maximum(symbols.size[order], np.uint64(1))
        # A function ends at the next one, even if its size says otherwise.
        later = np.searchsorted(starts, starts, side="right")
        bounded = later < len(starts)
        ends[bounded] = np.minimum(ends[bounded], starts[later[bounded]])
        at = np.searchsorted(starts, addresses, side="right")
        return (at > 0) & (ends[np.maximum(at - 1, 0)] > addresses)

    def _section_ends(self, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        ends = address.copy()
        for section in self._elf.sections:
            if section.flags & SHF_EXECINSTR:
                inside = (address >= np.uint64(section.address)) & (
                    address < np.uint64(section.end)
                )
                ends[inside] = np.uint64(section.end)
        return ends

    @cached_property
    def all(self) -> Sequence[Function]:
        """Every function under its canonical name, in address order."""
        arrays = self._arrays
        names = self._elf.symbols.names_of(arrays.canonical)
        return tuple(
            Function(self._module, name, address, size)
            for name, address, size in zip(
                names, arrays.address.tolist(), arrays.size.tolist(), strict=True
            )
        )

    @cached_property
    def names(self) -> Sequence[str]:
        """Every name, aliases included."""
        return self._elf.symbols.names_of(self._arrays.symbols)

    def lookup(self, name: str) -> list[Function]:
        """Return the functions of exactly this name or alias, in address order, under that name.
        More than one: the name is ambiguous."""
        places = self._arrays.place[self._elf.symbols.indexes(name)].tolist()
        return [self._make(i, name) for i in sorted({*places} - {-1})]

    def glob(self, pattern: str) -> list[Function]:
        """Return the functions with a name that matches an sh(1) pattern, in address order.

        Each function once: under its canonical name if that matches, otherwise under the first
        alias that does.
        """
        if pattern in ("", "*"):
            return list(self.all)
        arrays = self._arrays
        match = re.compile(translate(pattern)).match
        matches: dict[int, str] = {}
        for name, function in zip(self.names, arrays.function.tolist(), strict=True):
            if match(name):
                matches.setdefault(function, name)
        return [self._make(i, name) for i, name in matches.items()]

    def at(self, address: int) -> Function | None:
        """Return the function whose code holds a running address, or None."""
        index = self.index_at(address)
        if index is None:
            return None
        symbol = int(self._arrays.canonical[index])
        return self._make(index, self._elf.symbols.name_of(symbol))

    def index_at(self, address: int) -> int | None:
        arrays = self._arrays
        index = int(np.searchsorted(arrays.address, np.uint64(address), side="right")) - 1
        if index < 0 or address >= int(arrays.address[index]) + int(arrays.size[index]):
            return None
        return index

    def _make(self, index: int, name: str) -> Function:
        arrays = self._arrays
        return Function(self._module, name, int(arrays.address[index]), int(arrays.size[index]))
