"""State of the checker: the environment of a program, and the names and types that the program has
declared so far.

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
    """A declared translator of D."""

    node: tree.TranslatorNode
    source: DType  # type of the translator's parameter
    target: StructType  # the structure whose members the translator defines
    lazily: bool = False  # the translator's expressions are checked only when they are used


@dataclass(frozen=True, slots=True)
class Translation(typed.Expr):
    """The expression xlate < type > (source), for use within the checker only.

    The checker replaces each member of the translation by the translator's expression for this
    member, so no Translation is left in the typed tree of a program without errors.
    """

    translator: Translator
    source: typed.Expr  # the translated expression, converted to the translator's parameter type


# The type of expressions.check(), which is passed to the modules that expressions.py imports.
Check = Callable[[tree.ExprNode, "Scope"], typed.Expr]


def _no_hint(name: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the checker knows about the traced kernel and the options, apart from the program."""

    # Index in regs[] by name; a name such as R_RAX is a constant in D.
    registers: Mapping[str, int] = field(default_factory=dict)
    # Bytes of a string whose type has no size of its own: option strsize.
    strsize: int = 256
    # Types of the traced kernel; None if there is no kernel.
    types: TypeSource | None = None
    # Number of frames of stack(), ustack() and jstack() if the program gives none.
    stackframes: int = 20
    ustackframes: int = 100
    jstackframes: int = 50
    # Returns the types of args[] for a probe description; None if it means more than one probe.
    arguments: Callable[[ProbePattern], Sequence[DType] | None] | None = None
    # Returns a hint for a register name that is misspelt or belongs to another instruction set, and
    # "" for any other name.
    register_hint: Callable[[str], str] = _no_hint
    # The interface of each provider's probes, by the provider's name.
    providers: Mapping[str, ProbeInterface] = field(default_factory=dict)
    # D's subroutines by name.
    subroutines: Mapping[str, Prototype] = field(default_factory=dict)
    # Measures of aggregations, by name, in the program as the user wrote it; empty if the checked
    # program is this program.
    measures: Mapping[str, typed.Measure] = field(default_factory=dict)
    # Returns the traced system's part of D; called when a program first needs it.
    dialect: Callable[[], Dialect] = lambda: UNKNOWN
    # Why a register cannot be assigned, by its index in regs[]; the other registers can.
    fixed_registers: Mapping[int, str] = field(default_factory=dict)


class Scope:
    """The names that are declared so far in one check of one program.

    Attributes:
        patterns: the probe descriptions of the current clause.
        aggregations: names of the aggregations that some clause assigns.
        variables: the D variables, by typed.Variable.name.
        externs: types of the extern declarations, by name.
        inlines: the inlines, by name.
        declared_providers: the probes of provider declarations, by provider and probe: (types of
            the arguments, types of the translated arguments or None if they are not translated).
        bound: the argument of each parameter, by the parameter's name, while an inline or a
            translator is being expanded.
        keys: types of each associative array's keys, by the array's name. If a later assignment
            needs wider types, the program is checked again, with a Scope that begins with the wider
            types.
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
        """Return the structure with this tag from the system's dialect, which defines structures
        of the Dynamic Tracing Guide; None if the dialect defines no such structure.
        """
        return self.environment.dialect().structures.get(tag)

    def resolve(self, name: tree.TypeNode) -> DType:
        """Return the type that a type's syntax tree means. Raises DError D_DECL_*, D_UNKNOWN."""
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
        """Begin to check the first assignment to a variable, until end_assignment(). In between,
        unknown() reports a use of the variable as a use before its assignment.
        """
        self._being_assigned.append(name)

    def end_assignment(self) -> None:
        self._being_assigned.pop()

    def kind_of(self, name: str) -> str | None:
        """Return the kind of a built-in name or subroutine, in dtrace(1)'s words; None if the name
        is neither.
        """
        return "function" if name in self.environment.subroutines else builtins.kind_of(name)

    def refuse_builtin(self, name: str, span: Span, role: str, meant: str = "") -> None:
        """Raise DError D_IDENT_BADREF if a name is a built-in array or function.

        Args:
            role: how the program uses the name, in the words of the message.
            meant: the hint for a function; "" to propose another name for a variable.
        """
        kind = self.kind_of(name)
        if kind is not None and kind != "scalar":
            message = f"{kind} '{name}' may not be referenced as {role}"
            hint = self._element_hint(name)
            if kind != "associative array":
                hint = meant or f"a variable may be called {name}_"
            raise DError(message, span, "D_IDENT_BADREF", hint)

    def _element_hint(self, name: str) -> str:
        """Return the hint that names an element of a built-in array; "" for other arrays."""
        if name == "args":
            return "args[0] is the first argument"
        register = next(iter(self.environment.registers), "")
        return f"{name}[{register}] is one register" if name == "regs" and register else ""

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
