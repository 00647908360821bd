"""Position of the cursor in a D program that is being typed: in a probe description, or in an
expression.

An unfinished program cannot be parsed, so this module only follows strings, comments, predicates
and braces.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_$][A-Za-z_0-9]*\Z")
_PREDICATE_END = re.compile(r"/\s*(?:\{|\Z)")


@dataclass(frozen=True, slots=True)
class Cursor:
    """What is being typed at the end of an unfinished D program.

    Attributes:
        described: whether a probe description is being typed; otherwise an expression is.
        typed: the beginning of the probe description, or of the name in the expression.
    """

    described: bool
    typed: str


def cursor(text: str) -> Cursor:
    """Return what is being typed at the end of an unfinished D program."""
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
    """Return the offset after the string, character constant or comment that begins at `at`; `at`
    if none begins there."""
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
    """Return the offset after the slash that ends a predicate; -1 if the predicate has no end yet.

    Args:
        text: the program.
        at: offset after the slash that begins the predicate.
    """
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
