"""Front end of the D language: parse_text() or parse_option() parses each program text (-n, -s,
...), and compile_programs() checks all texts together.  compile_text() does both for one text.

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
    """Parse one text of a program and return its syntax tree.

    Args:
        file: name of the text's file, for error messages.
        script: whether the text is a script, whose clauses need bodies; otherwise it is the text of
            -n.
        part: whether other texts follow, so that this text may consist of declarations alone.
        knows_type: tells whether a word is the name of a type that the kernel or a D library
            declares; None if there are no such types.

    Raises:
        DError: the text is not a D program. No other exception is raised.
    """
    return parse(text, file, macros, script=script, part=part, knows_type=knows_type)


def combine(programs: Sequence[tree.ProgramNode]) -> tree.ProgramNode:
    """Join the syntax trees of several texts into one program. Clauses keep their order, and all
    texts share global variables and aggregations.
    """
    items = tuple(item for program in programs for item in program.items)
    return tree.ProgramNode(items, next((p.empty for p in programs if p.empty is not None), None))


def compile_programs(
    programs: Sequence[tree.ProgramNode], environment: Environment
) -> typed.TypedProgram:
    """Check the syntax trees of a command line's texts (-n, -s, ...) as one program; return the
    program's typed tree. Raises DError.
    """
    return check(combine(programs), environment)


def type_names(
    types: TypeSource | None,
    dialect: Callable[[], Dialect],
    subroutines: Container[str],
) -> Callable[[str], bool]:
    """Return a function that tells the parser whether a word is the name of a type.

    A word is a type name if the kernel declares such a type, or a D library that every program may
    use declares it. The name of a D subroutine is never a type name.
    """
    of_kernel = kernel_type_names(types)

    def knows(name: str) -> bool:
        if name in subroutines:
            return False
        every = (one for one in dialect().libraries if not one.by_provider)
        of_library = any(name in declared_types(library) for library in every)
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
    """Parse and check one text; return its syntax tree and its typed tree. Raises DError, and no
    other exception, whatever the text.
    """
    environment = environment or Environment()
    knows = type_names(environment.types, environment.dialect, environment.subroutines)
    program = parse_text(text, file, macros, script=script, knows_type=knows)
    return program, check(program, environment)
