"""D libraries of the traced system: declares those parts of them that a program uses.

kinst parses a library only if the program uses a name that the library declares at the start of a
line. Because kernels differ, only declarations that are used are checked, and a translator's
expression for a member is checked only if the member is used. A member without a counterpart in the
system is declared but has no conversion (D_XLATE_NOCONV).
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
from kinst.dlang.syntax.lexer import Macros, own_numbers
from kinst.dlang.syntax.program_parser import parse
from kinst.dlang.walk import walk

# Declarations at the start of a line: typedefs, whose braces may contain braces; inlines and
# structure tags; enumerations.
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
    """Return the names of a library's typedefs, without parsing the library."""
    return frozenset(_TYPEDEFS.findall(library.text))


@cache
def declared_names(library: Library) -> frozenset[str]:
    """Return the names of the types, enumerators and inlines that a library declares, without
    parsing the library.
    """
    names = {name for row in _NAMED.findall(library.text) for name in row if name}
    for body in _ENUMERATORS.findall(library.text):
        names.update(part.partition("=")[0].strip() for part in body.split(","))
    return declared_types(library) | names - {""}


@cache
def _items(library: Library) -> tuple[tree.ItemNode, ...]:
    """Parse a library and return its declarations. Macros such as $pid and $pgid have their values
    for kinst's own process. Raises DError for a syntax error.
    """
    is_type = declared_types(library).__contains__
    macros = Macros(variables=own_numbers())
    program = parse(library.text, library.name, macros, part=True, knows_type=is_type)
    return tuple(item for item in program.items if not isinstance(item, tree.ClauseNode))


@cache
def _required(library: Library) -> tuple[str, ...]:
    """Return the names of the libraries that a library's #pragma D depends_on lines require."""
    return tuple(
        item.words[1]
        for item in _items(library)
        if isinstance(item, tree.PragmaNode) and item.words[0] == "library"
    )


def _defined(item: tree.ItemNode) -> set[str]:
    """Return the names that a library's declaration defines. For a translator, return the words of
    the type that it makes.
    """
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
    """Return every name, and every word of a type, that occurs in a part of the syntax tree."""
    names: set[str] = set()
    for part in walk(node):
        if isinstance(part, tree.NameNode):
            names.add(part.name)
        elif isinstance(part, tree.TypeNode):
            names.update(part.words)
    return names


def _in_order(libraries: Iterable[Library], known: Sequence[Library]) -> list[Library]:
    """Return libraries, and those that they require, in an order in which each library comes after
    the libraries that it requires.  Raises DError if a required library is missing.

    Args:
        known: all libraries of the system.
    """
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
    """Return which declarations of libraries a program uses, directly or through other declarations
    of libraries: the id() of each declaration, and the names of their libraries.
    """
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
    """Declare those items of the system's libraries that the program uses and does not define
    itself.
    """
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
