"""The index of a file's debug information: opened from the cache, or made and kept there.

Reading an index needs numpy alone; what makes one (dwarf_build.py, with numba) is imported only
when it is missing.  Terms: kinst/core/inline.py.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie, InlineCopy
from kinst.image import dwarf_store
from kinst.image.dwarf_numbers import (
    KIND_BASE,
    KIND_ENUMERATION,
    KIND_STRUCTURE,
    KIND_TYPEDEF,
    KIND_UNION,
)
from kinst.image.dwarf_sections import debug_sections
from kinst.image.dwarf_store import Arrays
from kinst.image.elf import SHT_NOBITS, Elf

KINDS = {
    KIND_STRUCTURE: "struct", KIND_UNION: "union", KIND_ENUMERATION: "enum",
    KIND_TYPEDEF: "typedef", KIND_BASE: "base",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedDie:
    """A named type or variable.  kind: struct, union, enum, typedef, base or variable.

    die, unit: offsets in .debug_info.
    """

    kind: str
    name: str
    die: int
    unit: int


@dataclass(frozen=True, slots=True)
class UnitLines:
    """Where a unit's line table is.  offset: in .debug_line, -1 for none.  home: where the
    compiler ran; version: of the unit's DWARF."""

    offset: int
    home: str
    version: int


class Index:
    """core.inline.DebugIndex on mapped arrays, and types and variables by name."""

    def __init__(self, where: str, arrays: Arrays) -> None:
        self.where = where
        self._a = arrays
        self._names = arrays["name_text"].data
        self._name_at = arrays["name_at"].data

    def functions(self, name: str) -> Sequence[FunctionDie]:
        """See DebugIndex.functions.  The ranges of several out-of-line instances of one
        abstract instance (clones) come one after the other."""
        return [self._function(row) for row in self._rows("function_name", name)]

    def copies(self, name: str) -> Sequence[InlineCopy]:
        """See DebugIndex.copies."""
        return [self._copy(row) for row in self._rows("copy_name", name)]

    def copies_of(self, function: FunctionDie) -> Sequence[InlineCopy]:
        """The inlined copies of one function (an abstract instance), in file order."""
        rows = self._rows("function_name", function.name)
        dies = self._a["function_die"][rows.start : rows.stop]
        mine = rows.start + int(np.flatnonzero(dies == np.uint64(function.die))[0])
        of = self._a["copy_function"]
        return [
            self._copy(row) for row in self._rows("copy_name", function.name) if of[row] == mine
        ]

    def inline_names(self) -> Sequence[str]:
        """See DebugIndex.inline_names; in order of their bytes."""
        return [self._name(number) for number in np.unique(self._a["copy_name"]).tolist()]

    def function_names(self) -> Sequence[str]:
        """The distinct names of all functions, in order of their bytes."""
        return [self._name(number) for number in np.unique(self._a["function_name"]).tolist()]

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        """See DebugIndex.copies_at."""
        lows, highs = self._by_low
        reach, owners = self._a["by_low_reach"], self._a["by_low_copy"]
        found = []
        at = int(np.searchsorted(lows, np.uint64(address), "right")) - 1
        # Ranges that start further down hold the address only while some reach that far.
        while at >= 0 and int(reach[at]) > address:
            if int(highs[at]) > address:
                found.append(int(owners[at]))
            at -= 1
        parents = self._a["copy_parent"]
        depth = {row: len(list(_chain(parents, row))) for row in set(found)}
        return [self._copy(row) for row in sorted(depth, key=lambda r: (-depth[r], r))]

    def types(self, name: str) -> Sequence[NamedDie]:
        """Every complete type of this name (tag or typedef); of equal ones the first."""
        kinds = self._a["type_kind"]
        return [
            NamedDie(KINDS[int(kinds[row])], name, *self._place("type_die", row))
            for row in self._rows("type_name", name)
        ]

    def variables(self, name: str) -> Sequence[NamedDie]:
        """Every variable at file scope of this name that is more than a declaration."""
        return [
            NamedDie("variable", name, *self._place("variable_die", row))
            for row in self._rows("variable_name", name)
        ]

    def lines_of(self, unit: int) -> UnitLines:
        """Where the line table of the unit at this offset is.  Raises KinstError for no unit."""
        offsets = self._a["unit_offset"]
        row = int(np.searchsorted(offsets, np.uint64(unit)))
        if row >= len(offsets) or int(offsets[row]) != unit:
            raise KinstError(f"{self.where}: no unit at {unit:#x}")
        home = self._text("home", int(self._a["unit_home"][row]))
        return UnitLines(int(self._a["unit_lines"][row]), home, int(self._a["unit_version"][row]))

    @cached_property
    def _by_low(self) -> tuple[Any, Any]:
        ranges = self._a["copy_ranges"].reshape(-1, 2)[self._a["by_low_range"]]
        return ranges[:, 0], ranges[:, 1]

    def _name(self, number: int) -> str:
        at = self._name_at
        return bytes(self._names[at[number] : at[number + 1]]).decode("utf-8", "replace")

    def _text(self, what: str, number: int) -> str:
        at = self._a[f"{what}_at"]
        text = self._a[f"{what}_text"][int(at[number]) : int(at[number + 1])]
        return text.tobytes().decode("utf-8", "surrogateescape")

    def _number(self, name: str) -> int:
        """The number of a name; -1 when no entry has it."""
        wanted = name.encode("utf-8", "surrogateescape")
        text, at = self._names, self._name_at
        low, high = 0, len(at) - 1
        while low < high:
            middle = (low + high) // 2
            if bytes(text[at[middle] : at[middle + 1]]) < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(at) - 1 and bytes(text[at[low] : at[low + 1]]) == wanted:
            return low
        return -1

    def _rows(self, column: str, name: str) -> range:
        number = self._number(name) if name else -1
        if number < 0:
            return range(0)
        numbers = self._a[column]
        ends = np.searchsorted(numbers, np.array([number, number + 1], dtype=numbers.dtype))
        return range(*ends.tolist())

    def _place(self, column: str, row: int) -> tuple[int, int]:
        die = self._a[column][row]
        offsets = self._a["unit_offset"]
        return int(die), int(offsets[int(np.searchsorted(offsets, die, "right")) - 1])

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
    """The copies that a copy is nested in, innermost first."""
    row = int(parents[row])
    while row >= 0:
        yield row
        row = int(parents[row])


def has_debug(elf: Elf) -> bool:
    """Whether the file has debug information of its own."""
    for name in (".debug_info", ".zdebug_info"):
        section = elf.section(name)
        if section is not None and section.size and section.kind != SHT_NOBITS:
            return True
    return False


def _key(elf: Elf) -> str:
    """What an index is kept by: the build-id (or the content), and the debug sections' shape.

    objcopy and dwz change debug sections but keep the build-id.
    """
    shape = [(s.name, s.size, s.flags) for s in elf.sections if "debug_" in s.name]
    info = elf.section(".debug_info") or elf.section(".zdebug_info")
    digest = hashlib.sha256(repr(shape).encode())
    if info is not None:
        with elf.path.open("rb") as file:
            if not elf.build_id:
                while piece := file.read(1 << 20):
                    digest.update(piece)
            file.seek(info.offset)
            digest.update(zlib.crc32(file.read(1 << 16)).to_bytes(4, "little"))
    return f"{elf.build_id or 'none'}-{digest.hexdigest()[:32]}"


def open_index(
    elf: Elf, cache: Path | None = None, progress: Callable[[float], None] | None = None
) -> Index:
    """The index of a file's own debug information.

    cache: the folder of saved indexes (btf.cache_folder()), or None to save nothing.  progress:
    called with the part that is done (0 to 1) while an index is made, not when there is one.
    Raises KinstError when the file has no debug information or it is damaged.
    """
    if not has_debug(elf):
        raise KinstError(
            f"{elf.path}: no debug information", "install its debug package, or build with -g"
        )
    key = _key(elf) if cache else ""
    saved = cache / f"dwarf-{key}.index" if cache else None
    arrays = dwarf_store.load(saved, key) if saved else None
    if arrays is None:
        builder: Any = importlib.import_module("kinst.image.dwarf_build")
        arrays = builder.build(debug_sections(elf), progress or (lambda part: None))
        if saved:
            dwarf_store.save(saved, key, arrays)
    return Index(str(elf.path), arrays)
