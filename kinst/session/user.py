"""Names for addresses of traced programs, from the files that kinst put into the guest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.consumer.symbols import Process, Symbol
from kinst.core.errors import KinstError
from kinst.image.elf import STT_FUNC, open_elf


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """One program's file: its segments of code (start and end as linked, lowest first) and its
    functions in order of their addresses."""

    code: tuple[tuple[int, int], ...]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    names: tuple[str, ...]

    def symbol(self, module: str, address: int, code_start: int) -> Symbol | None:
        """What is at an address of a process; None outside of the program's own code."""
        slide = code_start - self.code[0][0]
        linked = address - slide
        if not any(start <= linked < end for start, end in self.code):
            return None
        at = int(np.searchsorted(self.starts, np.uint64(linked), side="right")) - 1
        if at >= 0:
            start, size = int(self.starts[at]), int(self.sizes[at])
            if linked < start + max(size, 1):
                return Symbol(module, self.names[at], start + slide, code_start)
        return Symbol(module, "", 0, code_start)


def open_program(path: Path) -> GuestProgram | None:
    """None for what is no program: a script, a damaged file."""
    try:
        elf = open_elf(path)
        code = elf.code_segments
    except KinstError:
        return None
    if not code:
        return None
    starts = np.zeros(0, np.uint64)
    sizes, names = starts, ()
    try:
        symbols = elf.symbols
    except KinstError:  # stripped
        return GuestProgram(code, starts, sizes, names)
    # Of several names for one address the global one, then the first in the alphabet.
    functions = np.flatnonzero((symbols.kind == STT_FUNC) & (symbols.section != 0)).tolist()
    rows = sorted(
        (int(symbols.address[i]), symbols.binding[i] == 0, symbols.name_of(i), int(symbols.size[i]))
        for i in functions
    )
    first = [row for k, row in enumerate(rows) if k == 0 or rows[k - 1][0] != row[0]]
    return GuestProgram(
        code,
        np.array([row[0] for row in first], np.uint64),
        np.array([row[3] for row in first], np.uint64),
        tuple(row[2] for row in first),
    )


def user_names(programs: Mapping[str, Path]) -> Callable[[Process, int], Symbol | None]:
    """A function from a process and an address in it to its symbol.  Files are opened when a
    process that runs them is first asked about."""
    opened: dict[str, GuestProgram | None] = {}

    def symbol(process: Process, address: int) -> Symbol | None:
        name = process.program
        if name not in programs or not process.code_start:
            return None
        if name not in opened:
            opened[name] = open_program(programs[name])
        program = opened[name]
        return None if program is None else program.symbol(name, address, process.code_start)

    return symbol
