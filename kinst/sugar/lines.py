"""Expansion of source files and lines in the syntax tree to descriptions of their instructions.

kinst::F:@LINE means a line of the file that F is declared in. kinst::F:@FILE@LINE means a line of
another file, whose code was inlined in F; FILE is the file's path or the last parts of the path.

A line means the first of its instructions in F. If the line was inlined in F, it also means the
first of its instructions in each inlined copy. A line with a * after it means all of its
instructions in F.

kinst::FILE: means every instruction of the functions that a file declares. kinst::FILE@LINE means
one line of the file, in every function that has code of the line. kinst:::FILE@LINE and
kinst::FILE:@LINE mean the same. In these forms FILE is a name without folders, since a slash begins
a predicate. The parser makes kinst::FILE@LINE of FILE:LINE, in which FILE may have folders.

Tested by tests/session/test_source_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.errors import DError, KinstError
from kinst.core.probe import ProbePattern
from kinst.dlang.syntax import tree
from kinst.providers import of_instructions

_NAME = re.compile(r"@(?:(.+)@)?([0-9]+)(\*?)\Z")
_FILE = re.compile(r"([\w.+/-]+\.(?:c|h|S|rs|cc|cpp))(?:@([0-9]+)(\*?))?\Z")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A source line in certain functions, as a description names it. The functions are those that
    the description matches."""

    module: str
    function: str
    file: str  # "" for the file that declares the function
    number: int
    every: bool = False  # whether all instructions of the line are meant, not only the first


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file that a description names: all functions that the file declares, or one of its
    lines.
    """

    module: str
    name: str
    number: int = 0  # number of the line; 0 for all lines
    every: bool = False  # whether all instructions of the line are meant, not only the first


def file_of(pattern: ProbePattern) -> SourceFile | None:
    """Return the source file that a description names, or the line of a file if the description
    means it in all functions. Return None for any other description.
    """
    module, function, name = pattern.module, pattern.function, pattern.name
    # The parser takes the first of three fields as the module.
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
    """Return the source line that a description names in certain functions; None for any other
    description.
    """
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
    """Replace every description of a source line or file by descriptions of instructions.

    Raises DError if find() or find_file() raises KinstError.

    Args:
        find: returns the descriptions of a line's instructions in certain functions.
        find_file: returns the descriptions of the instructions of a file, or of one of its lines,
            in all functions.
    """

    def one(description: tree.DescriptionNode) -> list[tree.DescriptionNode]:
        line, file = line_of(description.pattern), file_of(description.pattern)
        if line is None and file is None:
            return [description]
        try:
            patterns = find(line) if line else find_file(file) if file else ()
            library = description.pattern.library
            return [
                tree.DescriptionNode(replace(p, library=library), description.span)
                for p in patterns
            ]
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
