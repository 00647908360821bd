"""Parsed and checked program, the first value that the stages of a trace pass on.

Tested by tests/session/test_compile_once.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from kinst.codegen.analysis import string_table
from kinst.core.dataclass import dataclass
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.dlang.api import combine
from kinst.session.sizes import Sizes, sizes_of
from kinst.sugar.expand import has_sugar
from kinst.sugar.lines import has_lines
from kinst.sugar.locals import has_locals

if TYPE_CHECKING:
    from kinst.core.probe import ProbePattern, ProgramText
    from kinst.core.stability import Attributes
    from kinst.core.types import TypeSource
    from kinst.dlang import typed
    from kinst.dlang.syntax import tree
    from kinst.dlang.vocabulary.d_options import Options
    from kinst.patch.ways import PlantRules


@dataclass(frozen=True)
class Compiled:
    """Programs of a request, parsed and checked.

    Attributes:
        texts: each program as the user gave it, with the indexes of its clauses in `program`.
        programs: the syntax tree of each text, in the same order.
        program: all texts as one typed program.
        options: the D options.
        plant: the ways to plant that -x plant= allows.
        trampolines: bytes of scratch for trampolines and other code.
        types: the types of the kernel, with which the program was compiled.
        batch: seconds for which each batch of functions is traced, 0 without batches.
        only: "all" traces kinst's own processes in a guest as well; "command" traces only the
            command and its descendants; "" traces all processes except kinst's own.
    """

    texts: tuple[tuple[ProgramText, tuple[int, ...]], ...]
    programs: tuple[tree.ProgramNode, ...]
    program: typed.TypedProgram
    options: Options
    plant: PlantRules
    trampolines: int
    types: TypeSource | None = None
    batch: float = 0
    only: str = ""
    # The traced system's part of D.
    dialect: Callable[[], Dialect] = lambda: UNKNOWN

    @cached_property
    def tree(self) -> tree.ProgramNode:
        """Syntax tree of all programs joined into one."""
        return combine(self.programs)

    @property
    def wants_expansion(self) -> bool:
        """Whether the program uses inline functions, source lines or local variables.

        session/expand.py replaces these by means of the kernel's debug information.
        """
        return has_sugar(self.tree) or has_lines(self.tree) or has_locals(self.tree)

    @property
    def patterns(self) -> list[ProbePattern]:
        return [p for clause in self.program.clauses for p in clause.patterns]

    @cached_property
    def sizes(self) -> Sizes:
        """Bytes of scratch that the program needs independently of its probes."""
        return sizes_of(self.options, self.program)

    @cached_property
    def strings(self) -> bytes:
        """Bytes of the program's string constants, as they lie in the strings area of scratch."""
        return string_table(self.program)[1]


@dataclass(frozen=True, slots=True)
class ProbeStability:
    """Stability attributes of a probe.

    Attributes:
        description: attributes of the probe's name.
        arguments: attributes of its args[].
        types: types of its args[], as C spells them, with the arguments' names in parentheses if
            the kernel's source names them.
    """

    description: Attributes
    arguments: Attributes
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramStability:
    """Stability attributes of one program of a request.

    Attributes:
        text: the program as the user gave it.
        descriptions: attributes of its least stable probe description.
        statements: attributes of its least stable statement.
    """

    text: ProgramText
    descriptions: Attributes
    statements: Attributes
