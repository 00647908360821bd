"""Splitting of a command line up to the cursor into words, by the shell's rules for quotes.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

from dataclasses import dataclass

_SEPARATORS = " \t\n"


@dataclass(frozen=True, slots=True)
class TypedLine:
    """The words of a command line up to the cursor, without their quotes.

    Attributes:
        words: words before the word at the cursor; the first one is the command's name.
        current: the part of the word at the cursor that is before the cursor.
        quote: the quote that is open at the cursor; "" if none is open.
        replaced: offset in `current` from which the shell replaces text by a completion.
    """

    words: tuple[str, ...]
    current: str
    quote: str = ""
    replaced: int = 0


def split(text: str, breaks: str) -> TypedLine:
    """Return the words of a line, split as bash splits them.

    Args:
        text: the line up to the cursor.
        breaks: characters at which bash breaks words for completion (COMP_WORDBREAKS). If one of
            them is not quoted, a completion replaces only the text after it.
    """
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
    return TypedLine(tuple(words), current, quote, replaced)
