"""Stability of names and clauses, and the pragmas attributes and binding (Dynamic
Tracing Guide, "Stability", "Versioning"; libdtrace's dt_open.c for the names, dt_pragma.c for the
errors).

The stability of a clause is the stability of its least stable name.

Tested by tests/d/stability.cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kinst.core.errors import DError, Span
from kinst.core.stability import (
    PRIVATE,
    STABLE,
    Attributes,
    ProviderStability,
    attributes,
    least,
    of_description,
)
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary.type_names import LIBRARY_TYPES, STARTS_TYPE, STRUCTURES, words
from kinst.dlang.walk import walk

_EVOLVING = attributes("Evolving/Evolving/Common")

# Names of D that are not Stable/Stable/Common.
_NAMES = {
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


# The names of D that have the stability of a part of the probe (dt_setcontext()).
_OF_PROBE = {
    "args": "args",
    "probeprov": "provider",
    "probemod": "module",
    "probefunc": "function",
    "probename": "name",
}

# The stability of these names outside of a clause.
OUTSIDE = ProviderStability(STABLE, STABLE, STABLE, STABLE, STABLE)


def declared_stability(program: tree.ProgramNode) -> dict[str, Attributes]:
    """Return the stability of each name that the program declares. A name has the stability that
    #pragma D attributes gives it. An inline without such a pragma has the stability of the least
    stable name in its expression.
    """
    stability: dict[str, Attributes] = {}
    for item in program.items:
        if isinstance(item, tree.InlineNode):
            stability.setdefault(item.name, of_names((item.value,), OUTSIDE, program, stability))
        elif isinstance(item, tree.PragmaNode) and item.kind == "attributes":
            stability[item.words[1]] = attributes(item.words[0])
    return stability


def _types(program: tree.ProgramNode) -> set[str]:
    """Return the types that a program declares: the names of typedefs, and tags with struct, union
    or enum before them.
    """
    types: set[str] = set()
    for item in program.items:
        if isinstance(item, tree.TypeDeclarationNode):
            types.add(item.name)
            types.add(" ".join(item.type.words))
            if item.type.body is not None and item.type.body.tag:
                types.add(" ".join(item.type.words[:1]) + " " + item.type.body.tag)
    return types


def _of_type(name: tree.TypeNode, own: set[str]) -> Attributes:
    """Return the stability of a type: Private for a type of the kernel, Stable for any other type.

    Args:
        own: names of the types that the program declares.
    """
    words = [w for w in name.words if w not in ("const", "volatile", "restrict")]
    if name.body is not None or " ".join(words) in own or set(words) & LIBRARY_TYPES:
        return STABLE
    tagged = words[:1] in (["struct"], ["union"], ["enum"])
    is_guide_type = (
        words[1:] == ["in6_addr"] if tagged else {*words} <= STARTS_TYPE | STRUCTURES.keys()
    )
    return STABLE if is_guide_type else PRIVATE


def _of_translators(
    name: tree.TypeNode, program: tree.ProgramNode, own: Mapping[str, Attributes]
) -> Attributes:
    """Return the least stability of the names in the expressions of those translators that the
    program declares for a type (dt_cook_xlator()). kinst's own translators do not count: they are
    Stable, as dtrace(1)'s are.

    Args:
        own: the stability of the program's own names (declared_stability()).
    """
    members = [
        member.value
        for item in program.items
        if isinstance(item, tree.TranslatorNode) and item.type.words == name.words
        for member in item.members
    ]
    # If a member's expression contains a translation, only the translation's operand counts: its
    # translator may be the same translator.
    plain = tree.ProgramNode(
        tuple(i for i in program.items if not isinstance(i, tree.TranslatorNode))
    )
    return of_names(tuple(members), OUTSIDE, plain, own)


def stabilities_of(
    nodes: object,
    probe: ProviderStability,
    program: tree.ProgramNode,
    own: Mapping[str, Attributes],
) -> Iterator[tuple[str, Span, Attributes]]:
    """Yield (name, span, stability) of each name in a part of the syntax tree.

    Args:
        probe: the stability that the probe's provider declares.
        own: the stability of the program's own names (declared_stability()).
    """
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
            if name in _OF_PROBE:
                stability = getattr(probe, _OF_PROBE[name])
            elif name == "locals" or "`" in name:
                stability = PRIVATE
            else:
                stability = own.get(name, _NAMES.get(name, STABLE))
            yield name, node.span, stability


def of_names(
    nodes: object,
    probe: ProviderStability,
    program: tree.ProgramNode,
    own: Mapping[str, Attributes],
) -> Attributes:
    """Return the least stability of all names in a part of the syntax tree.

    Args:
        probe: the stability that the probe's provider declares.
        own: the stability of the program's own names (declared_stability()).
    """
    return least([STABLE, *(found for _, _, found in stabilities_of(nodes, probe, program, own))])


def check_minimum(
    clause: tree.ClauseNode,
    description: tree.DescriptionNode,
    probe: ProviderStability,
    program: tree.ProgramNode,
    minimum: Attributes,
) -> None:
    """Check that a probe description of a clause, and every name in the clause, is at least as
    stable as the option amin wants (dt_cook_clause()). Raises DError D_ATTR_MIN at the first
    description or name that is less stable.

    Args:
        description: the probe description.
        probe: the stability that the probe's provider declares.
        minimum: the value of the option amin.
    """
    own = declared_stability(program)
    described = of_description(description.pattern, probe)
    names = [(str(description.pattern), description.span, described)]
    names += stabilities_of((clause.predicate, clause.statements), probe, program, own)
    for name, span, stability in names:
        if not stability.reaches(minimum):
            message = f"attributes for {name} ({stability}) are less than predefined minimum"
            raise DError(message, span, "D_ATTR_MIN", f"-x amin={minimum}")


def of_clause(
    clause: tree.ClauseNode,
    probe: ProviderStability,
    program: tree.ProgramNode,
    own: Mapping[str, Attributes],
) -> Attributes:
    """Return the least stability of the names in a clause.

    Args:
        probe: the stability that the probe's provider declares.
        own: the stability of the program's own names (declared_stability()).
    """
    return of_names((clause.predicate, clause.statements), probe, program, own)


_PROBE_PARTS = words("provider module function name args")


def check_pragma(node: tree.PragmaNode, scope: Scope) -> None:
    """Check that the name or provider of a #pragma D attributes or #pragma D binding exists. Call
    this when all names of the program are declared.

    Raises DError D_PRAGMA_SCOPE, D_PRAGMA_UNUSED, D_PRAGMA_INVAL.
    """
    name = node.words[1]
    if node.kind == "attributes" and name == "provider":
        provider, part = node.words[2:4]
        if provider not in scope.environment.providers and provider not in scope.declared_providers:
            raise DError(f"unused #pragma {node.kind}", node.span, "D_PRAGMA_UNUSED")
        if part not in _PROBE_PARTS:
            message = f'invalid component "{part}" in attribute #pragma for provider {provider}'
            raise DError(message, node.span, "D_PRAGMA_INVAL")
        return
    if name in scope.variables or name in scope.inlines:
        return
    if scope.kind_of(name) is not None or name in scope.environment.registers:
        message = f"#pragma {node.kind} cannot modify entity defined outside program scope"
        raise DError(message, node.span, "D_PRAGMA_SCOPE")
    hint = f"{name} is no global variable or inline of the program"
    raise DError(f"unused #pragma {node.kind}", node.span, "D_PRAGMA_UNUSED", hint)
