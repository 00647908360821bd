"""Errors for users. Each says in one line what happened, where, and what would work instead.

Every error that a user can cause is raised as a KinstError (or a subclass) and printed only by
kinst/cli. Any other exception that reaches kinst/cli is a defect of kinst.

Tested by tests/d, by programs that are wrong."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dataclass import dataclass
from kinst.core.endings import status_when_gone


@dataclass(frozen=True, slots=True)
class Span:
    """A range of characters in a line of D source.

    Attributes:
        file: name as the user gave it; "<command line>" for options like -n.
        line: line number, from 1.
        column: column of the first character, from 1.
        length: number of characters.
        text: the whole source line, shown above the caret; "" if not known.
    """

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class KinstError(Exception):
    """An error for the user. Its message says in one line what went wrong; its hint says what would
    work, or is "".
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class AbsentError(KinstError):
    """An error: a probe description names something that the traced kernel does not have. With -Z
    this is no error."""


class AmbiguousError(KinstError):
    """An error: a name that must stand for one function stands for several.

    Attributes:
        names: MODULE:FUNCTION of each of them.
    """

    def __init__(self, message: str, hint: str, names: Sequence[str]) -> None:
        super().__init__(message, hint)
        self.names = tuple(names)


@dataclass(frozen=True, slots=True)
class ProgramInD:
    """Translation into D of a program that is written for another tracer.

    Attributes:
        texts: each text of the program, with its translation.
        error: why the translation does not compile yet; "" if it compiles.
    """

    texts: tuple[tuple[str, str], ...]
    error: str = ""


class DError(KinstError):
    """An error in a D program.

    Attributes:
        tag: the error tag that dtrace(1) prints with -xerrtags (D_SYNTAX, D_PROTO_LEN, ...).
        span: where in the program the error is.
        translation: the whole program in D, if it is written for another tracer.
    """

    def __init__(self, message: str, span: Span, tag: str = "D_UNKNOWN", hint: str = "") -> None:
        super().__init__(message, hint)
        self.span = span
        self.tag = tag
        self.translation: ProgramInD | None = None

    def caret(self) -> str:
        """Return the source line, and below it a caret that points to the error; "" if the source
        line is not known."""
        if not self.span.text:
            return ""
        pad = "".join(c if c == "\t" else " " for c in self.span.text[: self.span.column - 1])
        return f"{self.span.text}\n{pad}{'^' * max(1, self.span.length)}"


class TargetError(KinstError):
    """An error of the traced machine or of the connection to it: no GDB stub, a panic, QEMU has
    ended."""


class GoneError(TargetError):
    """An error: the machine has ended by itself.

    Attributes:
        kind: "panic", "hang", or "" for any other reason.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        """The exit status of a command that ends with this error."""
        return status_when_gone(self.kind)


class ScratchUsedUpError(KinstError):
    """An error: the machine's scratch memory has no room for another program."""


class UnmappedError(TargetError):
    """An error: nothing is mapped at an address in the kernel's memory. If an ELF file is read in
    place of memory: no section of the file contains the address."""
