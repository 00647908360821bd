"""Control lines: #pragma D option, #ident, #error and the rest of # (Dynamic Tracing Guide,
"Options and Tunables"; libdtrace ignores pragmas that are not D's, as K&R A12.8 asks)."""

from __future__ import annotations

import re

from kinst.core.errors import DError, KinstError, Span
from kinst.dlang.check.pragmas import KINDS, read_pragma
from kinst.dlang.syntax.source import LINE_MARKER
from kinst.dlang.syntax.tree import Option, Pragma
from kinst.dlang.vocabulary.options import OWN_NAMES, Options

_WORD = re.compile(r'"[^"]*"|[^\s"]+')


def read_control_line(text: str, span: Span) -> Option | Pragma | None:
    """An option, a pragma, or None for a line that has no effect.

    text: from the # to the end of the line.  Raises DError D_PRAGCTL_INVAL, D_PRAGERR,
    D_PRAGMA_INVAL, D_PRAGMA_MALFORM, D_PRAGMA_OPTSET.
    """
    words = _WORD.findall(text[1:])
    if not words:
        return None
    if words[0] == "pragma":
        if words[1:2] == ["D"]:
            return _d_pragma(words[2:], span)
        words = words[1:]
        if not words or words[0] not in ("error", "line"):
            return None
    if words[0] == "ident":
        return None
    if words[0] == "error":
        raise DError(f"#error: {' '.join(words[1:])}", span, "D_PRAGERR")
    if words[0] == "line" or words[0].isdigit():
        if LINE_MARKER.match(text):
            return None  # Source has seen it
        raise DError("malformed #line directive", span, "D_PRAGMA_MALFORM", '#line 5 "file"')
    raise DError(f"invalid control directive: #{words[0]}", span, "D_PRAGCTL_INVAL")


def _d_pragma(words: list[str], span: Span) -> Option | Pragma | None:
    if not words:
        return None
    if words[0] in KINDS:
        return read_pragma(words[0], words[1:], span)
    if words[0] != "option":
        raise DError(f"invalid D pragma: {words[0]}", span, "D_PRAGMA_INVAL")
    if len(words) < 2 or words[1].startswith('"'):
        message = "malformed #pragma option <option>=<val>"
        raise DError(message, span, "D_PRAGMA_MALFORM")
    if len(words) > 2:
        message = "superfluous arguments specified for #pragma option"
        raise DError(message, span, "D_PRAGMA_MALFORM", "name=value without spaces")
    name, equals, value = words[1].partition("=")
    if name in OWN_NAMES:
        return Option(span, name, value)
    try:
        Options().with_option(name, value if equals else None)
    except KinstError as error:
        to = f" to '{value}'" if equals else ""
        message = f"failed to set option '{name}'{to}: {error.message}"
        raise DError(message, span, "D_PRAGMA_OPTSET", error.hint) from None
    return Option(span, name, value)
