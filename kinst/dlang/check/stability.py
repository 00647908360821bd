"""#pragma D attributes, binding and depends_on, and the stability that names and clauses have
(Dynamic Tracing Guide, "Stability", "Versioning"; libdtrace's dt_open.c for the names, dt_pragma.c
for the errors).

The stability of a clause is that of its least stable name.

Tested by tests/d/stability.cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kinst.core.errors import DError, KinstError, Span
from kinst.core.stability import PRIVATE, STABLE, Attributes, attributes, least
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


def given(program: tree.ProgramNode) -> dict[str, Attributes]:
    """Return the stability of the program's own names: that of #pragma D attributes or, for an
    inline, of the least stable name in its expression."""
    stability: dict[str, Attributes] = {}
    for item in program.items:
        if isinstance(item, tree.InlineNode):
            stability.setdefault(item.name, of_names((item.value,), STABLE, program, stability))
        elif isinstance(item, tree.PragmaNode) and item.kind == "attributes":
            stability[item.words[1]] = attributes(item.words[0])
    return stability


def _types(program: tree.ProgramNode) -> set[str]:
    """Return the types that a program declares: names, and tags after struct, union or enum."""
    types: set[str] = set()
    for item in program.items:
        if isinstance(item, tree.TypeDeclarationNode):
            types.add(item.name)
            types.add(" ".join(item.type.words))
            if item.type.body is not None and item.type.body.tag:
                types.add(" ".join(item.type.words[:1]) + " " + item.type.body.tag)
    return types


def _of_type(name: tree.TypeNode, own: set[str]) -> Attributes:
    """Return the stability of a type: Private for the kernel's, Stable for all others."""
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
    """Return the least stability of the members of the program's translators to a type
    (dt_cook_xlator()). kinst's own translators are stable, like dtrace(1)'s."""
    members = [
        member.value
        for item in program.items
        if isinstance(item, tree.TranslatorNode) and item.type.words == name.words
        for member in item.members
    ]
    # Of a translation in a member's expression only the operand counts: its translator may be this
    # one.
    plain = tree.ProgramNode(
        tuple(i for i in program.items if not isinstance(i, tree.TranslatorNode))
    )
    return of_names(tuple(members), STABLE, plain, own)


def named(
    nodes: object, args: Attributes, program: tree.ProgramNode, own: Mapping[str, Attributes]
) -> Iterator[tuple[str, Span, Attributes]]:
    """Yield the names in a part of the tree, with their spans and their stability.

    Args:
        args: the stability of the probe's arguments.
        own: the stability of the program's own names (given()).
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
            if name == "args":
                stability = args
            elif name == "locals" or "`" in name:
                stability = PRIVATE
            else:
                stability = own.get(name, _NAMES.get(name, STABLE))
            yield name, node.span, stability


def of_names(
    nodes: object, args: Attributes, program: tree.ProgramNode, own: Mapping[str, Attributes]
) -> Attributes:
    """Return the least stability of all names in a part of the tree; arguments as for named()."""
    return least([STABLE, *(found for _, _, found in named(nodes, args, program, own))])


def check_minimum(
    clause: tree.ClauseNode, args: Attributes, program: tree.ProgramNode, minimum: Attributes
) -> None:
    """Raise DError D_ATTR_MIN at the clause's first name that is less stable than `minimum`, the
    value of option amin."""
    own = given(program)
    for name, span, stability in named((clause.predicate, clause.statements), args, program, own):
        if not stability.reaches(minimum):
            message = f"attributes for {name} ({stability}) are less than predefined minimum"
            raise DError(message, span, "D_ATTR_MIN", f"-x amin={minimum}")


def of_clause(
    clause: tree.ClauseNode,
    args: Attributes,
    program: tree.ProgramNode,
    own: Mapping[str, Attributes],
) -> Attributes:
    """Return the least stability of the names in a clause; arguments as for of_names()."""
    return of_names((clause.predicate, clause.statements), args, program, own)


_PROBE_PARTS = words("provider module function name args")


def check_pragma(node: tree.PragmaNode, scope: Scope) -> None:
    """Check that the subject of a pragma exists, once all of the program's names are known.

    Raises DError D_PRAGMA_DEPEND, D_PRAGMA_SCOPE, D_PRAGMA_UNUSED, D_PRAGMA_INVAL.
    """
    if node.kind == "depends_on":
        _check_dependency(node, scope)
        return
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


def _check_dependency(node: tree.PragmaNode, scope: Scope) -> None:
    kind, name = node.words[:2]
    if kind == "library":
        message = "main program may not explicitly depend on a library"
        raise DError(message, node.span, "D_PRAGMA_DEPEND")
    candidates = (
        sorted(scope.environment.providers) if kind == "provider" else _typed_modules(node, scope)
    )
    if name not in candidates:
        message = f"program requires {kind} {name}"
        hint = (
            f"there are {', '.join(candidates[:8])}{', ...' * (len(candidates) > 8)}"
            if candidates
            else ""
        )
        raise DError(message, node.span, "D_PRAGMA_DEPEND", hint)


def _typed_modules(node: tree.PragmaNode, scope: Scope) -> list[str]:
    """The names of the modules that have types."""
    try:
        return list(scope.types.source.modules()) if scope.types.source is not None else []
    except KinstError as error:
        raise DError(error.message, node.span, "D_PRAGMA_DEPEND", error.hint) from error
