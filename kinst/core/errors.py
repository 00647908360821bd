"""Errors for users: one line that says what happened, where, and what would work instead.

Every error that a user can cause is raised as a KinstError (or a subclass) and printed by kinst/cli
alone; any other exception that reaches it is a defect of kinst.

Tested by tests/d, by programs that are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.endings import status_when_gone


@dataclass(frozen=True, slots=True)
class Span:
    """A place in D source text.

    Attributes:
        file: name as the user gave it ("<command line>" for -n and its like).
        line: from 1.
        column: from 1.
        length: characters from column on.
        text: the whole source line, for the caret.
    """

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class KinstError(Exception):
    """An error for the user: what went wrong, in one line, and what would work (hint), if that is
    known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class AbsentError(KinstError):
    """A probe description names something that the traced kernel does not have: no error with
    -Z."""


class DError(KinstError):
    """An error in a D program.

    Attributes:
        tag: the error tag of dtrace(1)'s -xerrtags (D_SYNTAX, D_PROTO_LEN, ...).
        span: the place, printed as file:line:column with the line and a caret below it.
    """

    def __init__(self, message: str, span: Span, tag: str = "D_UNKNOWN", hint: str = "") -> None:
        super().__init__(message, hint)
        self.span = span
        self.tag = tag

    def caret(self) -> str:
        """Return the source line and a caret under the place, or "" if the line is not known."""
        if not self.span.text:
            return ""
        pad = "".join(c if c == "\t" else " " for c in self.span.text[: self.span.column - 1])
        return f"{self.span.text}\n{pad}{'^' * max(1, self.span.length)}"


class TargetError(KinstError):
    """The traced machine, or the way to it, failed: no stub, a panic, QEMU gone."""


class GoneError(TargetError):
    """The machine ended by itself. kind: "panic", "hang", or "" for any other reason."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        """The exit status of a command to which that happens."""
        return status_when_gone(self.kind)


class ScratchUsedUpError(KinstError):
    """The machine has no room left for another program."""


class UnmappedError(TargetError):
    """Nothing is mapped at an address of a kernel, or of the file that stands in for it."""
