"""All debug information of one image: types, inlined copies, source lines, local variables and call
frames.

A DebugInfo is the debug information of one image (the kernel, a module, a user program). It opens
the image's file once and reads each part when it is first needed. DebugFiles keeps the DebugInfo
objects of one machine, so that every stage of a session and the next trace on that machine share
them; two machines share only saved indexes.

Addresses are as linked; in a relocatable file, as its layout places them (ElfFile.layout).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import ArrayType, DType, EnumType, FunctionType, IntType, StructType
from kinst.core.inline import FunctionDie, InlineCopy, InlinedFrame, SourcePlace
from kinst.core.types import KERNEL, AmbiguousNameError, Symbol
from kinst.core.words import stem_of
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.dwarf.cfi import ROOM, Cfi, open_cfi
from kinst.image.dwarf.dies import Dies
from kinst.image.dwarf.entry_values import Caller
from kinst.image.dwarf.index import Index, Progress, key_of, open_index, open_saved
from kinst.image.dwarf.lines import Lines, LineSpan
from kinst.image.dwarf.locals import DwarfLocals
from kinst.image.dwarf.location_lists import Lists
from kinst.image.dwarf.sections import SHF_COMPRESSED, DebugSections
from kinst.image.dwarf.types import DwarfTypes, EnumeratorNames
from kinst.image.elf import SHN_ABS, STB_LOCAL, STT_FUNC, STT_OBJECT, Elf, open_elf, with_symbols
from kinst.image.elf_file import SHF_EXECINSTR, ElfFile, open_file
from kinst.image.orc import Orc, open_orc
from kinst.image.relocations import placed
from kinst.image.variable_table import PER_CPU_SECTION

_SHORT = 4  # bytes of the shortest name that is certainly in .debug_str
MOST_PLACES = 1 << 16  # results of place() that are cached


@dataclass(frozen=True)
class CallConvention:
    """Facts of an ISA's calling convention. kinst uses them to compute a caller's values.

    Attributes:
        returns: takes (code, address of the code, target); finds the calls of `target` in the code,
            and returns their return addresses (Isa.returns_of()).
        stack: DWARF number of the stack pointer, -1 if DWARF does not number it.
        preserved: DWARF numbers of the registers that calls preserve.
        signature: mask of the bits of a return address that may hold a pointer signature; 0 if the
            ISA has no such bits.
    """

    returns: Callable[[bytes, int, int], Sequence[int]]
    stack: int
    preserved: frozenset[int]
    signature: int


class DebugInfo:
    """Debug information of one image. Implements core.inline.DebugIndex.

    If the file has no DWARF, methods return None or (), unless their docstring says that they
    raise. If the file is damaged, every method raises KinstError with one line that names the file.
    """

    def __init__(
        self,
        file: ElfFile | Path,
        module: str = KERNEL,
        base: DebugInfo | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Describe the image without reading its file yet.

        Args:
            file: the image's ELF file, opened or as a path.
            module: the image's name in D.
            base: debug information of the kernel, if the image is one of its modules.
            cache: folder of saved indexes, None to save nothing.
            progress: called while an index is built.
        """
        self.module = module
        self._file = file
        self._base = base
        self._cache = cache
        self._progress = progress
        self._index: Index | None = None
        self._sought_index = False
        self._locals: dict[object, DwarfLocals] = {}
        self._functions: dict[tuple[str, int], FunctionDie | None] = {}
        self._source_places: dict[int, SourcePlace | None] = {}

    # Files

    @property
    def path(self) -> Path:
        return self._file.path if isinstance(self._file, ElfFile) else self._file

    @cached_property
    def elf(self) -> Elf:
        return with_symbols(self._file) if isinstance(self._file, ElfFile) else open_elf(self.path)

    @cached_property
    def placed(self) -> Elf:
        """The image's ELF file; if it is relocatable, with its sections at the addresses of its
        layout."""
        return placed(self.elf)

    @property
    def has_dwarf(self) -> bool:
        return self.elf.has_debug

    @property
    def index(self) -> Index:
        """Index of the file's DWARF, loaded from the cache or built now (seconds, for a kernel).
        Raises KinstError if the file has no DWARF."""
        if self._index is None:
            self._index = open_index(self.elf, self._cache, self._progress)
        return self._index

    @property
    def made_index(self) -> Index | None:
        """Index of the file's DWARF, if this object has the index already or the cache has it;
        otherwise None. Unlike `index`, this property never builds an index."""
        if self._index is None and self._cache is not None and not self._sought_index:
            self._sought_index = True
            self._index = open_saved(self.elf, self._cache)
        return self._index

    @cached_property
    def _sections(self) -> DebugSections:
        return DebugSections(self.elf)

    @cached_property
    def _dies(self) -> Dies:
        return Dies(self._sections, self.index.units)

    # Inline functions

    def functions(self, name: str) -> Sequence[FunctionDie]:
        return self.index.functions(name) if self.has_dwarf else ()

    def copies(self, name: str) -> Sequence[InlineCopy]:
        return self.index.copies(name) if self.has_dwarf else ()

    def inline_names(self) -> Sequence[str]:
        return self.index.inline_names() if self.has_dwarf else ()

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        return self.index.copies_at(address) if self.has_dwarf else ()

    def lacks_function(self, name: str) -> bool:
        """Return whether the DWARF certainly has no function and no inlined copy with this name.

        No index is built for this. Without one, a name is certainly lacking if it is not among the
        file's debug strings.
        """
        index = self.made_index
        if index is not None:
            return not index.functions(name) and not index.copies(name)
        strings = self.elf.section(".debug_str")
        # Compilers store a name of at most three bytes in .debug_info (DW_FORM_string).
        if strings is None or strings.flags & SHF_COMPRESSED or len(name) < _SHORT:
            return False
        end = strings.offset + strings.size
        return self.elf.mapped.find(name.encode() + b"\0", strings.offset, end) < 0

    def is_inlined(self, name: str) -> bool | None:
        """Return whether a function with this name has inlined copies; None if only an index
        could tell, and no index has been built."""
        index = self.made_index
        if index is not None:
            return bool(index.copies(name))
        return False if self.lacks_function(name) else None

    def function_at(self, name: str, address: int) -> FunctionDie | None:
        """Return the DWARF function with a symbol's name whose code contains an address; None if
        there is no such function.

        A function may begin with nops that the compiler inserts for a function tracer. The symbol
        includes these nops, but the function's ranges in DWARF do not. So an address at most ROOM
        (16) bytes before a range of the function counts as inside the range.

        Args:
            name: the symbol's name; suffixes such as .isra.0 are ignored.
        """
        key = name, address
        if key not in self._functions:
            candidates = self.functions(stem_of(name))
            holding = [
                die
                for room in (0, ROOM)
                for die in candidates
                if any(low - room <= address < high for low, high in die.ranges)
            ]
            self._functions[key] = holding[0] if holding else None
        return self._functions[key]

    # Source lines

    @cached_property
    def lines(self) -> Lines:
        """Line tables of the file, by unit. Raises KinstError if the file has no DWARF."""
        return Lines(self._sections, self.index)

    def line_at(self, name: str, address: int, entry: int | None = None) -> LineSpan | None:
        """Return the source line of an instruction; None if its function or its line is not known.

        Args:
            name: symbol of the function that contains the instruction.
            address: the instruction's linked address.
            entry: linked address of the function's entry, used to look up the function in DWARF. If
                None, the instruction's address is used.
        """
        function = self.function_at(name, address if entry is None else entry)
        return self.lines.at(function.unit, address) if function is not None else None

    def place(self, address: int) -> SourcePlace | None:
        """Return the source line of an instruction and the functions that are inlined there; None
        if they are not known.

        Only an index that exists already is used: building an index takes seconds, and a running
        trace waits for this function. The line table of each unit is read once (milliseconds).
        """
        index = self.made_index
        if index is None:
            return None
        if address not in self._source_places:
            if len(self._source_places) >= MOST_PLACES:
                self._source_places.clear()
            self._source_places[address] = self._place(index, address)
        return self._source_places[address]

    def _place(self, index: Index, address: int) -> SourcePlace | None:
        copies = index.copies_at(address)
        unit = copies[0].unit if copies else self._units.at(address)
        if unit is None:
            return None
        span = self.lines.at(unit, address)
        file, line = (span.file, span.line) if span is not None else ("", 0)
        inlined = []
        for copy in copies:
            inlined.append(InlinedFrame(copy.function, file, line))
            file, line = copy.call_file, copy.call_line
        return SourcePlace(file, line, tuple(inlined))

    @cached_property
    def _units(self) -> _UnitsByAddress:
        return _UnitsByAddress(self.index)

    # Types

    @cached_property
    def btf(self) -> BtfTypes | None:
        """Types in the image's BTF; None if the file has no BTF, or if it is a module and the
        kernel's file has none."""
        base = self._base.btf if self._base is not None else None
        if self._base is not None and base is None:
            return None
        return open_types(self.elf, self.module, base, self._cache)

    @cached_property
    def dwarf(self) -> DwarfTypes | None:
        """Types in the file's DWARF; None if the file has no DWARF."""
        if not self.has_dwarf:
            return None
        cache = (self._cache, key_of(self.elf)) if self._cache else None
        names = EnumeratorNames(self._dies, self.index.enumerations, cache)
        return DwarfTypes(self._dies, self.index, self.module, names)

    @property
    def types(self) -> BtfTypes | DwarfTypes | None:
        """Types of the image: from BTF, which is small and fast, if there is BTF; otherwise from
        DWARF. None if there is neither."""
        return self.btf or self.dwarf

    def enumerator(self, name: str) -> tuple[EnumType, int] | None:
        """Return (enumeration, value) of the enumeration constant with this name; None if no
        enumeration has it.

        The constant is looked up in BTF, or in DWARF if there is no BTF. (The kernel's build makes
        BTF from DWARF, and loses no constant: a Debian kernel's BTF has all 14,998 of them.)

        Raises:
            AmbiguousNameError: several enumerations have the name with different values.
        """
        types = self.types
        enumerators = types.enumerators(name) if types is not None else []
        values = {value: str(type_) for type_, value in reversed(enumerators)}
        if len(values) > 1:
            shown = [
                f"{value} in {type_ if type_ != 'enum' else 'an enum without a name'}"
                for value, type_ in reversed(values.items())
            ]
            raise AmbiguousNameError(
                f"{name} is ambiguous: {', '.join(shown[:-1])} and {shown[-1]}",
                "write the number, or compare the name with a value of its enumeration",
            )
        return enumerators[0] if enumerators else None

    def symbol(self, name: str) -> Symbol | None:
        """Return the ELF symbol with this name, with its D type; None if there is no such symbol.
        If several symbols have the name, return a global symbol if one of them is global, otherwise
        the first symbol."""
        symbols = self.elf.symbols
        indexes = symbols.indexes(name)
        if not indexes:
            return None
        indexes.sort(key=lambda i: int(symbols.binding[i]) == STB_LOCAL)
        at = indexes[0]
        kind, number = int(symbols.kind[at]), int(symbols.section[at])
        section = self.elf.sections[number] if number < len(self.elf.sections) else None
        name_of = section.name if section is not None and number != SHN_ABS else ""
        address, size = int(symbols.address[at]), int(symbols.size[at])
        type_: DType | None = self.prototype(name) if kind == STT_FUNC else self._variable(name, at)
        per_cpu = name_of == PER_CPU_SECTION
        type_ = _bounded(type_, size)
        return Symbol(self.module, name, address, size, type_, name_of, per_cpu)

    def symbol_functions(self) -> list[str]:
        """Return the names of all functions in the file's symbol table."""
        symbols = self.elf.symbols
        return symbols.names_of((symbols.kind == STT_FUNC).nonzero()[0])

    def prototype(self, function: str) -> FunctionType | None:
        """Return the D type of a function (parameters and result); None if neither BTF nor DWARF
        has it."""
        return self.types.function(function) if self.types else None

    def _variable(self, name: str, at: int) -> DType | None:
        """Return the D type of the variable that a symbol names; None if it is not known.

        If DWARF has no variable of this name, try the other symbols at the same address: a linker
        script may have given the variable a second name.

        Args:
            at: index of the symbol.
        """
        if self.dwarf is None:
            return self.btf.variable(name) if self.btf else None
        type_ = self.dwarf.variable(name)
        if type_ is not None:
            return type_
        symbols = self.elf.symbols
        same = (symbols.address == symbols.address[at]) & (symbols.kind == STT_OBJECT)
        for other in same.nonzero()[0].tolist():
            type_ = self.dwarf.variable(symbols.name_of(other))
            if type_ is not None:
                return type_
        return None

    def is_per_cpu(self, address: int) -> bool:
        """Return whether an address lies in a section of per-CPU variables; addresses are as
        linked."""
        return any(low <= address < high for low, high in self._per_cpu)

    @cached_property
    def _per_cpu(self) -> list[tuple[int, int]]:
        sections = self.placed.sections
        return [(s.address, s.end) for s in sections if s.name == PER_CPU_SECTION]

    # Local variables

    def locals(
        self, registers: Sequence[str] = (), calls: CallConvention | None = None
    ) -> DwarfLocals | None:
        """Return the local variables of the image's functions; None if the file has no DWARF.

        Args:
            registers: the registers' names in D, by DWARF number.
            calls: the calling convention, for values that only a function's caller has; None to
                leave these values out.
        """
        if self.dwarf is None:
            return None
        key = tuple(registers), calls
        if key not in self._locals:
            caller = None
            # The file of a module has no addresses yet.
            if calls is not None and self._base is None:
                caller = Caller(
                    partial(self._returns, calls), lambda: self.cfi, calls.stack, calls.preserved,
                    calls.signature,
                )  # fmt: skip
            lists = Lists(self._sections, self._dies)
            self._locals[key] = DwarfLocals(
                self._dies, lists, self.index, self.dwarf, registers, caller
            )
        return self._locals[key]

    @cached_property
    def _code(self) -> list[tuple[int, bytes]]:
        """(address, bytes) of each executable section; empty for a relocatable file, whose sections
        have no addresses."""
        elf = self.elf
        code = [s for s in elf.sections if s.flags & SHF_EXECINSTR and s.address]
        return [(s.address, elf.data(s)) for s in code]

    def _returns(self, calls: CallConvention, target: int) -> list[int]:
        found = [calls.returns(code, address, target) for address, code in self._code]
        return [back for some in found for back in some]

    # Call frames

    @cached_property
    def cfi(self) -> Cfi | None:
        """Call frame information of the file; None if the file has none."""
        return open_cfi(self.placed)

    @cached_property
    def orc(self) -> Orc | None:
        """ORC unwind tables of the file; None if the file has none."""
        return open_orc(self.placed)

    def frame_address(self, address: int, registers: Sequence[str]) -> tuple[str, int] | None:
        """Return how to compute the canonical frame address at an instruction: (D name of the base
        register, offset in bytes); None if that is not known.

        If the image has ORC tables, only they are used; otherwise call frame information is.

        Args:
            address: the instruction's linked address.
            registers: D names by DWARF number, "" for registers that D does not have.
        """
        if self.orc is not None:
            known = self.orc.rule(address)
            return None if known is None else (known.register, known.offset)
        rule = self.cfi.rule(address) if self.cfi is not None else None
        if rule is None or rule.register >= len(registers) or not registers[rule.register]:
            return None
        return registers[rule.register], rule.offset


class _UnitsByAddress:
    """Lookup of the DWARF unit whose functions contain an address."""

    def __init__(self, index: Index) -> None:
        ranges, first, unit = (np.asarray(column) for column in index.function_columns())
        low, high = ranges[0::2], ranges[1::2]
        order = np.argsort(low, kind="stable")
        counts: npt.NDArray[np.int64] = first[1:].astype(np.int64) - first[:-1]
        units = np.repeat(np.asarray(index.units)[unit], counts)
        self._low: npt.NDArray[np.uint64] = low[order]
        self._high: npt.NDArray[np.uint64] = high[order]
        self._unit: npt.NDArray[np.uint64] = units[order]

    def at(self, address: int) -> int | None:
        """Return the offset in .debug_info of the unit whose functions contain an address; None if
        no unit does."""
        row = int(np.searchsorted(self._low, np.uint64(address), side="right")) - 1
        if row < 0 or address >= int(self._high[row]):
            return None
        return int(self._unit[row])


class DebugFiles:
    """The DebugInfo objects of one machine, by file: each file is opened once."""

    def __init__(self, cache: Path | None = None, progress: Progress | None = None) -> None:
        self._cache = cache
        self._progress = progress
        self._known: dict[tuple[Path, str, str], DebugInfo] = {}

    def open(
        self, path: str | Path, module: str = KERNEL, base: DebugInfo | None = None
    ) -> DebugInfo:
        """Return the debug information of an image's file: the existing object if the file was
        opened before and still has the same build-id, otherwise a new one.

        Args:
            path: the image's file.
            module: the image's name in D.
            base: debug information of the kernel, if the image is one of its modules.

        Raises:
            KinstError: the file cannot be opened.
        """
        file = open_file(path)
        key = file.path.resolve(), file.build_id, module
        if key not in self._known:
            self._known[key] = DebugInfo(file, module, base, self._cache, self._progress)
        return self._known[key]


def _bounded(type_: DType | None, size: int) -> DType | None:
    """Return the type of a variable. If it is an array that is declared without a bound, compute
    the bound from the size of the variable's symbol; otherwise return `type_` unchanged.

    Args:
        type_: the type as declared, None if it is not known.
        size: the symbol's size in bytes.
    """
    if not isinstance(type_, ArrayType) or type_.count:
        return type_
    of = type_.of
    if isinstance(of, IntType | StructType) and of.size:
        return replace(type_, count=size // of.size)
    return type_
