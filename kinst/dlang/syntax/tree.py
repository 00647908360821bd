"""The syntax tree: D as the program writes it, before names and types are resolved.

The name of every class here ends in Node (ClauseNode, AggregationNode). The checker converts this
tree to the typed tree (typed.py), whose classes have other names.

The tree has no parentheses; unparse.py adds those that precedence needs. Macros are already
replaced. No expression is nested deeper than type_parser.MAX_DEPTH.

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
    text: str  # the constant's text in the program: 0x10, 'a', 5u


@dataclass(frozen=True, slots=True)
class StringNode(ExprNode):
    value: bytes


@dataclass(frozen=True, slots=True)
class NameNode(ExprNode):
    name: str


@dataclass(frozen=True, slots=True)
class AggregationNode(ExprNode):
    """The name of an aggregation: @name."""

    name: str  # without the @; "" for the anonymous aggregation


@dataclass(frozen=True, slots=True)
class IndexNode(ExprNode):
    """The expression base[arguments], where base is a pointer, regs, an aggregation or an array."""

    base: ExprNode
    arguments: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class CallNode(ExprNode):
    function: ExprNode
    arguments: tuple[ExprNode, ...]


@dataclass(frozen=True, slots=True)
class MemberNode(ExprNode):
    """The expression base.name or base->name, including self->name and this->name."""

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
    """The expression left op right, where op is ^^, the comma, or a binary operator of C other than
    an assignment.
    """

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
    """A * that is not directly after a type's words, such as the one in int (*)[4]. TypeNode.stars
    counts the * that are directly after the words.
    """


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """The part [count] of a declarator."""

    count: ExprNode | None  # None if the declarator has []
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """The part (parameters) of a declarator."""

    parameters: tuple[TypeNode, ...]
    variadic: bool


Derivation = PointerNode | ArrayNode | FunctionNode


@dataclass(frozen=True, slots=True)
class FieldNode:
    """The declaration of a structure's member."""

    type: TypeNode
    name: str  # "" for an anonymous structure or for padding bits
    width: ExprNode | None  # number of bits of a bit-field; None for any other member
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
    """A type as a declaration or a cast writes it."""

    words: tuple[str, ...]  # unsigned long, uint64_t, struct file, ...
    stars: int  # number of * directly after these words
    span: Span
    # The rest of the declarator, innermost first: for int (*)[4] an array, then a pointer.
    derived: tuple[Derivation, ...] = ()
    body: StructBodyNode | EnumBodyNode | None = None  # the { ... } of a type that is defined here


@dataclass(frozen=True, slots=True)
class CastNode(ExprNode):
    type: TypeNode
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class TypedNode(ExprNode):
    """A local variable of the traced kernel, with its type from the debug information. A D program
    may have no name for this type, so the parser makes no such nodes; only kinst.sugar does.
    """

    type: DType
    operand: ExprNode  # the variable's value, or its address if `pointer` is set
    pointer: bool  # whether the node is a pointer to a value of the type


@dataclass(frozen=True, slots=True)
class SizeofTypeNode(ExprNode):
    type: TypeNode


@dataclass(frozen=True, slots=True)
class OffsetOfNode(ExprNode):
    """The expression offsetof(type, member)."""

    type: TypeNode
    member: str  # may be a path: a.b


@dataclass(frozen=True, slots=True)
class XlateNode(ExprNode):
    """The expression xlate < type > (operand)."""

    type: TypeNode
    operand: ExprNode


@dataclass(frozen=True, slots=True)
class ItemNode:
    span: Span


@dataclass(frozen=True, slots=True)
class OptionNode(ItemNode):
    """The line #pragma D option name=value."""

    name: str
    value: str  # "" if there is none


@dataclass(frozen=True, slots=True)
class PragmaNode(ItemNode):
    """A line #pragma D attributes, binding or depends_on."""

    kind: str  # attributes, binding or depends_on
    words: tuple[str, ...]  # the words after the kind; strings keep their quotes


@dataclass(frozen=True, slots=True)
class DeclarationNode(ItemNode):
    """The declaration of one variable. The declaration of a function, or of an extern name, has
    this class too, but makes no variable.
    """

    type: TypeNode
    name: str
    # "" (global), "self" or "this"; "extern" for a function and for any name declared extern, which
    # make no variable.
    scope: str = ""
    keys: tuple[TypeNode, ...] | None = None  # key types of an associative array
    length: ExprNode | None = None  # number of elements of a scalar array


@dataclass(frozen=True, slots=True)
class TypeDeclarationNode(ItemNode):
    """The declaration `struct tag { ... };` (union or enum as well) or, with a name, `typedef type
    name;`.
    """

    type: TypeNode
    name: str = ""


@dataclass(frozen=True, slots=True)
class ParameterNode:
    """A parameter, written `type name`, of an inline or of a probe."""

    type: TypeNode
    name: str
    span: Span
    # Of an argument of a library's probe, written `type = value`; else None.
    value: ExprNode | None = None


@dataclass(frozen=True, slots=True)
class InlineNode(ItemNode):
    """The declaration `inline type name = value;` or `inline type name[type key, ...] = value;`."""

    type: TypeNode
    name: str
    parameters: tuple[ParameterNode, ...] | None
    value: ExprNode


@dataclass(frozen=True, slots=True)
class MemberValueNode:
    """The line `name = value;` of a translator, which defines one member."""

    name: str
    value: ExprNode
    span: Span


@dataclass(frozen=True, slots=True)
class TranslatorNode(ItemNode):
    """The declaration `translator type < source parameter > { members };`."""

    type: TypeNode
    source: TypeNode
    parameter: str
    members: tuple[MemberValueNode, ...]


@dataclass(frozen=True, slots=True)
class PrototypeNode:
    """The (parameters) of a probe in a provider declaration. A parameter's name may be ""."""

    parameters: tuple[ParameterNode, ...]
    variadic: bool  # whether the parameters end in ...


@dataclass(frozen=True, slots=True)
class ProbeDeclarationNode:
    """The line `probe name(inputs);` or `probe name(inputs) : (outputs);` of a provider
    declaration. In a D library, `= descriptions /predicate/` or `= refuse("reason")` follows.
    """

    name: str
    inputs: PrototypeNode
    outputs: PrototypeNode | None
    span: Span
    # The probes at which a library's probe fires.
    descriptions: tuple[DescriptionNode, ...] = ()
    # The library's probe fires only if this expression is true; None if it always fires.
    predicate: ExprNode | None = None
    # Why the system has no such probe; "" if it has.
    refusal: str = ""

    @property
    def is_over_others(self) -> bool:
        """Whether the declaration is as in a D library. Such a declaration says at which other
        probes this probe fires, or why the system does not have this probe.
        """
        return bool(self.descriptions or self.refusal)


@dataclass(frozen=True, slots=True)
class ProviderNode(ItemNode):
    """The declaration `provider name { probes };`."""

    name: str
    probes: tuple[ProbeDeclarationNode, ...]


@dataclass(frozen=True, slots=True)
class DescriptionNode:
    """A probe description of a clause."""

    pattern: ProbePattern  # the description's parts, or a probe id
    span: Span
    # If the description is an instruction of an inlined copy (kinst.sugar): the name of the inline
    # function, and the instruction's role in that copy.
    inlined: str = ""
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class IfNode:
    """The statement if (condition) then else otherwise. No clause of a parsed program has an
    IfNode: the parser splits the clause (program_parser.py).
    """

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
    """The syntax tree of a whole program."""

    # In source order; a control line within a clause comes before the clause.
    items: tuple[ItemNode, ...] = field(default=())
    # The end of the text if it has no clause but should have one. The checker reports this error
    # after it has checked the declarations.
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
    """Return the error for a program text without a clause."""
    return DError("empty D program translation unit", span, "D_EMPTY")
