"""The syntax tree: D as it is written, before names and types are resolved.

Parentheses are not kept; unparse.py puts them back where precedence needs them. Macros have been
replaced. No expression is nested deeper than type_parser.MAX_DEPTH.

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kinst.core.dtypes import DType
from kinst.core.errors import DError, Span
from kinst.core.probe import Crossing, ProbePattern
from kinst.dlang.syntax.source import IntLiteral


@dataclass(frozen=True, slots=True)
class Expr:
    span: Span


@dataclass(frozen=True, slots=True)
class Integer(Expr):
    """text: the constant as written (0x10, 'a', 5u)."""

    literal: IntLiteral
    text: str


@dataclass(frozen=True, slots=True)
class String(Expr):
    value: bytes


@dataclass(frozen=True, slots=True)
class Name(Expr):
    name: str


@dataclass(frozen=True, slots=True)
class Aggregation(Expr):
    """@name, or @ (name "")."""

    name: str


@dataclass(frozen=True, slots=True)
class Index(Expr):
    """base[arguments]: a pointer, regs, an aggregation or an associative array."""

    base: Expr
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Call(Expr):
    function: Expr
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Member(Expr):
    """base.name or base->name (op "." or "->"); also self->name and this->name."""

    base: Expr
    op: str
    name: str


@dataclass(frozen=True, slots=True)
class Prefix(Expr):
    """op: * & - + ~ ! ++ -- sizeof stringof."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Postfix(Expr):
    """op: ++ --."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Infix(Expr):
    """Every binary operator of C, ^^ and the comma."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Assignment(Expr):
    """op: = += -= and so on."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Ternary(Expr):
    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class PointerTo:
    """A * of a declarator, outside of the innermost ones."""


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """[count]; None: []."""

    count: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionOf:
    """(parameters)."""

    parameters: tuple[TypeName, ...]
    variadic: bool


Derivation = PointerTo | ArrayOf | FunctionOf


@dataclass(frozen=True, slots=True)
class Field:
    """A member as declared; name "" for an anonymous structure or padding bits."""

    type: TypeName
    name: str
    width: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class StructBody:
    """kind: struct or union."""

    kind: str
    tag: str
    fields: tuple[Field, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Enumerator:
    name: str
    value: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class EnumBody:
    tag: str
    enumerators: tuple[Enumerator, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class TypeName:
    """words: unsigned long, uint64_t, struct file... stars: levels of pointer to that. derived:
    what is then made of it, in this order: for int (*)[4] an array, then a pointer. body: that of a
    structure or enumeration defined here."""

    words: tuple[str, ...]
    stars: int
    span: Span
    derived: tuple[Derivation, ...] = ()
    body: StructBody | EnumBody | None = None


@dataclass(frozen=True, slots=True)
class CastTo(Expr):
    type: TypeName
    operand: Expr


@dataclass(frozen=True, slots=True)
class Typed(Expr):
    """operand as a value of a type, or (pointer) as a pointer to one. kinst makes these for local
    variables, whose types need not have names."""

    type: DType
    operand: Expr
    pointer: bool


@dataclass(frozen=True, slots=True)
class SizeofType(Expr):
    type: TypeName


@dataclass(frozen=True, slots=True)
class OffsetOf(Expr):
    """offsetof(type, member); member may be a path: a.b."""

    type: TypeName
    member: str


@dataclass(frozen=True, slots=True)
class Xlate(Expr):
    """xlate < type > (operand)."""

    type: TypeName
    operand: Expr


@dataclass(frozen=True, slots=True)
class Item:
    span: Span


@dataclass(frozen=True, slots=True)
class Option(Item):
    """#pragma D option name=value; value "" when there is none."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Pragma(Item):
    """#pragma D attributes, binding or depends_on (kind); words: the rest, strings in quotes."""

    kind: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Declaration(Item):
    """One variable: type name. scope: "", "self" or "this", or "extern" for what is only declared:
    a function, or anything behind that word.

    keys: of an associative array; None if it has none. length: of a scalar array.
    """

    type: TypeName
    name: str
    scope: str = ""
    keys: tuple[TypeName, ...] | None = None
    length: Expr | None = None


@dataclass(frozen=True, slots=True)
class TypeDeclaration(Item):
    """struct tag { ... };  or, with a name, typedef type name;"""

    type: TypeName
    name: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of an inline array: type name."""

    type: TypeName
    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Inline(Item):
    """inline type name = value;  or  inline type name[type key, ...] = value;"""

    type: TypeName
    name: str
    parameters: tuple[Parameter, ...] | None
    value: Expr


@dataclass(frozen=True, slots=True)
class MemberValue:
    """name = value; in a translator."""

    name: str
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Translator(Item):
    """translator type < source parameter > { members };"""

    type: TypeName
    source: TypeName
    parameter: str
    members: tuple[MemberValue, ...]


@dataclass(frozen=True, slots=True)
class Prototype:
    """(parameters) of a probe; the names may be "".  variadic: more may follow."""

    parameters: tuple[Parameter, ...]
    variadic: bool


@dataclass(frozen=True, slots=True)
class ProbeDeclaration:
    """probe name(inputs); or, with outputs, probe name(inputs) : (outputs);"""

    name: str
    inputs: Prototype
    outputs: Prototype | None
    span: Span


@dataclass(frozen=True, slots=True)
class Provider(Item):
    """provider name { probes };"""

    name: str
    probes: tuple[ProbeDeclaration, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """pattern: the parts, with macros replaced and filled up from the right; or an id.

    inlined: the inline function if this is an instruction of one of its copies (kinst.sugar);
    crossing: its role in that copy.
    """

    pattern: ProbePattern
    span: Span
    inlined: str = ""
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class If:
    """if (condition) then else otherwise; only within the parser, which splits the clause (see
    program_parser.py)."""

    span: Span
    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


Statement = Expr | If


@dataclass(frozen=True, slots=True)
class Clause(Item):
    """statements: () means the default action."""

    descriptions: tuple[Description, ...]
    predicate: Expr | None
    statements: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """items: in source order (a control line within a clause comes before the clause). empty: where
    a text ends that has no clause and should have one, else None; its declarations are checked
    first."""

    items: tuple[Item, ...] = field(default=())
    empty: Span | None = None

    @property
    def clauses(self) -> tuple[Clause, ...]:
        return tuple(i for i in self.items if isinstance(i, Clause))

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        return tuple(i for i in self.items if isinstance(i, Declaration))

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(i for i in self.items if isinstance(i, Option))


def empty(span: Span) -> DError:
    """The error for a text without a clause."""
    return DError("empty D program translation unit", span, "D_EMPTY")
