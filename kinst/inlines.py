"""Where an inline function was declared, and where its copies are, in an ELF file.

The part of the library that needs no machine.  With the file's index present it imports nothing
but the standard library and numpy, and answers in a tenth of a second.

Tested by tests/cli/test_inlinecall.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie, InlineCopy
from kinst.core.paths import cache_folder
from kinst.image.debuglink import find_debug
from kinst.image.dwarf.index import Index, open_index
from kinst.image.elf_file import open_file


@dataclass(frozen=True, slots=True)
class CodeRange:
    """Code of a copy, low <= address < high, and the function that it is in ("" unknown)."""

    low: int
    high: int
    caller: str


@dataclass(frozen=True, slots=True)
class CopyOfInline:
    """One copy.  entry: None where the file does not say.  ranges: none for one without code.

    caller, caller_offset: the function that the entry is in, and how far; "" where there is no
    entry or no symbol.  call_file, call_line: "" and 0 where they are not known."""

    entry: int | None
    ranges: tuple[CodeRange, ...]
    caller: str
    caller_offset: int
    call_file: str
    call_line: int


@dataclass(frozen=True, slots=True)
class InlineFunction:
    """decl_file, decl_line: of its declaration, "" and 0 where they are not known."""

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
    """The inline functions of this name in an ELF file, or in its debug file.

    on_message: told of debug files that do not fit.  on_progress: of the index being made, which
    happens once for each file.  Raises KinstError where there is none."""
    path = os.fspath(file)
    found = find_debug(open_file(path))
    for warning in found.warnings:
        on_message(f"warning: {warning}")
    if found.file is None:
        raise KinstError(
            f"{path}: no debug information", "install its debug package, or build with -g"
        )
    index = open_index(
        found.file, cache_folder(), partial(on_progress, "indexing debug information")
    )
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
