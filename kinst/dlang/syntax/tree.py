"""The syntax tree: D as it is written, before names and types are resolved.

Every class here ends in Node (ClauseNode, AggregationNode). The checker turns this tree into the
typed tree (typed.py), whose classes have none of these names.

Parentheses are not kept; unparse.py adds those that precedence needs. Macros are already replaced.
No expression is nested deeper than type_parser.MAX_DEPTH.

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType
from kinst.core.errors import DError, Span
from kinst.core.probe import Crossing, ProbePattern
from kinst.dlang.syntax.source import IntLiteral


@dataclass(frozen=True, slots=True)
class ExprNode:
    span: Span


@dataclass(frozen=True, slots=True)
class IntegerNode(ExprNode):
    literal: IntLiteral
    text: str  # as written: 0x10, 'a', 5u


@dataclass(frozen=True, slots=True)
class StringNode(ExprNode):
    value: bytes


@dataclass(frozen=True, slots=True)
class NameNode(ExprNode):
    name: str


@dataclass(frozen=True, slots=True)
class AggregationNode(ExprNode):
    """An aggregation: @name."""

    name: str  # without the @; "" for the anonymous one


@dataclass(frozen=True, slots=True)
class IndexNode(ExprNode):
    """base[arguments], where base is a pointer, regs, an aggregation or an array."""

    base: ExprNode
    arguments: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class CallNode(ExprNode):
    function: ExprNode
    arguments: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class MemberNode(ExprNode):
    """base.name or base->name; also self->name and this->name."""

    base: ExprNode
    op: str  # "." or "->"
    name: str


@dataclass(frozen=True, slots=True)
class PrefixNode(ExprNode):
    op: str  # * & - + ~ ! ++ -- sizeof stringof
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class PostfixNode(ExprNode):
    op: str  # ++ or --
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class InfixNode(ExprNode):
    """A binary operator of C, ^^, or the comma."""

    op: str
    left: ExprNode
    right: ExprNode


@dataclass(frozen=True, slots=True)
class AssignmentNode(ExprNode):
    op: str  # = += -= *= and so on
    left: ExprNode
    right: ExprNode


@dataclass(frozen=True, slots=True)
class TernaryNode(ExprNode):
    condition: ExprNode
    then: ExprNode
    otherwise: ExprNode


@dataclass(frozen=True, slots=True)
class PointerNode:
    """A * of a declarator that is not one of TypeNode.stars."""


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """[count] of a declarator."""

    count: ExprNode | None  # None for []
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """(parameters) of a declarator."""

    parameters: tuple[TypeNode, ...]
    variadic: bool


Derivation = PointerNode | ArrayNode | FunctionNode


@dataclass(frozen=True, slots=True)
class FieldNode:
    """The declaration of a structure's member."""

    type: TypeNode
    name: str  # "" for an anonymous structure or for padding bits
    width: ExprNode | None  # of a bit-field
    span: Span


@dataclass(frozen=True, slots=True)
class StructBodyNode:
    kind: str  # struct or union
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
    """The name of a type, as in a declaration or a cast."""

    words: tuple[str, ...]  # unsigned long, uint64_t, struct file, ...
    stars: int  # levels of pointer to these words
    span: Span
    # The rest of the declarator, innermost first: for int (*)[4] an array, then a pointer.
    derived: tuple[Derivation, ...] = ()
    body: StructBodyNode | EnumBodyNode | None = None  # of a type that is defined here


@dataclass(frozen=True, slots=True)
class CastNode(ExprNode):
    type: TypeNode
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class TypedNode(ExprNode):
    """The operand as a value of a type. kinst makes these for local variables, whose types need not
    have a name in D."""

    type: DType
    operand: ExprNode
    pointer: bool  # the operand is a pointer to the type


@dataclass(frozen=True, slots=True)
class SizeofTypeNode(ExprNode):
    type: TypeNode


@dataclass(frozen=True, slots=True)
class OffsetOfNode(ExprNode):
    """offsetof(type, member)."""

    type: TypeNode
    member: str  # may be a path: a.b


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
    """#pragma D option name=value."""

    name: str
    value: str  # "" if there is none


@dataclass(frozen=True, slots=True)
class PragmaNode(ItemNode):
    """#pragma D attributes, binding or depends_on."""

    kind: str  # attributes, binding or depends_on
    words: tuple[str, ...]  # the rest; strings keep their quotes


@dataclass(frozen=True, slots=True)
class DeclarationNode(ItemNode):
    """The declaration of one variable."""

    type: TypeNode
    name: str
    # "", "self" or "this"; "extern" for a name that is only declared: a function, or any name after
    # that word.
    scope: str = ""
    keys: tuple[TypeNode, ...] | None = None  # of an associative array
    length: ExprNode | None = None  # of a scalar array


@dataclass(frozen=True, slots=True)
class TypeDeclarationNode(ItemNode):
    """struct tag { ... };  or, with a name, typedef type name;"""

    type: TypeNode
    name: str = ""


@dataclass(frozen=True, slots=True)
class ParameterNode:
    """A parameter of an inline array or of a probe: type name."""

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
    """(parameters) of a probe, whose names may be ""."""

    parameters: tuple[ParameterNode, ...]
    variadic: bool  # ends in ...


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
    """A probe description."""

    pattern: ProbePattern  # the parts, filled up from the right, or an id
    span: Span
    # The inline function, if this is an instruction of one of its inlined copies (kinst.sugar), and
    # the instruction's role in that copy.
    inlined: str = ""
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class IfNode:
    """if (condition) then else otherwise. Only the parser has these: it splits the clause
    (program_parser.py)."""

    span: Span
    condition: ExprNode
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


Statement = ExprNode | IfNode


@dataclass(frozen=True, slots=True)
class ClauseNode(ItemNode):
    descriptions: tuple[DescriptionNode, ...]
    predicate: ExprNode | None
    statements: tuple[ExprNode, ...]  # () for the default action


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """A whole program."""

    # In source order; a control line within a clause comes before the clause.
    items: tuple[ItemNode, ...] = field(default=())
    # The end of a text that has no clause and should have one. An error, once its declarations are
    # checked.
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
