"""D libraries of the traced system: declares those parts of them that a program uses.

kinst parses a library only if the program names the library's provider, or uses a name that the
library declares at the start of a line. A program that uses only names of D and its own names needs
no library.

Because kernels differ, kinst checks only declarations that the program uses, and of a translator
only the expressions of members that it uses. For a member that the system does not have, the
translator has no expression, or refuse("reason"); using the member is the error D_XLATE_NOCONV.

The probes that a library declares are expanded before the check (kinst.sugar.library_probes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from kinst.core.dialect import Library
from kinst.core.errors import DError, KinstError
from kinst.dlang.check.expansions import define_inline, define_translator
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import Macros, own_numbers
from kinst.dlang.syntax.program_parser import parse
from kinst.dlang.vocabulary.constants import CONSTANTS
from kinst.dlang.vocabulary.type_names import STARTS_TYPE
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


_PROVIDER = re.compile(r"^provider\s+(\w+)", re.MULTILINE)


def provider_of(library: Library) -> tree.ProviderNode | None:
    """Return the declaration of a provider in a library; None if the library declares no provider.
    The provider has the name of the library's file. Raises DError for a syntax error, and
    KinstError if the file cannot be read.
    """
    if library.provider not in _PROVIDER.findall(library.text):
        return None
    declared = (item for item in _items(library) if isinstance(item, tree.ProviderNode))
    return next((one for one in declared if one.name == library.provider), None)


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
    """Return libraries together with all that they require. Each library comes after the libraries
    that it requires.  Raises DError if a required library is missing.

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
                message = f"library {library.name} requires library {name}, which does not exist"
                raise DError(message, span, "D_PRAGMA_DEPEND")
            add(by_name[name])
        ordered.append(library)

    for library in libraries:
        add(library)
    return ordered


def _own_names(program: tree.ProgramNode) -> set[str]:
    """Return the names of the types, inlines and global variables that a program makes."""
    names = {name for item in program.items for name in _defined(item)
             if isinstance(item, tree.TypeDeclarationNode | tree.InlineNode)}  # fmt: skip
    names |= {item.name for item in program.declarations if not item.scope}
    for clause in program.clauses:
        for node in walk(clause):
            left = node.left if isinstance(node, tree.AssignmentNode) else None
            base = left.base if isinstance(left, tree.IndexNode) else left
            if isinstance(base, tree.NameNode):
                names.add(base.name)
    return names


def _named(program: tree.ProgramNode, known: Sequence[Library]) -> list[Library]:
    """Return the libraries whose probes a program names, each after the libraries it requires."""
    libraries = {one.pattern.library for clause in program.clauses for one in clause.descriptions}
    providers = {one.name.provider for one in libraries if one is not None}
    return _in_order([one for one in known if one.provider in providers], known)


def _wanted(
    program: tree.ProgramNode, known: Sequence[Library], is_of_d: Callable[[str], bool]
) -> tuple[set[int], set[str]]:
    """Return (id() of each declaration to make, names of the libraries that contain these
    declarations): those library declarations that a program uses, and those that they use in turn.

    Args:
        known: all libraries of the system.
        is_of_d: tells whether D itself defines a name.
    """
    declared = _own_names(program)
    named = _named(program, known)
    searched = [one for one in known if not (one.by_provider or one in named)]
    pending, seen = _used(program) - declared, set(declared)
    wanted: set[int] = set()
    files: set[str] = set()
    while pending := {name for name in pending if not is_of_d(name)}:
        seen |= pending
        more: set[str] = set()
        for library in (*named, *searched):
            if library not in named and not declared_names(library) & pending:
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
    dialect, registers = scope.environment.dialect(), scope.environment.registers

    def is_of_d(name: str) -> bool:
        own = name in STARTS_TYPE or name in registers or name in dialect.constants
        own = own or name in CONSTANTS or name in ("self", "this", "NULL") or "`" in name
        return own or scope.kind_of(name) is not None

    libraries = dialect.libraries
    wanted, files = _wanted(program, libraries, is_of_d)
    for library in _in_order([one for one in libraries if one.name in files], libraries):
        for item in _items(library):
            if isinstance(item, tree.PragmaNode) and item.kind == "depends_on":
                if item.words[0] != "library":
                    _check_exists(item, scope, f"library {library.name}")
                continue
            if id(item) not in wanted:
                continue
            if isinstance(item, tree.TypeDeclarationNode):
                scope.types.declare(item)
            elif isinstance(item, tree.InlineNode):
                define_inline(item, scope, check)
            elif isinstance(item, tree.TranslatorNode):
                define_translator(item, scope, check, lazily=True)


def check_dependency(node: tree.PragmaNode, scope: Scope) -> None:
    """Check that the provider or module that a #pragma D depends_on names exists. Raises DError
    D_PRAGMA_DEPEND.
    """
    if node.words[0] == "library":
        message = "main program may not explicitly depend on a library"
        raise DError(message, node.span, "D_PRAGMA_DEPEND")
    _check_exists(node, scope, "program")


def _check_exists(node: tree.PragmaNode, scope: Scope, dependent: str) -> None:
    """Raise DError D_PRAGMA_DEPEND if the provider or module of a #pragma D depends_on is missing.

    Args:
        dependent: the program or library that has the pragma, for the message.
    """
    kind, name = node.words[:2]
    candidates = _providers(scope) if kind == "provider" else _typed_modules(node, scope)
    if name not in candidates:
        message = f"{dependent} requires {kind} {name}"
        hint = (
            f"there are {', '.join(candidates[:8])}{', ...' * (len(candidates) > 8)}"
            if candidates
            else ""
        )
        raise DError(message, node.span, "D_PRAGMA_DEPEND", hint)


def _providers(scope: Scope) -> list[str]:
    """Return the names of all providers, those of libraries included."""
    libraries = scope.environment.dialect().libraries
    declared = {one.provider for one in libraries if one.by_provider or provider_of(one)}
    return sorted({*scope.environment.providers, *declared})


def _typed_modules(node: tree.PragmaNode, scope: Scope) -> list[str]:
    """Return the names of the modules whose types are known. Raises DError D_PRAGMA_DEPEND at the
    pragma if the kernel's types cannot be read.
    """
    try:
        return list(scope.types.source.modules()) if scope.types.source is not None else []
    except KinstError as error:
        raise DError(error.message, node.span, "D_PRAGMA_DEPEND", error.hint) from error
