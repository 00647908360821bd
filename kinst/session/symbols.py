"""Names of addresses, as dtrace(1) prints them (module`function+0x13), and addresses of names.

Tested by tests/fake and tests/vm/language/test_stacks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.consumer.symbols import Names, Process, ResolvedSymbol
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.inline import SourcePlace
from kinst.core.system import System
from kinst.core.types import KERNEL, TypeSource
from kinst.core.words import MASK
from kinst.dlang import typed
from kinst.dlang.walk import symbols_in
from kinst.image.elf import STT_FUNC, open_elf
from kinst.session.values import StartedMachine


def names_of(machine: StartedMachine) -> Names:
    """Return the lookup of names for addresses that a trace on this machine records."""
    system, images = machine.system, machine.images
    modules: dict[str, int] = {}

    def kernel(address: int) -> ResolvedSymbol | None:
        found = _symbol(system, address)
        if found is None:
            return None
        return replace(found, base=modules.setdefault(found.module, found.start))

    def copies(address: int) -> list[str]:
        """Return the names of the functions whose inlined copies contain an address.

        Empty for code of a module. Also empty if the kernel's debug index is not in the cache,
        since making the index would take too long.
        """
        index = images.kernel.debug.made_index
        linked = images.kernel.back(address)
        if index is None or linked is None:
            return []
        return [c.function for c in index.copies_at(linked)]

    def place(module: str, address: int) -> SourcePlace | None:
        """Return the source place (file, line, inlined functions) of an address in a module; None
        if it is not known.

        Debug information that is damaged, or not indexed yet, gives None.
        """
        try:
            return images.place(module, address)
        except KinstError:
            return None

    return Names(kernel, user_names(machine.programs), copies, place)


def _symbol(system: System, address: int) -> ResolvedSymbol | None:
    """Return the kernel's function or variable that contains an address; None if there is no such
    function or variable.
    """
    function = system.function_at(address)
    if function is not None:
        return ResolvedSymbol(function.module, function.name, function.address)
    variable = system.variable_at(address)
    return None if variable is None else ResolvedSymbol(*variable)


def running_addresses(
    program: typed.TypedProgram, types: TypeSource | None, machine: StartedMachine
) -> dict[tuple[str, str], int]:
    """Return the running address of each symbol that a program uses, by (module, name).

    Raises KinstError for a symbol of a module that is not loaded.
    """
    found: dict[tuple[str, str], int] = {}
    wanted = symbols_in(program)
    if not wanted or types is None:
        return found
    slide = machine.facts.slide
    loaded = {m.name: m for m in machine.system.modules()}
    for module, name in sorted(wanted):
        symbol = types.symbol(name, module)
        if symbol is None:
            continue
        if module == KERNEL:
            found[module, name] = symbol.address + slide & MASK
            continue
        sections = {s.name: s.address for s in loaded[module].sections} if module in loaded else {}
        if symbol.section not in sections:
            raise KinstError(
                f"{module}`{name}: module {module} is not loaded", f"--module {module}"
            )
        found[module, name] = sections[symbol.section] + symbol.address
    return found


# Programs of the guest.


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """Program file that processes of the guest execute, with its symbols.

    Attributes:
        code: linked addresses [start, end) of each segment of code, lowest first.
        starts: linked addresses of the functions, ascending.
        sizes: bytes of each function, in the same order.
        names: name of each function, in the same order.
    """

    code: tuple[tuple[int, int], ...]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    names: tuple[str, ...]

    def symbol(self, module: str, address: int, code_start: int) -> ResolvedSymbol | None:
        """Return the function at an address of a process that executes this program.

        None if the address is not in the program's own code, but in a library for example. If it is
        in the code but in no function, the symbol has no name.

        Args:
            module: the program's name.
            code_start: address of the program's first code segment in the process.
        """
        slide = code_start - self.code[0][0]
        linked = address - slide
        if not any(start <= linked < end for start, end in self.code):
            return None
        at = int(np.searchsorted(self.starts, np.uint64(linked), side="right")) - 1
        if at >= 0:
            start, size = int(self.starts[at]), int(self.sizes[at])
            if linked < start + max(size, 1):
                return ResolvedSymbol(module, self.names[at], start + slide, code_start)
        return ResolvedSymbol(module, "", 0, code_start)


def open_program(path: Path) -> GuestProgram | None:
    """Read the code segments and functions of a program file; None for a script or a
    damaged file.
    """
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
    # If several names have one address: the global one, then the first in the alphabet.
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


def user_names(programs: Mapping[str, Path]) -> Callable[[Process, int], ResolvedSymbol | None]:
    """Return a function that looks up the symbol at an address of a guest's process.

    The returned function opens a program's file at the first lookup in a process that executes the
    program.

    Args:
        programs: paths on the host, by the program's name in the guest.
    """
    opened: dict[str, GuestProgram | None] = {}

    def symbol(process: Process, address: int) -> ResolvedSymbol | None:
        name = process.program
        if name not in programs or not process.code_start:
            return None
        if name not in opened:
            opened[name] = open_program(programs[name])
        program = opened[name]
        return None if program is None else program.symbol(name, address, process.code_start)

    return symbol
