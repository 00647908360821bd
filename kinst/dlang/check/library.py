"""D libraries of the traced system: declares the parts that a program uses.

A library is parsed only if the program uses a name that it declares at the start of a line. Only
declarations that are used are checked, because kernels differ; for this reason a translator's
expression is checked only if its member is used. Members without a counterpart in the system are
declared and have no conversion (D_XLATE_NOCONV).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from kinst.core.dialect import Library
from kinst.core.errors import DError
from kinst.dlang.check.expansions import define_inline, define_translator
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.program_parser import parse
from kinst.dlang.walk import walk

# At the start of a line: typedefs, whose braces may contain braces; inlines and tags; enumerations.
_TYPEDEFS = re.compile(
    r"^typedef\b[^;{]*(?:\{(?:[^{}]|\{[^{}]*\})*\}[^;{]*?)?\b(\w+)\s*;", re.MULTILINE
)
_NAMED = re.compile(
    r"^inline\s[^=;\[]*?\b(\w+)\s*[\[=]|^(?:typedef\s+)?(?:struct|union|enum)\s+(\w+)\s*\{",
    re.MULTILINE,
)
_ENUMERATORS = re.compile(r"^(?:typedef\s+)?enum\b[^{;]*\{([^}]*)\}", re.MULTILINE)


@cache
def declared_types(library: Library) -> frozenset[str]:
    """Names of the typedefs of a library, without parsing it."""
    return frozenset(_TYPEDEFS.findall(library.text))


@cache
def declared_names(library: Library) -> frozenset[str]:
    """Names of the types, enumerators and inlines that a library declares, without parsing it."""
    names = {name for row in _NAMED.findall(library.text) for name in row if name}
    for body in _ENUMERATORS.findall(library.text):
        names.update(part.partition("=")[0].strip() for part in body.split(","))
    return declared_types(library) | names - {""}


@cache
def _items(library: Library) -> tuple[tree.ItemNode, ...]:
    """The library's declarations. Raises DError for a syntax error."""
    is_type = declared_types(library).__contains__
    program = parse(library.text, library.name, part=True, knows_type=is_type)
    return tuple(item for item in program.items if not isinstance(item, tree.ClauseNode))


@cache
def _required(library: Library) -> tuple[str, ...]:
    """The libraries that a library names in #pragma D depends_on."""
    return tuple(
        item.words[1]
        for item in _items(library)
        if isinstance(item, tree.PragmaNode) and item.words[0] == "library"
    )


def _defined(item: tree.ItemNode) -> set[str]:
    """The names that an item declares; for a translator, those of the type that it makes."""
    if isinstance(item, tree.InlineNode):
        return {item.name}
    if isinstance(item, tree.TranslatorNode):
        return set(item.type.words)
    if not isinstance(item, tree.TypeDeclarationNode):
        return set()
    body = item.type.body
    values = (
        {one.name for one in body.enumerators} if isinstance(body, tree.EnumBodyNode) else set()
    )
    return {name for name in (item.name, body.tag if body else "", *values) if name}


def _used(node: object) -> set[str]:
    """Every name and every word of a type in a part of the tree."""
    names: set[str] = set()
    for part in walk(node):
        if isinstance(part, tree.NameNode):
            names.add(part.name)
        elif isinstance(part, tree.TypeNode):
            names.update(part.words)
    return names


def _in_order(libraries: Iterable[Library], known: Sequence[Library]) -> list[Library]:
    """The libraries, each after those that it depends on.  Raises DError for a missing one."""
    by_name = {library.name: library for library in known}
    ordered: list[Library] = []
    begun: set[str] = set()

    def add(library: Library) -> None:
        if library.name in begun:
            return
        begun.add(library.name)
        for name in _required(library):
            if name not in by_name:
                span = _items(library)[0].span
                message = f"library {library.name} requires library {name}"
                raise DError(message, span, "D_PRAGMA_DEPEND")
            add(by_name[name])
        ordered.append(library)

    for library in libraries:
        add(library)
    return ordered


def _wanted(program: tree.ProgramNode, known: Sequence[Library]) -> tuple[set[int], set[str]]:
    """The id() of each item that the program uses, directly or through another one; and the names
    of their libraries."""
    declared = {name for item in program.items for name in _defined(item)
           if isinstance(item, tree.TypeDeclarationNode | tree.InlineNode)}  # fmt: skip
    pending, seen = _used(program) - declared, set(declared)
    wanted: set[int] = set()
    files: set[str] = set()
    while pending:
        seen |= pending
        more: set[str] = set()
        for library in known:
            if not declared_names(library) & pending:
                continue
            files.add(library.name)
            for item in _items(library):
                names = _defined(item)
                if names & pending and not names & declared and id(item) not in wanted:
                    wanted.add(id(item))
                    more |= _used(item)
        pending = more - seen
    return wanted, files


def use(program: tree.ProgramNode, scope: Scope, check: Check) -> None:
    """Declare the items of the system's libraries that the program uses and does not define."""
    libraries = scope.environment.dialect().libraries
    wanted, files = _wanted(program, libraries)
    for library in _in_order([one for one in libraries if one.name in files], libraries):
        for item in _items(library):
            if id(item) not in wanted:
                continue
            if isinstance(item, tree.TypeDeclarationNode):
                scope.types.declare(item)
            elif isinstance(item, tree.InlineNode):
                define_inline(item, scope, check)
            elif isinstance(item, tree.TranslatorNode):
                define_translator(item, scope, check, lazily=True)
