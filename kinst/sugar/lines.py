"""kinst::F:@LINE, in the syntax tree, becomes the instructions of that source line in F.

kinst::F:@LINE means a line of the file that F is declared in, kinst::F:@FILE@LINE one of another
file, from which something was inlined: FILE is its path or the last parts of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kinst.core.errors import DError, KinstError
from kinst.core.probe import ProbePattern
from kinst.dlang.syntax import tree

PROVIDER = "kinst"
_NAME = re.compile(r"@(?:(.+)@)?([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class Line:
    """A source line in some functions.  file: "" for the functions' own."""

    module: str
    function: str
    file: str
    number: int


def line_of(pattern: ProbePattern) -> Line | None:
    """What a description of that form means, or None for any other."""
    match = _NAME.match(pattern.name)
    if pattern.provider != PROVIDER or not pattern.function or match is None:
        return None
    return Line(pattern.module, pattern.function, match[1] or "", int(match[2]))


def has_lines(program: tree.Program) -> bool:
    return any(line_of(d.pattern) for c in program.clauses for d in c.descriptions)


def expand_lines(
    program: tree.Program, find: Callable[[Line], Sequence[ProbePattern]]
) -> tree.Program:
    """The program with every line replaced by what find() says are its instructions.

    Raises DError at the description for which find() raises KinstError.
    """

    def one(description: tree.Description) -> list[tree.Description]:
        line = line_of(description.pattern)
        if line is None:
            return [description]
        try:
            return [tree.Description(p, description.span) for p in find(line)]
        except KinstError as error:
            span = description.span
            raise DError(error.message, span, "D_PDESC_INVAL", error.hint) from error

    items: list[tree.Item] = []
    for item in program.items:
        if isinstance(item, tree.Clause):
            item = replace(
                item, descriptions=tuple(d for old in item.descriptions for d in one(old))
            )
        items.append(item)
    return tree.Program(tuple(items))
