"""The syntax tree: D as it is written, before names and types are resolved.

Names: every class here ends in Node (ClauseNode, AggregationNode). The typed tree (typed.py), which
the checker makes of it, has none of these names.

Parentheses are not kept; unparse.py adds those that precedence needs. Macros have been
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
class ExprNode:
    span: Span


@dataclass(frozen=True, slots=True)
class IntegerNode(ExprNode):
    """text: the constant as written (0x10, 'a', 5u)."""

    literal: IntLiteral
    text: str


@dataclass(frozen=True, slots=True)
class StringNode(ExprNode):
    value: bytes


@dataclass(frozen=True, slots=True)
class NameNode(ExprNode):
    name: str


@dataclass(frozen=True, slots=True)
class AggregationNode(ExprNode):
    """@name, or @ (name "")."""

    name: str


@dataclass(frozen=True, slots=True)
class IndexNode(ExprNode):
    """base[arguments]: a pointer, regs, an aggregation or an associative array."""

    base: ExprNode
    arguments: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class CallNode(ExprNode):
    function: ExprNode
    arguments: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class MemberNode(ExprNode):
    """base.name or base->name (op "." or "->"); also self->name and this->name."""

    base: ExprNode
    op: str
    name: str


@dataclass(frozen=True, slots=True)
class PrefixNode(ExprNode):
    """op: * & - + ~ ! ++ -- sizeof stringof."""

    op: str
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class PostfixNode(ExprNode):
    """op: ++ --."""

    op: str
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class InfixNode(ExprNode):
    """Every binary operator of C, ^^ and the comma."""

    op: str
    left: ExprNode
    right: ExprNode


@dataclass(frozen=True, slots=True)
class AssignmentNode(ExprNode):
    """op: = += -= and so on."""

    op: str
    left: ExprNode
    right: ExprNode


@dataclass(frozen=True, slots=True)
class TernaryNode(ExprNode):
    condition: ExprNode
    then: ExprNode
    otherwise: ExprNode


@dataclass(frozen=True, slots=True)
class PointerNode:
    """A * of a declarator, outside of the innermost ones."""


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """[count]; None: []."""

    count: ExprNode | None
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """(parameters)."""

    parameters: tuple[TypeNode, ...]
    variadic: bool


Derivation = PointerNode | ArrayNode | FunctionNode


@dataclass(frozen=True, slots=True)
class FieldNode:
    """A member as declared; name "" for an anonymous structure or padding bits."""

    type: TypeNode
    name: str
    width: ExprNode | None
    span: Span


@dataclass(frozen=True, slots=True)
class StructBodyNode:
    """kind: struct or union."""

    kind: str
    tag: str
    fields: tuple[FieldNode, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class EnumeratorNode:
    name: str
    value: ExprNode | None
    span: Span


@dataclass(frozen=True, slots=True)
class EnumBodyNode:
    tag: str
    enumerators: tuple[EnumeratorNode, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class TypeNode:
    """words: unsigned long, uint64_t, struct file... stars: levels of pointer to that. derived:
    what is then made of it, in this order: for int (*)[4] an array, then a pointer. body: that of a
    structure or enumeration defined here."""

    words: tuple[str, ...]
    stars: int
    span: Span
    derived: tuple[Derivation, ...] = ()
    body: StructBodyNode | EnumBodyNode | None = None


@dataclass(frozen=True, slots=True)
class CastNode(ExprNode):
    type: TypeNode
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class TypedNode(ExprNode):
    """operand as a value of a type, or (pointer) as a pointer to one. kinst makes these for local
    variables, whose types need not have names."""

    type: DType
    operand: ExprNode
    pointer: bool


@dataclass(frozen=True, slots=True)
class SizeofTypeNode(ExprNode):
    type: TypeNode


@dataclass(frozen=True, slots=True)
class OffsetOfNode(ExprNode):
    """offsetof(type, member); member may be a path: a.b."""

    type: TypeNode
    member: str


@dataclass(frozen=True, slots=True)
class XlateNode(ExprNode):
    """xlate < type > (operand)."""

    type: TypeNode
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class ItemNode:
    span: Span


@dataclass(frozen=True, slots=True)
class OptionNode(ItemNode):
    """#pragma D option name=value; value "" when there is none."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class PragmaNode(ItemNode):
    """#pragma D attributes, binding or depends_on (kind); words: the rest, strings in quotes."""

    kind: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeclarationNode(ItemNode):
    """One variable: type name. scope: "", "self" or "this", or "extern" for what is only declared:
    a function, or anything behind that word.

    keys: of an associative array; None if it has none. length: of a scalar array.
    """

    type: TypeNode
    name: str
    scope: str = ""
    keys: tuple[TypeNode, ...] | None = None
    length: ExprNode | None = None


@dataclass(frozen=True, slots=True)
class TypeDeclarationNode(ItemNode):
    """struct tag { ... };  or, with a name, typedef type name;"""

    type: TypeNode
    name: str = ""


@dataclass(frozen=True, slots=True)
class ParameterNode:
    """Of an inline array: type name."""

    type: TypeNode
    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class InlineNode(ItemNode):
    """inline type name = value;  or  inline type name[type key, ...] = value;"""

    type: TypeNode
    name: str
    parameters: tuple[ParameterNode, ...] | None
    value: ExprNode


@dataclass(frozen=True, slots=True)
class MemberValueNode:
    """name = value; in a translator."""

    name: str
    value: ExprNode
    span: Span


@dataclass(frozen=True, slots=True)
class TranslatorNode(ItemNode):
    """translator type < source parameter > { members };"""

    type: TypeNode
    source: TypeNode
    parameter: str
    members: tuple[MemberValueNode, ...]


@dataclass(frozen=True, slots=True)
class PrototypeNode:
    """(parameters) of a probe; the names may be "".  variadic: more may follow."""

    parameters: tuple[ParameterNode, ...]
    variadic: bool


@dataclass(frozen=True, slots=True)
class ProbeDeclarationNode:
    """probe name(inputs); or, with outputs, probe name(inputs) : (outputs);"""

    name: str
    inputs: PrototypeNode
    outputs: PrototypeNode | None
    span: Span


@dataclass(frozen=True, slots=True)
class ProviderNode(ItemNode):
    """provider name { probes };"""

    name: str
    probes: tuple[ProbeDeclarationNode, ...]


@dataclass(frozen=True, slots=True)
class DescriptionNode:
    """pattern: the parts, with macros replaced and filled up from the right; or an id.

    inlined: the inline function if this is an instruction of one of its copies (kinst.sugar);
    crossing: its role in that copy.
    """

    pattern: ProbePattern
    span: Span
    inlined: str = ""
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class IfNode:
    """if (condition) then else otherwise; only within the parser, which splits the clause (see
    program_parser.py)."""

    span: Span
    condition: ExprNode
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


Statement = ExprNode | IfNode


@dataclass(frozen=True, slots=True)
class ClauseNode(ItemNode):
    """statements: () means the default action."""

    descriptions: tuple[DescriptionNode, ...]
    predicate: ExprNode | None
    statements: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """items: in source order (a control line within a clause comes before the clause). empty: where
    a text ends that has no clause and should have one, else None; its declarations are checked
    first."""

    items: tuple[ItemNode, ...] = field(default=())
    empty: Span | None = None

    @property
    def clauses(self) -> tuple[ClauseNode, ...]:
        return tuple(i for i in self.items if isinstance(i, ClauseNode))

    @property
    def declarations(self) -> tuple[DeclarationNode, ...]:
        return tuple(i for i in self.items if isinstance(i, DeclarationNode))

    @property
    def options(self) -> tuple[OptionNode, ...]:
        return tuple(i for i in self.items if isinstance(i, OptionNode))


def empty(span: Span) -> DError:
    """The error for a text without a clause."""
    return DError("empty D program translation unit", span, "D_EMPTY")
