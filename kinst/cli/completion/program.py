"""Where in a D program the cursor is: in a probe description, or in an expression.

A program that is being written does not parse yet, so this follows strings, comments and braces,
and nothing else.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_$][A-Za-z_0-9]*\Z")
_PREDICATE_END = re.compile(r"/\s*(?:\{|\Z)")


@dataclass(frozen=True, slots=True)
class Cursor:
    """What is written at the cursor."""

    # It is in a probe description.
    described: bool
    # The start of that description, or of a name, up to the end of the text.
    typed: str


def cursor(text: str) -> Cursor:
    """Return where the end of this text is."""
    at = start = depth = 0
    while at < len(text):
        skipped = _skipped(text, at)
        if skipped > at:
            if not depth and not text[start:at].strip(" \t\n"):
                start = skipped
            at = skipped
            continue
        c = text[at]
        at += 1
        if c == "{":
            depth += 1
        elif c == "}":
            depth = max(depth - 1, 0)
            start = at
        elif depth:
            continue
        elif c in ",;":
            start = at
        elif c == "/":
            end = _predicate_end(text, at)
            if end < 0:
                return Cursor(False, _name(text))
            at = end
    if depth:
        return Cursor(False, _name(text))
    return Cursor(True, text[start:].lstrip())


def _skipped(text: str, at: int) -> int:
    """Return the end of the string, character or comment that begins here; `at` if none does."""
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return end + 2 if end >= 0 else len(text)
    if text[at] not in "\"'":
        return at
    end = at + 1
    while end < len(text) and text[end] != text[at]:
        end += 2 if text[end] == "\\" else 1
    return min(end + 1, len(text))


def _predicate_end(text: str, at: int) -> int:
    """Return the end of the slash that ends a predicate, -1 if it is not written yet."""
    while at < len(text):
        skipped = _skipped(text, at)
        if skipped > at:
            at = skipped
        elif text[at] == "/" and _PREDICATE_END.match(text, at):
            return at + 1
        else:
            at += 1
    return -1


def _name(text: str) -> str:
    found = _NAME.search(text)
    return found.group() if found else ""
