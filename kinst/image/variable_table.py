"""Variables of an image by address, from its symbol table.

dtrace(1) shows an address of data as variable + offset (dtrace_lookup_by_addr()), and kinst does so
with this table.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.words import MASK
from kinst.image.elf import STB_GLOBAL, STT_OBJECT, Elf
from kinst.image.elf_file import SHF_ALLOC, SHF_EXECINSTR

PER_CPU_SECTION = ".data..percpu"


class VariableTable:
    """Variables of one linked image that runs `slide` bytes above its linked addresses.

    Of several variables at the same address the table has the largest; of equally large ones, a
    global one.
    """

    def __init__(self, elf: Elf, slide: int) -> None:
        self._elf = elf
        self._slide = slide

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        """Symbol table indexes of the variables, one for each address, in address order. Per-CPU
        variables are left out: their linked address is only an offset."""
        data = [
            section.index
            for section in self._elf.sections
            if section.flags & SHF_ALLOC
            and not section.flags & SHF_EXECINSTR
            and section.name != PER_CPU_SECTION
        ]
        symbols = self._elf.symbols
        chosen = np.isin(symbols.section, np.array(data, dtype=np.uint16))
        rows = np.flatnonzero(chosen & (symbols.kind == STT_OBJECT) & (symbols.size > 0))
        hidden = symbols.binding[rows] != STB_GLOBAL
        largest = np.iinfo(np.uint64).max - symbols.size[rows]
        rows = rows[np.lexsort((hidden, largest, symbols.address[rows]))]
        _, first = np.unique(symbols.address[rows], return_index=True)
        return rows[first]

    @cached_property
    def _starts(self) -> npt.NDArray[np.uint64]:
        return self._elf.symbols.address[self._rows]

    def at(self, address: int) -> tuple[str, int] | None:
        """Return (name, running start address) of the variable that contains a running address;
        None if no variable does."""
        linked = address - self._slide & MASK
        index = int(np.searchsorted(self._starts, np.uint64(linked), side="right")) - 1
        if index < 0:
            return None
        row, symbols = int(self._rows[index]), self._elf.symbols
        start = int(symbols.address[row])
        if linked >= start + int(symbols.size[row]):
            return None
        return symbols.name_of(row), address - (linked - start)
