"""The checker's state: the environment of a program, and the names and types declared so far.

Tested by tests/dlang/check/test_variables.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches

from kinst.core.dataclass import dataclass
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.dtypes import DType, StructType
from kinst.core.errors import DError, Span
from kinst.core.probe import ProbeInterface, ProbePattern
from kinst.core.types import TypeSource
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.types.program_types import Types
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.other_tracers import variable_hint
from kinst.dlang.vocabulary.subroutines import Prototype

_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]+\Z")


@dataclass(frozen=True, slots=True)
class Translator:
    """A declared translator."""

    node: tree.TranslatorNode
    source: DType  # the type of its parameter
    made: StructType  # the structure whose members it defines
    lazily: bool = False  # its expressions are checked only when they are used


@dataclass(frozen=True, slots=True)
class Translation(typed.Expr):
    """xlate < type > (source). Only its members are values; a checked program contains no
    Translation."""

    translator: Translator
    source: typed.Expr  # of the translator's parameter type


# The type of expressions.check(), which is passed to the modules that expressions.py imports.
Check = Callable[[tree.ExprNode, "Scope"], typed.Expr]


def _no_hint(name: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the checker needs to know apart from the program."""

    # Index in regs[] by name; a name such as R_RAX is a constant in D.
    registers: Mapping[str, int] = field(default_factory=dict)
    # Bytes of a string without a bound of its own: option strsize.
    strsize: int = 256
    # Types of the traced kernel, None without one.
    types: TypeSource | None = None
    # Frames of stack(), ustack() and jstack() without a number.
    stackframes: int = 20
    ustackframes: int = 100
    jstackframes: int = 50
    # Types of args[] for a probe description; None if it means more than one probe.
    arguments: Callable[[ProbePattern], Sequence[DType] | None] | None = None
    # A hint for a register that is misspelt or belongs to another instruction set; "" for any other
    # name.
    register_hint: Callable[[str], str] = _no_hint
    # The interface of each provider's probes, by its name.
    providers: Mapping[str, ProbeInterface] = field(default_factory=dict)
    # D's subroutines by name.
    subroutines: Mapping[str, Prototype] = field(default_factory=dict)
    # What aggregations measure, by name, if the program as written tells more than this one.
    measures: Mapping[str, typed.Measure] = field(default_factory=dict)
    # Returns the traced system's part of D; called when a program first needs it.
    dialect: Callable[[], Dialect] = lambda: UNKNOWN


class Scope:
    """The names declared so far, in one check of one program.

    Attributes:
        patterns: the probe descriptions of the current clause.
        aggregations: the aggregations that some clause assigns.
        variables: by typed.Variable.name.
        externs: the types of extern declarations, by name.
        inlines: by name.
        declared_providers: the probes of provider declarations, each with the types of its
            arguments, and of its translated arguments (None if they are not translated).
        bound: the arguments of the inline, or the parameter of the translator, that is being
            expanded.
        keys: the types of each associative array's keys; in a second check, those that the whole
            program needs.
    """

    def __init__(
        self, environment: Environment, keys: dict[str, tuple[DType, ...]] | None = None
    ) -> None:
        self.environment = environment
        self.types = Types(environment.types, environment.strsize, self._structure)
        self.patterns: tuple[ProbePattern, ...] = ()
        self.aggregations: frozenset[str] = frozenset()
        self.variables: dict[str, typed.Variable] = {}
        self.externs: dict[str, DType] = {}
        self.inlines: dict[str, tree.InlineNode] = {}
        self.translators: list[Translator] = []
        self.declared_providers: dict[
            str, Mapping[str, tuple[Sequence[DType], Sequence[DType] | None]]
        ] = {}
        self.bound: dict[str, typed.Expr] = {}
        self.expansions = 0
        self.keys: dict[str, tuple[DType, ...]] = keys or {}
        self._being_assigned: list[str] = []

    def _structure(self, tag: str) -> StructType | None:
        """Return the system's structure of this tag, one of the Guide's, or None."""
        return self.environment.dialect().structures.get(tag)

    def resolve(self, name: tree.TypeNode) -> DType:
        """Return the type that a TypeNode means. Raises DError D_DECL_*, D_UNKNOWN."""
        return self.types.resolve(name)

    def snapshot(self) -> dict[str, typed.Variable]:
        return dict(self.variables)

    def restore(self, variables: dict[str, typed.Variable]) -> None:
        self.variables = variables
        self._being_assigned = []

    def create(
        self,
        name: str,
        type_: DType,
        scope: str = "global",
        keys: tuple[DType, ...] = (),
        length: int = 0,
    ) -> typed.Variable:
        variable = typed.Variable(name, type_, len(self.variables), scope, keys, length)
        self.variables[name] = variable
        return variable

    def begin_assignment(self, name: str) -> None:
        """Begin the first assignment to a name, which has no type until it ends."""
        self._being_assigned.append(name)

    def end_assignment(self) -> None:
        self._being_assigned.pop()

    def kind_of(self, name: str) -> str | None:
        """Return the kind of a built-in name or subroutine, in dtrace(1)'s words; None for a free
        name."""
        return "function" if name in self.environment.subroutines else builtins.kind_of(name)

    def refuse_builtin(self, name: str, span: Span, role: str) -> None:
        """Raise DError D_IDENT_BADREF if a name is a built-in array or function; `role` is how the
        program uses it."""
        kind = self.kind_of(name)
        if kind is not None and kind != "scalar":
            message = f"{kind} '{name}' may not be referenced as {role}"
            raise DError(message, span, "D_IDENT_BADREF")

    def unknown(self, name: str, span: Span) -> DError:
        """Return the error for an undefined name."""
        if name in self._being_assigned:
            return DError(
                f"{name} has not yet been declared or assigned", span, "D_VAR_UNDEF",
                f"int64_t {name}; before the clauses declares it",
            )  # fmt: skip
        dialect = self.environment.dialect()
        if name in builtins.VARIABLES_NOT_YET and name in dialect.absent:
            message = f"{name} is not available: {dialect.absent[name]}"
            return DError(message, span, "D_IDENT_UNDEF")
        if builtins.is_not_yet(name):
            return DError(f"{name} is not supported yet", span, "D_UNKNOWN")
        names = [
            *self.variables, *self.inlines, *builtins.VARIABLES, *self.environment.registers,
        ]  # fmt: skip
        near = get_close_matches(name[:80], names, 1)
        spelt = f"did you mean {near[0]}?" if near else "variables begin with an assignment"
        if not dialect.system and _CONSTANT.match(name):
            spelt = "a constant of a system needs one that kinst knows"
        hint = variable_hint(name) or self.environment.register_hint(name) or spelt
        message = f"failed to resolve {name[:80]}: Unknown variable name"
        return DError(message, span, "D_IDENT_UNDEF", hint)
