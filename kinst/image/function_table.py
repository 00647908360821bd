"""The functions of an image, from its symbol table: lookup by name, by glob pattern and by
address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.columns import stable_order
from kinst.core.dataclass import dataclass
from kinst.core.probe import Function
from kinst.core.words import MASK
from kinst.image.elf import STB_GLOBAL, STB_WEAK, STT_FUNC, STT_NOTYPE, Elf
from kinst.image.elf_file import SHF_EXECINSTR

# Names of labels that are not functions.
MARKERS = re.compile(r".*(_start|_end)$|_s?text$|_(e|sinit|einit)text$")
# Prefixes of mapping symbols, which separate code from data (ELF for the Arm 64-bit Architecture,
# "Mapping symbols"; the RISC-V psABI has the same), and of local labels that an assembler kept.
NO_FUNCTIONS = ("$", ".L")


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Functions of a symbol table and their names, as arrays.

    Functions are sorted by address, and names by their functions. The first of a function's names
    is its canonical name.

    Attributes:
        symbols: for each name, its index in the symbol table.
        function: for each name, the index of its function.
        canonical: for each function, the index in the symbol table of its canonical name.
        function_of: for each symbol of the symbol table, the index of its function; -1 if the
            symbol names no function.
        address: running address of each function.
        size: bytes of each function.
    """

    symbols: npt.NDArray[np.int64]
    function: npt.NDArray[np.int64]
    canonical: npt.NDArray[np.int64]
    function_of: npt.NDArray[np.int64]
    address: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint64]


def _among(sections: npt.NDArray[np.uint16], indexes: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return for each section index whether it is one of `indexes`."""
    wanted = np.zeros(1 << 16, np.bool_)
    wanted[np.array(indexes, np.int64) & 0xFFFF] = True
    return wanted[sections]


class FunctionTable:
    """Functions of one linked image that runs `slide` bytes above its linked addresses.

    All symbols at one address are names of one function. Its canonical name is a global name if
    there is one, else a weak name, else a local name; of several such names, the one with the
    fewest leading underscores.

    The symbol's size says where a function ends. If the next symbol is nearer, or the symbol has no
    size, the function ends at the next symbol. A label of assembly code counts as a function only
    outside of other functions.
    """

    def __init__(
        self, elf: Elf, slide: int, module: str, no_functions: tuple[str, ...] = NO_FUNCTIONS
    ) -> None:
        """Describe the table of functions; its arrays are computed at the first lookup.

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
        chosen = _among(symbols.section, [s.index for s in text])
        functions = np.flatnonzero(chosen & (symbols.kind == STT_FUNC))
        chosen = _among(symbols.section, code)
        labels = np.flatnonzero(chosen & (symbols.kind == STT_NOTYPE))
        labels = labels[~self._inside(symbols.address[labels], functions)]
        rows = np.concatenate([functions, labels])
        keep = ~symbols.begin_with(rows, self._no_functions)
        marks = [not MARKERS.match(name) for name in symbols.names_of(labels)]
        keep[len(functions) :] &= np.array(marks, dtype=np.bool_)
        rows = rows[keep]
        rows = rows[stable_order(symbols.address[rows])]
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
        function_of = np.full(len(symbols), -1, dtype=np.int64)
        function_of[rows] = group
        slide = np.uint64(self._slide & MASK)
        return _Arrays(rows, group, rows[first], function_of, address + slide, size)

    def _order_aliases(self, rows: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> None:
        """Sort the symbols of each function so that its canonical name comes first.

        Args:
            rows: symbol table indexes in address order; changed in place.
            first: for each function, the position in `rows` of its first symbol.
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
        """Return a mask of the addresses that lie inside a function, its first byte included.

        Args:
            addresses: as linked.
            functions: symbol table indexes of the functions.
        """
        if not len(functions):
            return np.zeros(len(addresses), dtype=np.bool_)
        symbols = self._elf.symbols
        order = functions[stable_order(symbols.address[functions])]
        starts = symbols.address[order]
        # The next function begins after the address: a function ends there, even if its size says
        # otherwise.
        at = np.searchsorted(starts, addresses, side="right")
        last = order[np.maximum(at - 1, 0)]
        ends = symbols.address[last] + np.maximum(symbols.size[last], np.uint64(1))
        return (at > 0) & (ends > addresses)

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
        """All functions under their canonical names, in address order."""
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
        """All names of functions, aliases included, in address order."""
        return self._elf.symbols.names_of(self._arrays.symbols)

    def lookup(self, name: str) -> list[Function]:
        """Return the functions that have exactly this name or alias, in address order; the results
        carry this name. Several functions are returned if the name is ambiguous."""
        functions = self._arrays.function_of[self._elf.symbols.indexes(name)].tolist()
        return [self._make(i, name) for i in sorted({*functions} - {-1})]

    def glob(self, pattern: str) -> list[Function]:
        """Return the functions that have a name matching an sh(1) pattern, in address order.

        Each function is returned once: under its canonical name if that matches, otherwise under
        the first alias that does.
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
        """Return the function whose code contains a running address; None if no function does."""
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
