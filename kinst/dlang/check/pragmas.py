"""#pragma D attributes, binding and depends_on: stabilities and versions of the program's names,
and what the program cannot do without (Dynamic Tracing Guide, "Stability", "Versioning",
"Translators"; libdtrace's dt_pragma.c).

Both are checked.  Stabilities are reported with -v (stability.py), versions have no effect.
"""

from __future__ import annotations

import re

from kinst.core.errors import DError, KinstError, Span
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.source import words
from kinst.dlang.vocabulary import builtins

KINDS = words("attributes binding depends_on")
_FORMS = {
    "attributes": "<attributes> <ident>",
    "binding": '"version" <ident>',
    "depends_on": "<class> <name>",
}
_STABILITIES = words("internal private obsolete external unstable evolving stable standard")
_CLASSES = words("unknown cpu platform group isa common")
_PARTS = words("provider module function name args")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?\Z")
_LARGEST = (255, 4095, 4095)  # DT_VERSION_MAJMAX and the other two


def read_pragma(kind: str, given: list[str], span: Span) -> tree.Pragma:
    """The pragma of this kind with these words, strings in their quotes.

    Raises DError D_PRAGMA_MALFORM, D_PRAGMA_INVAL."""
    kinds = ["string" if w[0] == '"' else "int" if w[0].isdigit() else "name" for w in given[:2]]
    if kinds != ["string" if kind == "binding" else "name", "name"]:
        raise DError(f"malformed #pragma {kind} {_FORMS[kind]}", span, "D_PRAGMA_MALFORM")
    if kind == "attributes":
        _check_attributes(given, span)
    elif kind == "binding" and not _is_version(given[0].strip('"')):
        message = "invalid version string specified by #pragma binding"
        raise DError(message, span, "D_PRAGMA_INVAL", '"1.0" is one')
    elif kind == "depends_on" and given[0] not in ("provider", "module", "library"):
        message = f"invalid class {given[0]} specified by #pragma depends_on"
        raise DError(message, span, "D_PRAGMA_INVAL", "provider, module or library")
    return tree.Pragma(span, kind, tuple(given))


def _check_attributes(given: list[str], span: Span) -> None:
    parts = given[0].lower().split("/")
    good = len(parts) == 3 and {*parts[:2]} <= _STABILITIES and parts[2] in _CLASSES
    if not good:
        message = "invalid attributes specified by #pragma attributes"
        raise DError(message, span, "D_PRAGMA_INVAL", "Evolving/Evolving/Common is an example")
    if given[1] == "provider" and len(given) < 4:
        message = "malformed #pragma attributes <attributes> provider <name> <part>"
        raise DError(message, span, "D_PRAGMA_MALFORM")


def _is_version(text: str) -> bool:
    match = _VERSION.match(text)
    return match is not None and all(
        int(number or 0) <= most for number, most in zip(match.groups(), _LARGEST, strict=True)
    )


def check_pragma(node: tree.Pragma, scope: Scope) -> None:
    """Whether what the pragma is about is there; to be asked when all names of the program are
    known.  Raises DError D_PRAGMA_DEPEND, D_PRAGMA_SCOPE, D_PRAGMA_UNUSED, D_PRAGMA_INVAL."""
    if node.kind == "depends_on":
        _check_dependency(node, scope)
        return
    name = node.words[1]
    if node.kind == "attributes" and name == "provider":
        provider, part = node.words[2:4]
        if provider not in scope.environment.providers and provider not in scope.declared_providers:
            raise DError(f"unused #pragma {node.kind}", node.span, "D_PRAGMA_UNUSED")
        if part not in _PARTS:
            message = f'invalid component "{part}" in attribute #pragma for provider {provider}'
            raise DError(message, node.span, "D_PRAGMA_INVAL")
        return
    if name in scope.variables or name in scope.inlines:
        return
    if builtins.kind_of(name) is not None or name in scope.environment.registers:
        message = f"#pragma {node.kind} cannot modify entity defined outside program scope"
        raise DError(message, node.span, "D_PRAGMA_SCOPE")
    hint = f"{name} is no global variable or inline of the program"
    raise DError(f"unused #pragma {node.kind}", node.span, "D_PRAGMA_UNUSED", hint)


def _check_dependency(node: tree.Pragma, scope: Scope) -> None:
    kind, name = node.words[:2]
    if kind == "library":
        message = "main program may not explicitly depend on a library"
        raise DError(message, node.span, "D_PRAGMA_DEPEND")
    known = sorted(scope.environment.providers) if kind == "provider" else _modules(node, scope)
    if name not in known:
        message = f"program requires {kind} {name}"
        hint = f"there are {', '.join(known[:8])}{', ...' * (len(known) > 8)}" if known else ""
        raise DError(message, node.span, "D_PRAGMA_DEPEND", hint)


def _modules(node: tree.Pragma, scope: Scope) -> list[str]:
    """Of the modules with types."""
    try:
        return list(scope.types.source.modules()) if scope.types.source is not None else []
    except KinstError as error:
        raise DError(error.message, node.span, "D_PRAGMA_DEPEND", error.hint) from error
