"""Building of the index of a file's debug information: scan .debug_info, join its entries, sort.

index.py imports this module if an index is missing; numba is imported only here and from here.

Tested by tests/image/dwarf/test_index.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.image.dwarf.numbers import (
    E_ALT,
    E_SPLIT,
    FULL,
    FULL_ABBREVIATIONS,
    INL_NOT_INLINED,
    KEY_INFO,
    KEY_LINE,
    KEY_LINE_STR,
    KEY_SHIFT,
    KEY_STR,
    KIND_ENUMERATION,
    SCANNED,
    TROUBLE,
    U_COMP_DIR,
    U_OFFSET,
    U_STMT,
    U_VERSION,
)
from kinst.image.dwarf.reader import source_path
from kinst.image.dwarf.scan.jit import prepare, uncollected
from kinst.image.dwarf.scan.scan import scan_units
from kinst.image.dwarf.scan.space import (
    AT,
    C_DIE,
    C_ENTRY,
    C_FILE,
    C_HAS_ENTRY,
    C_LINE,
    C_ORIGIN,
    C_PARENT,
    C_RANGE,
    C_RANGES,
    C_ROOT,
    C_UNIT,
    COPIES,
    F_DIE,
    F_FILE,
    F_INLINE,
    F_LINE,
    F_NAME,
    F_ORIGIN,
    F_RANGE,
    F_RANGES,
    F_SPECIFICATION,
    F_UNIT,
    FILES,
    FUNCTIONS,
    RANGES,
    T_DIE,
    T_NAME,
    TYPES,
    UNITS,
    V_DECLARATION,
    V_DIE,
    V_NAME,
    V_SPECIFICATION,
    VARIABLES,
    N,
    Space,
    grown,
    make_space,
    table,
)
from kinst.image.dwarf.scan.units import count_units, read_headers
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import STB_GLOBAL, STB_WEAK, STT_FUNC, Elf, with_symbols
from kinst.image.elf_file import SHT_SYMTAB, ElfFile
from kinst.image.saved_arrays import Arrays

Int = npt.NDArray[np.int64]
# Bytes of .debug_info between two calls of progress.
PIECE = 16 << 20
SECTION_OF_KEY = {
    KEY_STR: "str", KEY_LINE_STR: "line_str", KEY_INFO: "info", KEY_LINE: "line",
}  # fmt: skip


def build(file: ElfFile, progress: Callable[[float], None]) -> Arrays:
    """Build the index of a file's debug information and return its arrays, which index.py reads.

    Args:
        file: ELF file with debug information.
        progress: called now and then, with the fraction (0 to 1) that is done.

    Raises:
        KinstError: the debug information is damaged; the message has the unit's offset in
            .debug_info.
    """
    elf = with_symbols(file)
    sections = DebugSections(elf)
    with uncollected():
        space = _scan(sections, progress)
    units, functions, copies = (table(space, n) for n in (UNITS, FUNCTIONS, COPIES))
    types, variables = table(space, TYPES), _variables(table(space, VARIABLES))
    enumerations = types[types[:, T_NAME] >> 56 == KIND_ENUMERATION, T_DIE]
    types = types[types[:, T_NAME] & (1 << 56) - 1 != 0]
    names = _Names(
        sections,
        [functions[:, F_NAME], types[:, T_NAME] & (1 << 56) - 1, variables[:, V_NAME]],
    )
    arrays = names.arrays()
    arrays |= _files(sections, table(space, FILES), units)
    arrays |= _code(functions, copies, table(space, RANGES), names)
    arrays |= _named("type", types[:, T_NAME] & (1 << 56) - 1, types[:, T_DIE], names)
    kinds = (types[:, T_NAME] >> 56).astype(np.uint8)
    arrays["type_kind"] = kinds[arrays.pop("type_order")]
    arrays |= _named("variable", variables[:, V_NAME], variables[:, V_DIE], names)
    del arrays["variable_order"]
    arrays["enumeration_die"] = np.sort(enumerations).astype(np.uint64)
    return arrays | _symbols(elf)


def _scan(sections: DebugSections, progress: Callable[[float], None]) -> Space:
    progress(0.0)  # numba may have to compile the scan first: minutes on a slow machine
    space = make_space({name: sections.array(name) for name in SCANNED})
    prepare({"Space": space, "U8": space.info})
    count, at = count_units(space, int(space.w[AT + UNITS]))
    if count < 0:
        raise _trouble(sections.where, at, count)
    space = grown(space, count, False)
    space.w[N + UNITS] = count
    read_headers(space, count)
    offsets = table(space, UNITS)[:, U_OFFSET].copy()
    start, full = 0, False
    while start < count:
        stop = int(np.searchsorted(offsets, int(offsets[start]) + PIECE))
        start, bad = scan_units(space, start, stop)
        if bad in (-FULL, -FULL_ABBREVIATIONS):
            space = grown(space, count, True, full)
            full = True
        elif bad < 0:
            raise _trouble(sections.where, int(offsets[start]), bad)
        else:
            full = False
            progress(start / count)
    return space


def _trouble(where: str, unit: int, number: int) -> KinstError:
    hint = ""
    if -number == E_ALT:
        hint = "give the debug file as it was before dwz -m"
    elif -number == E_SPLIT:
        hint = "build with -gno-split-dwarf"
    trouble = TROUBLE[-number]
    kind = "" if hint else "damaged "
    return KinstError(f"{where}: {kind}debug information: unit at {unit:#x}: {trouble}", hint)


class _Names:
    """The distinct names of an index, sorted by their bytes. A name's number is its position.

    Callers give names by string keys. A string key is a number made of the section that has the
    string (numbers.KEY_*) and the string's offset there.
    """

    def __init__(self, sections: DebugSections, keys: list[Int]) -> None:
        self.keys: Int = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *keys]))
        texts = _texts(sections, self.keys)
        self.names = sorted(set(texts))
        numbers = {name: number for number, name in enumerate(self.names)}
        self.numbers: Int = np.array([numbers[text] for text in texts], dtype=np.int64)

    def of(self, keys: Int) -> Int:
        """Return name numbers for string keys, in the same order; the empty name is number 0."""
        return self.numbers[np.searchsorted(self.keys, keys)]

    def arrays(self) -> Arrays:
        return packed("name", self.names)


def packed(what: str, texts: list[bytes]) -> Arrays:
    """Return byte strings as two arrays, {what}_text and {what}_at.

    The first has the strings joined. The second has the offset at which each string starts, and as
    its last element the length of the joined strings.
    """
    lengths = np.array([0, *(len(text) for text in texts)], dtype=np.int64)
    return {
        f"{what}_text": np.frombuffer(b"".join(texts), dtype=np.uint8),
        f"{what}_at": np.cumsum(lengths).astype(np.uint32),
    }


def _texts(sections: DebugSections, keys: Int) -> list[bytes]:
    """Return the string of each string key (numbers.KEY_*), in the same order; the keys must be
    ascending."""
    texts: list[bytes] = []
    for section in range(5):
        low, high = np.searchsorted(keys, [section << KEY_SHIFT, section + 1 << KEY_SHIFT])
        if section == 0:
            texts += [b""] * int(high - low)
            continue
        name = SECTION_OF_KEY[section]
        offsets: list[int] = (keys[low:high] - (section << KEY_SHIFT)).tolist()
        if section in (KEY_INFO, KEY_LINE):
            texts += [sections.text(name, offset) for offset in offsets]
            continue
        data = sections.array(name).tobytes()
        for offset in offsets:
            end = data.find(b"\0", offset)
            if end < 0 or offset >= len(data):
                raise KinstError(
                    f"{sections.where}: damaged: no string at {offset:#x} of .debug_{name}"
                )
            texts.append(data[offset:end])
    return texts


def _files(sections: DebugSections, files: Int, units: Int) -> Arrays:
    """Return these arrays of the index: paths of source files (file_*), folders in which the
    compiler ran (home_*), and units (unit_*).

    The arrays of units have each unit's offset, DWARF version, line table and folder.
    """
    keys = np.unique(np.concatenate([files.ravel(), units[:, U_COMP_DIR]]))
    text = dict(zip(keys.tolist(), _texts(sections, keys), strict=True))

    paths = [
        source_path(text[home], text[folder] if folder else None, text[name])
        for home, folder, name in files.tolist()
    ]
    homes = [text[key] for key in units[:, U_COMP_DIR].tolist()]
    distinct = sorted(set(homes))
    number = {home: i for i, home in enumerate(distinct)}
    return packed("file", paths) | packed("home", distinct) | {
        "unit_offset": units[:, U_OFFSET].astype(np.uint64),
        "unit_version": units[:, U_VERSION].astype(np.uint8),
        "unit_lines": units[:, U_STMT].copy(),
        "unit_home": np.array([number[home] for home in homes], dtype=np.uint32),
    }  # fmt: skip


def _variables(variables: Int) -> Int:
    """Return the variables of the scan that are definitions and have a name. A definition without a
    name gets the name of the declaration that it refers to."""
    at = rows_of(variables[:, V_DIE], variables[:, V_SPECIFICATION])
    unnamed = (variables[:, V_NAME] == 0) & (at >= 0)
    variables[unnamed, V_NAME] = variables[at[unnamed], V_NAME]
    found: Int = variables[(variables[:, V_DECLARATION] == 0) & (variables[:, V_NAME] != 0)]
    return found


def rows_of(dies: Int, wanted: Int) -> Int:
    """Return the position of each wanted DIE offset in `dies`, which is ascending; -1 if `dies`
    lacks it."""
    if not len(dies):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(dies, wanted), len(dies) - 1)
    return np.where(dies[at] == wanted, at, -1)


def _named(what: str, keys: Int, dies: Int, names: _Names) -> Arrays:
    numbers = names.of(keys)
    order = np.lexsort((dies, numbers))
    return {
        f"{what}_name": numbers[order].astype(np.uint32),
        f"{what}_die": dies[order].astype(np.uint64),
        f"{what}_order": order,
    }


def _code(functions: Int, copies: Int, ranges: Int, names: _Names) -> Arrays:
    """Return the index's arrays of functions (function_*) and inlined copies (copy_*, by_low_*).

    The entries of one function in .debug_info (its abstract instance and its out-of-line instances)
    become one function, which has the address ranges of all these instances.

    Args:
        functions: table FUNCTIONS of the scan.
        copies: table COPIES of the scan.
        ranges: table RANGES of the scan.
        names: names of functions.
    """
    dies = functions[:, F_DIE]
    joined = _followed(rows_of(dies, functions[:, F_ORIGIN]))
    completed = _with_declarations(functions, rows_of(dies, functions[:, F_SPECIFICATION]))
    numbers = names.of(completed[:, F_NAME])
    # Index -1 stands for "no function", also if there are copies but no functions at all.
    joined_or_none, number_or_none = np.append(joined, -1), np.append(numbers, 0)
    of_copy = joined_or_none[rows_of(dies, copies[:, C_ORIGIN])]

    has_code = np.zeros(len(functions), dtype=bool)
    has_code[joined[functions[:, F_RANGES] > 0]] = True
    copied = np.zeros(len(functions), dtype=bool)
    copied[of_copy[of_copy >= 0]] = True
    inlined = copied | (completed[:, F_INLINE] != INL_NOT_INLINED)
    kept = np.flatnonzero((joined == np.arange(len(functions))) & (has_code | inlined))
    kept = kept[numbers[kept] != 0]
    kept = kept[np.lexsort((dies[kept], numbers[kept]))]
    place = np.full(len(functions) + 1, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))

    pieces = np.flatnonzero(functions[:, F_RANGES] > 0)
    pieces = pieces[place[joined[pieces]] >= 0]
    pieces = pieces[np.argsort(place[joined[pieces]], kind="stable")]
    count = np.bincount(
        place[joined[pieces]], weights=functions[pieces, F_RANGES], minlength=len(kept)
    ).astype(np.int64)
    gathered = _gather(ranges, functions[pieces, F_RANGE], functions[pieces, F_RANGES])
    arrays: Arrays = {
        "function_die": dies[kept].astype(np.uint64),
        "function_unit": functions[kept, F_UNIT].astype(np.uint32),
        "function_name": numbers[kept].astype(np.uint32),
        "function_file": completed[kept, F_FILE].astype(np.int32),
        "function_line": completed[kept, F_LINE].astype(np.uint32),
        "function_inlined": inlined[kept].astype(np.uint8),
        "function_range": np.concatenate([[0], np.cumsum(count)]).astype(np.uint32),
        "function_ranges": gathered.ravel().view(np.uint64),
    }
    caller = number_or_none[joined_or_none[copies[:, C_ROOT]]]
    return arrays | _copies(copies, ranges, place[of_copy], numbers[kept], caller)


def _copies(copies: Int, ranges: Int, function: Int, numbers: Int, caller: Int) -> Arrays:
    """Return the index's arrays of inlined copies (copy_*), and arrays of the copies' address
    ranges, sorted by address (by_low_*).

    Args:
        copies: table COPIES of the scan.
        ranges: table RANGES of the scan.
        function: for each copy, its function as a position in the index; -1 if the copy is left
            out.
        numbers: for each function of the index, the number of its name.
        caller: for each copy, the function that contains it, as the number of a name.
    """
    kept = np.flatnonzero(function >= 0)
    kept = kept[np.lexsort((copies[kept, C_DIE], numbers[function[kept]]))]
    place = np.full(len(copies) + 1, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    count = copies[kept, C_RANGES]
    gathered = _gather(ranges, copies[kept, C_RANGE], count)
    lows, highs = gathered[:, 0].view(np.uint64), gathered[:, 1].view(np.uint64)
    by_low = np.argsort(lows, kind="stable")
    return {
        "copy_die": copies[kept, C_DIE].astype(np.uint64),
        "copy_unit": copies[kept, C_UNIT].astype(np.uint32),
        "copy_name": numbers[function[kept]].astype(np.uint32),
        "copy_function": function[kept].astype(np.uint32),
        "copy_entry": np.ascontiguousarray(copies[kept, C_ENTRY]).view(np.uint64),
        "copy_has_entry": copies[kept, C_HAS_ENTRY].astype(np.uint8),
        "copy_range": np.concatenate([[0], np.cumsum(count)]).astype(np.uint32),
        "copy_ranges": gathered.ravel().view(np.uint64),
        "copy_file": copies[kept, C_FILE].astype(np.int32),
        "copy_line": copies[kept, C_LINE].astype(np.uint32),
        "copy_parent": place[copies[kept, C_PARENT]].astype(np.int32),
        "copy_caller": caller[kept].astype(np.uint32),
        "by_low_range": by_low.astype(np.uint32),
        "by_low_copy": np.repeat(np.arange(len(kept)), count)[by_low].astype(np.uint32),
        "by_low_reach": np.maximum.accumulate(highs[by_low]),
    }


def _followed(origin: Int) -> Int:
    """Return for each function the position of its abstract instance.

    A function may refer to another one (DW_AT_abstract_origin), and so on: the last function of
    this chain is the abstract instance. If a function refers to no other, it is the abstract
    instance itself.

    Args:
        origin: for each function, the position of the function to which it refers; -1 if it has no
            reference.
    """
    targets = np.arange(len(origin))
    for _ in range(8):
        onward = np.where(origin[targets] >= 0, origin[targets], targets)
        if np.array_equal(onward, targets):
            break
        targets = onward
    return targets


def _with_declarations(functions: Int, specification: Int) -> Int:
    """Return the functions of the scan, completed from their declarations: a function that lacks a
    name, file, line or inline attribute takes the value of its declaration.

    Args:
        specification: for each function, the position of its declaration; -1 if it has none.
    """
    completed = functions.copy()
    for _ in range(4):
        has = specification >= 0
        said = completed[specification[has]]
        for column, absent in ((F_NAME, 0), (F_FILE, -1), (F_LINE, 0), (F_INLINE, 0)):
            mine = completed[has, column]
            completed[has, column] = np.where(mine == absent, said[:, column], mine)
    return completed


def _gather(ranges: Int, start: Int, count: Int) -> Int:
    """Return slices of `ranges`, joined: for each i, the count[i] rows that begin at start[i]."""
    total = int(count.sum())
    shift = np.repeat(start - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
    found: Int = ranges[np.arange(total) + shift] if total else ranges[:0]
    return np.ascontiguousarray(found)


def _symbols(elf: Elf) -> Arrays:
    """Return the index's arrays of the symbol table's functions (symbol_*), sorted by address. Of
    several names for one address, the preferred name (a global one) comes last."""
    if not any(section.kind == SHT_SYMTAB for section in elf.sections):
        empty = np.zeros(0, dtype=np.uint64)
        return packed("symbol", []) | {
            "symbol_low": empty, "symbol_high": empty, "symbol_reach": empty,
        }  # fmt: skip
    symbols = elf.symbols
    low = elf.placed_addresses
    is_function = (symbols.kind == STT_FUNC) & (symbols.size > 0) & (symbols.section != 0)
    rank = np.where(symbols.binding == STB_GLOBAL, 2, np.where(symbols.binding == STB_WEAK, 1, 0))
    rows = np.flatnonzero(is_function)
    rows = rows[np.lexsort((-rows, rank[rows], low[rows]))]
    high = low[rows] + symbols.size[rows]
    names = [name.encode("latin-1") for name in symbols.names_of(rows)]
    return packed("symbol", names) | {
        "symbol_low": low[rows],
        "symbol_high": high,
        "symbol_reach": np.maximum.accumulate(high) if len(high) else high,
    }
