"""Replaces source files and lines in the syntax tree by the instructions that they mean.

kinst::F:@LINE means a line of the file that F is declared in, kinst::F:@FILE@LINE one of another
file, from which something was inlined: FILE is its path or the last parts of it.  A line is its
first instruction, in each inlined copy; with a * after it, all of its instructions.

kinst::FILE: means every instruction of the functions that a file declares, and kinst::FILE@LINE
those of one of its lines, wherever the compiler has put them; kinst:::FILE@LINE and
kinst::FILE:@LINE are the same.  FILE is the name without folders here, for a slash begins a
predicate.

Tested by tests/session/test_source_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kinst.core.errors import DError, KinstError
from kinst.core.probe import ProbePattern
from kinst.dlang.syntax import tree
from kinst.providers import of_instructions

_NAME = re.compile(r"@(?:(.+)@)?([0-9]+)(\*?)\Z")
_FILE = re.compile(r"([\w.+-]+\.(?:c|h|S|rs|cc|cpp))(?:@([0-9]+)(\*?))?\Z")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A source line in the functions that match."""

    module: str
    function: str
    file: str  # "" for the function's own
    number: int
    every: bool = False  # all of its instructions, not the first of each copy


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The functions of a file, or one of its lines."""

    module: str
    name: str
    number: int = 0  # 0 for all lines
    every: bool = False  # see SourceLine


def file_of(pattern: ProbePattern) -> SourceFile | None:
    """Return the file or line of a file that a description names, or None."""
    module, function, name = pattern.module, pattern.function, pattern.name
    # Of three fields the first is the module's.
    if not pattern.provider and module == of_instructions() and not function:
        module = ""
    elif pattern.provider != of_instructions():
        return None
    match = _FILE.match(function or name)
    if match is None or (not function and not match[2]):
        return None
    line, every = match[2], bool(match[3])
    if function and name:
        named = _NAME.match(name)
        if named is None or named[1]:
            return None
        line, every = named[2], bool(named[3])
    return SourceFile(module, match[1], int(line or 0), every)


def line_of(pattern: ProbePattern) -> SourceLine | None:
    """Return the line of a function that a description names, or None."""
    match = _NAME.match(pattern.name)
    if file_of(pattern) is not None:
        return None
    if pattern.provider != of_instructions() or not pattern.function or match is None:
        return None
    file, number, every = match[1] or "", int(match[2]), bool(match[3])
    return SourceLine(pattern.module, pattern.function, file, number, every)


def has_lines(program: tree.ProgramNode) -> bool:
    patterns = [d.pattern for c in program.clauses for d in c.descriptions]
    return any(file_of(pattern) or line_of(pattern) for pattern in patterns)


def expand_lines(
    program: tree.ProgramNode,
    find: Callable[[SourceLine], Sequence[ProbePattern]],
    find_file: Callable[[SourceFile], Sequence[ProbePattern]],
) -> tree.ProgramNode:
    """Replace every line and file by the descriptions that find() and find_file() return.

    Raises DError at a description for which they raise KinstError.
    """

    def one(description: tree.DescriptionNode) -> list[tree.DescriptionNode]:
        line, file = line_of(description.pattern), file_of(description.pattern)
        if line is None and file is None:
            return [description]
        try:
            patterns = find(line) if line else find_file(file) if file else ()
            return [tree.DescriptionNode(p, description.span) for p in patterns]
        except KinstError as error:
            span = description.span
            raise DError(error.message, span, "D_PDESC_INVAL", error.hint) from error

    items: list[tree.ItemNode] = []
    for item in program.items:
        if isinstance(item, tree.ClauseNode):
            item = replace(
                item, descriptions=tuple(d for old in item.descriptions for d in one(old))
            )
        items.append(item)
    return tree.ProgramNode(tuple(items))
