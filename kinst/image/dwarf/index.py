"""The index of a file's debug information: loaded from the cache, or built and saved there.

Reading an index needs the standard library alone. build.py, which builds an index and needs numpy
and numba, is imported only if no index is saved.

DWARF has three kinds of entries for a function (DWARF 5, section 3.3.8). An abstract instance
describes the function as it is in the source. An out-of-line instance describes the function's own
code. A concrete inlined instance describes a copy inside of another function; this module calls it
an inlined copy.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie, InlineCopy
from kinst.core.paths import cache_folder
from kinst.image import saved_arrays
from kinst.image.dwarf.numbers import (
    KIND_BASE,
    KIND_ENUMERATION,
    KIND_STRUCTURE,
    KIND_TYPEDEF,
    KIND_UNION,
)
from kinst.image.elf_file import ElfFile, open_file
from kinst.image.saved_arrays import Arrays

KINDS = {
    KIND_STRUCTURE: "struct", KIND_UNION: "union", KIND_ENUMERATION: "enum",
    KIND_TYPEDEF: "typedef", KIND_BASE: "base",
}  # fmt: skip

# Called with the name of the work and the fraction (0 to 1) that is done; None if not known.
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class NamedDie:
    """A named type or variable of a file's DWARF.

    Attributes:
        kind: struct, union, enum, typedef, base or variable.
        name: name of the type or variable.
        die: offset of its DIE in .debug_info.
        unit: offset of its unit in .debug_info.
    """

    kind: str
    name: str
    die: int
    unit: int


@dataclass(frozen=True, slots=True)
class UnitLines:
    """Where a unit's line table is.

    Attributes:
        offset: offset in .debug_line, -1 if the unit has no line table.
        home: the folder in which the compiler ran.
        version: DWARF version of the unit.
    """

    offset: int
    home: str
    version: int


class Index:
    """Index of one file's DWARF: functions, inlined copies, types and variables by name. Implements
    core.inline.DebugIndex on mapped arrays."""

    def __init__(self, where: str, arrays: Arrays) -> None:
        self.where = where
        self._a = {name: memoryview(array) for name, array in arrays.items()}
        self._names = self._a["name_text"]
        self._name_at = self._a["name_at"]
        # Rows of inlined copies, by name and DIE offset of their functions; copies_of() fills it.
        self._by_function: dict[str, dict[int, list[int]]] = {}

    def functions(self, name: str) -> Sequence[FunctionDie]:
        """Return the functions with this name.

        A function may have several out-of-line instances (clones). They are returned as one
        function, with the ranges of all.
        """
        return [self._function(row) for row in self._rows("function_name", name)]

    def copies(self, name: str) -> Sequence[InlineCopy]:
        return [self._copy(row) for row in self._rows("copy_name", name)]

    def copies_of(self, function: FunctionDie) -> Sequence[InlineCopy]:
        """Return the inlined copies of one function (an abstract instance), in the order of
        .debug_info."""
        if function.name not in self._by_function:
            die, of = self._a["function_die"], self._a["copy_function"]
            grouped: dict[int, list[int]] = {}
            for row in self._rows("copy_name", function.name):
                grouped.setdefault(die[of[row]], []).append(row)
            self._by_function[function.name] = grouped
        return [self._copy(row) for row in self._by_function[function.name].get(function.die, [])]

    def inline_names(self) -> Sequence[str]:
        """Return the names of all inlined functions, each once, in the order of their bytes."""
        return [self._name(number) for number in sorted(set(self._a["copy_name"]))]

    def function_names(self) -> Sequence[str]:
        """Return the names of all functions, each once, in the order of their bytes."""
        return [self._name(number) for number in sorted(set(self._a["function_name"]))]

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        ranges, rows = self._a["copy_ranges"], self._a["by_low_range"]
        reach, owners = self._a["by_low_reach"], self._a["by_low_copy"]
        holding = set()
        at = bisect_right(rows, address, key=lambda row: int(ranges[2 * row])) - 1
        # A range that starts lower can hold the address only if some range reaches so far.
        while at >= 0 and reach[at] > address:
            if ranges[2 * rows[at] + 1] > address:
                holding.add(int(owners[at]))
            at -= 1
        parents = self._a["copy_parent"]
        depth = {row: len(list(_chain(parents, row))) for row in holding}
        return [self._copy(row) for row in sorted(depth, key=lambda r: (-depth[r], r))]

    def functions_of(self, wanted: Callable[[str], bool]) -> Sequence[FunctionDie]:
        """Return the functions that have out-of-line code and are declared in a source file whose
        path `wanted` accepts, sorted by name."""
        files, at = self._a["function_file"].tolist(), self._a["function_range"].tolist()
        declares = {number: number >= 0 and wanted(self._file(number)) for number in set(files)}
        return [
            self._function(row)
            for row, number in enumerate(files)
            if declares[number] and at[row + 1] > at[row]
        ]

    def copies_within(self, low: int, high: int) -> Sequence[tuple[InlineCopy, FunctionDie]]:
        """Return the inlined copies with a range that begins between two addresses, each copy with
        its function (the abstract instance); sorted by the function's name.

        Args:
            low: lowest address.
            high: address after the highest one.
        """
        ranges, rows = self._a["copy_ranges"], self._a["by_low_range"]
        owners, of = self._a["by_low_copy"], self._a["copy_function"]

        def start(row: int) -> int:
            return int(ranges[2 * row])

        first, last = bisect_left(rows, low, key=start), bisect_left(rows, high, key=start)
        found = sorted({int(owners[at]) for at in range(first, last)})
        return [(self._copy(row), self._function(int(of[row]))) for row in found]

    def symbol_at(self, address: int) -> tuple[str, int] | None:
        """Return (name, start address) of the symbol table's function that contains an address;
        None if no function does, or the file has no symbol table."""
        lows, highs, reach = (self._a[f"symbol_{what}"] for what in ("low", "high", "reach"))
        at = bisect_right(lows, address) - 1
        while at >= 0 and reach[at] > address:
            if highs[at] > address:
                return self._text("symbol", at), int(lows[at])
            at -= 1
        return None

    def types(self, name: str) -> Sequence[NamedDie]:
        """Return every complete type of this name (a tag, typedef or base type); of identical types
        only the first."""
        kinds = self._a["type_kind"]
        return [
            NamedDie(KINDS[int(kinds[row])], name, *self._place("type_die", row))
            for row in self._rows("type_name", name)
        ]

    def variables(self, name: str) -> Sequence[NamedDie]:
        """Return every variable at file scope of this name that is a definition, not only a
        declaration."""
        return [
            NamedDie("variable", name, *self._place("variable_die", row))
            for row in self._rows("variable_name", name)
        ]

    @property
    def enumerations(self) -> Sequence[int]:
        """Offsets in .debug_info of the enumerations at file scope, ascending; of identical
        enumerations only the first."""
        found: Sequence[int] = self._a["enumeration_die"]
        return found

    def declared_in(self, file: str) -> Sequence[FunctionDie]:
        """Return every function that a source file declares, sorted by name.

        Args:
            file: the file's path, or the last parts of the path.
        """
        numbers = {k for k, name in enumerate(self._files) if f"/{name}".endswith(f"/{file}")}
        rows = (row for row, at in enumerate(self._a["function_file"]) if at in numbers)
        return [self._function(row) for row in rows] if numbers else []

    @property
    def _files(self) -> Iterator[str]:
        return (self._text("file", k) for k in range(len(self._a["file_at"]) - 1))

    def file_names(self) -> Sequence[str]:
        """Return the paths of all source files that declare functions, each once."""
        numbers = sorted(set(self._a["function_file"]))
        # Units that were compiled in another folder may name a file by other parts of its path.
        return list(dict.fromkeys(self._file(int(number)) for number in numbers if number >= 0))

    def function_columns(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Return the code ranges of all functions, as three columns.

        Returns:
            Bounds of all ranges: low, high, low, high, ...
            For each function the index of its first range; the last element is the number of
                ranges.
            For each function its unit, as a position in `units`.
        """
        a = self._a
        return a["function_ranges"], a["function_range"], a["function_unit"]

    @property
    def units(self) -> Sequence[int]:
        """Offsets in .debug_info of all units' headers, ascending."""
        found: Sequence[int] = self._a["unit_offset"]
        return found

    def lines_of(self, unit: int) -> UnitLines:
        """Return where the line table of a unit is.

        Args:
            unit: offset of the unit in .debug_info.

        Raises:
            KinstError: no unit begins at this offset.
        """
        offsets = self._a["unit_offset"]
        row = bisect_left(offsets, unit)
        if row >= len(offsets) or int(offsets[row]) != unit:
            raise KinstError(f"{self.where}: no unit of debug information at {unit:#x}")
        home = self._text("home", int(self._a["unit_home"][row]))
        return UnitLines(int(self._a["unit_lines"][row]), home, int(self._a["unit_version"][row]))

    def _name(self, number: int) -> str:
        at = self._name_at
        return bytes(self._names[at[number] : at[number + 1]]).decode("utf-8", "surrogateescape")

    def _text(self, what: str, number: int) -> str:
        at = self._a[f"{what}_at"]
        text = self._a[f"{what}_text"][at[number] : at[number + 1]]
        return bytes(text).decode("utf-8", "surrogateescape")

    def _number(self, name: str) -> int:
        """Return the number of a name in the index; -1 if the index lacks the name."""
        name_bytes = name.encode("utf-8", "surrogateescape")
        text, at = self._names, self._name_at
        low, high = 0, len(at) - 1
        while low < high:
            middle = (low + high) // 2
            if bytes(text[at[middle] : at[middle + 1]]) < name_bytes:
                low = middle + 1
            else:
                high = middle
        if low < len(at) - 1 and bytes(text[at[low] : at[low + 1]]) == name_bytes:
            return low
        return -1

    def _rows(self, column: str, name: str) -> range:
        number = self._number(name) if name else -1
        if number < 0:
            return range(0)
        numbers = self._a[column]
        return range(bisect_left(numbers, number), bisect_right(numbers, number))

    def _place(self, column: str, row: int) -> tuple[int, int]:
        die = self._a[column][row]
        offsets = self._a["unit_offset"]
        return int(die), int(offsets[bisect_right(offsets, die) - 1])

    def _file(self, number: int) -> str:
        return self._text("file", number) if number >= 0 else ""

    def _ranges(self, what: str, row: int) -> tuple[tuple[int, int], ...]:
        first, last = self._a[f"{what}_range"][row : row + 2].tolist()
        values = self._a[f"{what}_ranges"][2 * first : 2 * last].tolist()
        return tuple(zip(values[::2], values[1::2], strict=True))

    def _function(self, row: int) -> FunctionDie:
        a = self._a
        return FunctionDie(
            name=self._name(int(a["function_name"][row])),
            die=int(a["function_die"][row]),
            unit=int(a["unit_offset"][int(a["function_unit"][row])]),
            decl_file=self._file(int(a["function_file"][row])),
            decl_line=int(a["function_line"][row]),
            inlined=bool(a["function_inlined"][row]),
            ranges=self._ranges("function", row),
        )

    def _function_name(self, copy: int) -> str:
        return self._name(int(self._a["copy_name"][copy]))

    def _copy(self, row: int) -> InlineCopy:
        a = self._a
        return InlineCopy(
            function=self._function_name(row),
            die=int(a["copy_die"][row]),
            unit=int(a["unit_offset"][int(a["copy_unit"][row])]),
            entry=int(a["copy_entry"][row]) if a["copy_has_entry"][row] else None,
            ranges=self._ranges("copy", row),
            call_file=self._file(int(a["copy_file"][row])),
            call_line=int(a["copy_line"][row]),
            within=tuple(self._function_name(r) for r in _chain(a["copy_parent"], row)),
            caller=self._name(int(a["copy_caller"][row])),
        )


def _chain(parents: Any, row: int) -> Iterator[int]:
    """Yield the inlined copies that a copy is nested in, innermost first. Copies are given by their
    rows: positions in the index's arrays of copies.

    Args:
        parents: for each copy, the row of the copy that directly contains it, or -1.
        row: row of the copy to start from; it is not yielded.
    """
    row = int(parents[row])
    while row >= 0:
        yield row
        row = int(parents[row])


def key_of(file: ElfFile) -> str:
    """Return the name under which a file's index is saved: the build-id, and a checksum of what the
    index is made from.

    strip, objcopy and dwz change debug sections and symbols but keep the build-id.  For a file
    without a build-id the checksum covers the whole file.
    """
    made_of = [s for s in file.sections if "debug_" in s.name or s.name in (".symtab", ".strtab")]
    digest = hashlib.sha256(repr([(s.name, s.size, s.flags) for s in made_of]).encode())
    for section in made_of:
        if section.name in (".debug_info", ".zdebug_info"):
            start = file.mapped[section.offset : section.offset + min(section.size, 1 << 16)]
            digest.update(zlib.crc32(start).to_bytes(4, "little"))
    if not file.build_id:
        digest.update(file.mapped)
    return f"{file.build_id or 'none'}-{digest.hexdigest()[:32]}"


def open_saved(file: ElfFile, cache: Path) -> Index | None:
    """Return the index of a file if the cache has it; otherwise None."""
    key = key_of(file) if file.has_debug else ""
    arrays = saved_arrays.load(cache / f"dwarf-{key}.index", key) if key else None
    return Index(str(file.path), arrays) if arrays is not None and _whole(arrays) else None


def _whole(arrays: Arrays) -> bool:
    """Return whether a saved index has every array of the present format."""
    return "enumeration_die" in arrays


def indexing() -> str:
    """Return what kinst does while it makes an index, in words for its progress.

    In a new cache, the scan must be compiled first, which takes longer than the index of a small
    program.
    """
    if any((cache_folder() / "compiled").glob("*/*/*.nbc")):
        return "indexing debug information"
    return "compiling the reader of debug information (once), and indexing"


def open_index(
    file: ElfFile | str | Path,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Index:
    """Return the index of a file's own debug information, loaded from the cache or built.

    Args:
        file: the file or its path.
        cache: the folder of saved indexes (core.paths), or None to save nothing.
        progress: called while an index is built.

    Raises:
        KinstError: the file has no debug information, or it is damaged.
    """
    file = file if isinstance(file, ElfFile) else open_file(file)
    if not file.has_debug:
        raise KinstError(
            f"{file.path}: no debug information", "install its debug package, or build with -g"
        )
    key = key_of(file) if cache else ""
    saved = cache / f"dwarf-{key}.index" if cache else None
    arrays = saved_arrays.load(saved, key) if saved else None
    if arrays is None or not _whole(arrays):
        told = partial(progress, indexing()) if progress else (lambda part: None)
        builder: Any = importlib.import_module("kinst.image.dwarf.build")
        arrays = builder.build(file, told)
        if saved:
            saved_arrays.save(saved, key, arrays)
    return Index(str(file.path), arrays)
