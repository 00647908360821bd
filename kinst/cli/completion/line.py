"""A command line up to the cursor as words, by the shell's rules for quotes.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

from dataclasses import dataclass

_SEPARATORS = " \t\n"


@dataclass(frozen=True, slots=True)
class Line:
    """words: those before the current one, the command's name first.  current: the one at the
    cursor, as far as it is written; both without quotes.  quote: the one that is open, or "".
    replaced: where in current that begins which the shell replaces by a completion."""

    words: tuple[str, ...]
    current: str
    quote: str = ""
    replaced: int = 0


def split(text: str, breaks: str) -> Line:
    """A line of bash's.  breaks: the characters behind which it begins to complete anew, where they
    are not in quotes (COMP_WORDBREAKS)."""
    words: list[str] = []
    current, quote, replaced, inside = "", "", 0, False
    characters = iter(text)
    for c in characters:
        if quote:
            if c == quote:
                quote = ""
            elif c == "\\" and quote == '"':
                following = next(characters, "")
                current += following if following in '"\\$`' else c + following
            else:
                current += c
        elif c in _SEPARATORS:
            if inside:
                words.append(current)
            current, replaced, inside = "", 0, False
        elif c in "'\"":
            quote, inside, replaced = c, True, len(current)
        else:
            inside = True
            current += next(characters, "") if c == "\\" else c
            if c in breaks:
                replaced = len(current)
    return Line(tuple(words), current, quote, replaced)
