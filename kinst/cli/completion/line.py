"""A command line up to the cursor as words, by the shell's rules for quotes.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

from dataclasses import dataclass

_SEPARATORS = " \t\n"


@dataclass(frozen=True, slots=True)
class TypedLine:
    """The words of a command line up to the cursor, without their quotes."""

    # Those before the current one, the command's name first.
    words: tuple[str, ...]
    # The one at the cursor, as far as it is written.
    current: str
    # The quote that is open, or "".
    quote: str = ""
    # Where in `current` the part begins that the shell replaces by a completion.
    replaced: int = 0


def split(text: str, breaks: str) -> TypedLine:
    """Split a line as bash does.

    breaks: characters after which bash completes a new word, outside of quotes
    (COMP_WORDBREAKS)."""
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
