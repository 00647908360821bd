"""The front end: parse_text() or parse_option() for each -n, -s, ..., then compile_programs() for
all of them together. compile_text() does both for one text.

Tested by tests/dlang and tests/d.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from kinst.core.dialect import Dialect
from kinst.core.types import TypeSource
from kinst.dlang import typed
from kinst.dlang.check.checker import check
from kinst.dlang.check.library import declared_types
from kinst.dlang.check.scope import Environment
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import Macros
from kinst.dlang.syntax.program_parser import Level, parse, parse_option
from kinst.dlang.types.program_types import type_names as kernel_type_names

__all__ = [
    "Environment",
    "Level",
    "Macros",
    "combine",
    "compile_programs",
    "compile_text",
    "parse_option",
    "parse_text",
    "type_names",
]


def parse_text(
    text: str,
    file: str,
    macros: Macros | None = None,
    *,
    script: bool = False,
    part: bool = False,
    knows_type: Callable[[str], bool] | None = None,
) -> tree.ProgramNode:
    """Parse one text of a program.

    Args:
        script: the text is a script, whose clauses need bodies, and not that of -n.
        part: other texts follow, so that this one may have declarations only.
        knows_type: whether a word is the name of a type (type_names()).

    Raises:
        DError: for any text that is no D. Nothing else is raised.
    """
    return parse(text, file, macros, script=script, part=part, knows_type=knows_type)


def combine(programs: Sequence[tree.ProgramNode]) -> tree.ProgramNode:
    """Join programs: clauses in order, global variables and aggregations shared."""
    items = tuple(item for program in programs for item in program.items)
    return tree.ProgramNode(items, next((p.empty for p in programs if p.empty is not None), None))


def compile_programs(
    programs: Sequence[tree.ProgramNode], environment: Environment
) -> typed.TypedProgram:
    """Check all -n, -s, ... of a command line as one program. Raises DError."""
    return check(combine(programs), environment)


def type_names(
    types: TypeSource | None,
    dialect: Callable[[], Dialect],
    subroutines: Container[str],
) -> Callable[[str], bool]:
    """Return a function for the parser that tells whether a word is a type: the system's D
    libraries or the kernel have one of this name, and D has no subroutine of it."""
    of_kernel = kernel_type_names(types)

    def knows(name: str) -> bool:
        if name in subroutines:
            return False
        of_library = any(name in declared_types(library) for library in dialect().libraries)
        return of_library or (of_kernel is not None and of_kernel(name))

    return knows


def compile_text(
    text: str,
    file: str,
    macros: Macros | None = None,
    environment: Environment | None = None,
    *,
    script: bool = False,
) -> tuple[tree.ProgramNode, typed.TypedProgram]:
    """Parse and check one text. Raises DError, and nothing else, for any text."""
    environment = environment or Environment()
    knows = type_names(environment.types, environment.dialect, environment.subroutines)
    program = parse_text(text, file, macros, script=script, knows_type=knows)
    return program, check(program, environment)
