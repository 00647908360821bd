"""Library function that finds the inline functions of an ELF file, with their declarations and
their copies.

No machine is needed. If the file's index is in the cache, only the standard library and numpy are
imported, and the answer takes a tenth of a second.

Tested by tests/cli/test_inlinecall.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie, InlineCopy
from kinst.core.paths import cache_folder
from kinst.image.debuglink import find_debug
from kinst.image.dwarf.index import Index, open_index
from kinst.image.elf_file import open_file


@dataclass(frozen=True, slots=True)
class CodeRange:
    """An address range of an inlined copy.

    Attributes:
        low: the first address.
        high: the address after the last byte.
        caller: name of the function whose code contains the range, "" if unknown.
    """

    low: int
    high: int
    caller: str


@dataclass(frozen=True, slots=True)
class CopyOfInline:
    """An inlined copy of a function.

    Attributes:
        entry: address at which control enters the copy; None if the file does not say.
        ranges: address ranges of the copy; () for a copy without code.
        caller: name of the function whose code contains the entry; "" if there is no entry, or no
            symbol there.
        caller_offset: offset in bytes of the entry from the caller's start.
        call_file: source file of the call, "" if unknown.
        call_line: source line of the call, 0 if unknown.
    """

    entry: int | None
    ranges: tuple[CodeRange, ...]
    caller: str
    caller_offset: int
    call_file: str
    call_line: int


@dataclass(frozen=True, slots=True)
class InlineFunction:
    """An inline function and its copies.

    Attributes:
        decl_file: source file of the declaration, "" if unknown.
        decl_line: source line of the declaration, 0 if unknown.
    """

    name: str
    decl_file: str
    decl_line: int
    copies: tuple[CopyOfInline, ...]


def _ignore(*_: object) -> None:
    pass


def inline_functions(
    file: str | os.PathLike[str],
    name: str,
    *,
    on_message: Callable[[str], None] = _ignore,
    on_progress: Callable[[str, float | None], None] = _ignore,
) -> list[InlineFunction]:
    """Return the inline functions with this name in an ELF file, with their copies.

    Args:
        file: path of the ELF file; its debug information may be in a separate debug file.
        name: name of the functions.
        on_message: called with a warning about a debug file that does not belong to the ELF file.
        on_progress: called with the name of the work and the fraction that is done, while the file
            is indexed. A file is indexed only once.

    Raises KinstError if the file has no debug information, or no inline function with this name."""
    path = os.fspath(file)
    found = find_debug(open_file(path))
    for warning in found.warnings:
        on_message(f"warning: {warning}")
    if found.file is None:
        raise KinstError(
            f"{path}: no debug information", "install its debug package, or build with -g"
        )
    index = open_index(found.file, cache_folder(), on_progress)
    functions = index.functions(name)
    inline = [function for function in functions if function.inlined]
    if not inline:
        if functions:
            raise KinstError(f"{path}: {name} is not an inline function")
        raise KinstError(f"{path}: no function {name} in its debug information")
    return [_function(index, one) for one in inline]


def _function(index: Index, function: FunctionDie) -> InlineFunction:
    copies = tuple(_copy(index, copy) for copy in index.copies_of(function))
    return InlineFunction(function.name, function.decl_file, function.decl_line, copies)


def _copy(index: Index, copy: InlineCopy) -> CopyOfInline:
    entry = copy.entry
    symbol = None if entry is None else index.symbol_at(entry)
    offset = entry - symbol[1] if symbol is not None and entry is not None else 0
    ranges = tuple(CodeRange(low, high, _symbol(index, low)) for low, high in copy.ranges)
    caller = symbol[0] if symbol is not None else ""
    return CopyOfInline(entry, ranges, caller, offset, copy.call_file, copy.call_line)


def _symbol(index: Index, address: int) -> str:
    found = index.symbol_at(address)
    return found[0] if found else ""
