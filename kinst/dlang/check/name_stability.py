"""The stability of a clause: that of the least stable name it uses (Dynamic Tracing Guide,
"Stability"; libdtrace's dt_open.c for the names).

Tested by tests/d/stability.cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kinst.core.errors import DError, Span
from kinst.core.stability import PRIVATE, STABLE, Attributes, attributes, least
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary.type_names import LIBRARY_TYPES, STARTS_TYPE, STRUCTURES
from kinst.dlang.walk import walk

_EVOLVING = attributes("Evolving/Evolving/Common")

_OWN = {
    "curthread": attributes("Stable/Private/Common"),
    **dict.fromkeys(
        (
            "getmajor", "getminor", "htonl", "htonll", "htons", "ntohl", "ntohll", "ntohs",
            "ddi_pathname", "mutex_owned", "mutex_owner", "mutex_type_adaptive", "mutex_type_spin",
            "rw_iswriter", "rw_read_held", "rw_write_held", "sx_isexclusive", "sx_shared_held",
            "sx_exclusive_held",
        ),
        _EVOLVING,
    ),
}  # fmt: skip


def given(program: tree.ProgramNode) -> dict[str, Attributes]:
    """The stability of the program's own names: from #pragma D attributes, or, for an inline, that
    of the least stable name in its expression."""
    found: dict[str, Attributes] = {}
    for item in program.items:
        if isinstance(item, tree.InlineNode):
            found.setdefault(item.name, of_names((item.value,), STABLE, program, found))
        elif isinstance(item, tree.PragmaNode) and item.kind == "attributes":
            found[item.words[1]] = attributes(item.words[0])
    return found


def _types(program: tree.ProgramNode) -> set[str]:
    """The types that the program declares: names, and tags with struct, union or enum before
    them."""
    found: set[str] = set()
    for item in program.items:
        if isinstance(item, tree.TypeDeclarationNode):
            found.add(item.name)
            found.add(" ".join(item.type.words))
            if item.type.body is not None and item.type.body.tag:
                found.add(" ".join(item.type.words[:1]) + " " + item.type.body.tag)
    return found


def _of_type(name: tree.TypeNode, own: set[str]) -> Attributes:
    """A type of the kernel is private; all others are D's own."""
    words = [w for w in name.words if w not in ("const", "volatile", "restrict")]
    if name.body is not None or " ".join(words) in own or set(words) & LIBRARY_TYPES:
        return STABLE
    tagged = words[:1] in (["struct"], ["union"], ["enum"])
    known = words[1:] == ["in6_addr"] if tagged else {*words} <= STARTS_TYPE | STRUCTURES.keys()
    return STABLE if known else PRIVATE


def _of_translators(
    name: tree.TypeNode, program: tree.ProgramNode, own: Mapping[str, Attributes]
) -> Attributes:
    """The least stability of the members of the program's translators to a type (dt_cook_xlator()).
    kinst's own translators are stable, as dtrace(1)'s are."""
    members = [
        member.value
        for item in program.items
        if isinstance(item, tree.TranslatorNode) and item.type.words == name.words
        for member in item.members
    ]
    # A translation in a member's own expression: its operand counts, its translator is not
    # looked into, which may be this one.
    plain = tree.ProgramNode(
        tuple(i for i in program.items if not isinstance(i, tree.TranslatorNode))
    )
    return of_names(tuple(members), STABLE, plain, own)


def named(
    nodes: object, args: Attributes, program: tree.ProgramNode, own: Mapping[str, Attributes]
) -> Iterator[tuple[str, Span, Attributes]]:
    """The names in a piece of the tree, their places and their stability. args: that of the probe's
    arguments. own: that of the program's names."""
    types = _types(program)
    for node in walk(nodes):
        if isinstance(node, tree.TypeNode):
            yield " ".join(node.words), node.span, _of_type(node, types)
        elif isinstance(node, tree.XlateNode):
            yield "translator", node.span, _of_translators(node.type, program, own)
        elif isinstance(node, tree.TypedNode):
            yield str(node.type), node.span, PRIVATE
        elif isinstance(node, tree.AggregationNode):
            yield f"@{node.name}", node.span, own.get(f"@{node.name}", STABLE)
        elif isinstance(node, tree.NameNode):
            name = node.name
            if name == "args":
                found = args
            elif name == "locals" or "`" in name:
                found = PRIVATE
            else:
                found = own.get(name, _OWN.get(name, STABLE))
            yield name, node.span, found


def of_names(
    nodes: object, args: Attributes, program: tree.ProgramNode, own: Mapping[str, Attributes]
) -> Attributes:
    """The least stability of all names in a piece of the tree; arguments as for named()."""
    return least([STABLE, *(found for _, _, found in named(nodes, args, program, own))])


def check_minimum(
    clause: tree.ClauseNode, args: Attributes, program: tree.ProgramNode, minimum: Attributes
) -> None:
    """Raise DError D_ATTR_MIN at the clause's first name that is less stable than option amin
    allows. args: as for named()."""
    own = given(program)
    for name, span, found in named((clause.predicate, clause.statements), args, program, own):
        if not found.reaches(minimum):
            message = f"attributes for {name} ({found}) are less than predefined minimum"
            raise DError(message, span, "D_ATTR_MIN", f"-x amin={minimum}")


def of_clause(
    clause: tree.ClauseNode,
    args: Attributes,
    program: tree.ProgramNode,
    own: Mapping[str, Attributes],
) -> Attributes:
    """The least stability of the names in a clause; arguments as for of_names()."""
    return of_names((clause.predicate, clause.statements), args, program, own)
