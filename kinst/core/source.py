"""Functions of a running machine as their source has them: lines, and what is inlined where.

Tested by tests/views/test_coverage.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.probe import Function


@dataclass(frozen=True, slots=True)
class CodeLine:
    """Instructions of one source line: running addresses low to high (exclusive)."""

    low: int
    high: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class InlinedCode:
    """A copy of an inline function: file and line of its declaration, running addresses.

    entry: None where it is not known, or in no loaded code."""

    name: str
    file: str
    line: int
    entry: int | None
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A function, or a part of one that the compiler has moved elsewhere.

    name: as in the source.  file, line: of its declaration, "" and 0 where that is not known.
    lines: of its code, by address; () where no debug information tells.  inlined: the copies in
    it."""

    function: Function
    name: str
    file: str
    line: int
    lines: tuple[CodeLine, ...]
    inlined: tuple[InlinedCode, ...]


@dataclass(frozen=True, slots=True)
class TracedSite:
    """An instruction that probes of a trace are at.  reason: why it is not planted, "" where it
    is."""

    function: Function
    address: int
    size: int
    reason: str = ""

    @property
    def offset(self) -> int:
        return self.address - self.function.address


@dataclass(frozen=True, slots=True)
class CodeImage:
    """The kernel's code, or a module's: running addresses from the lowest to behind the highest.
    linked: the lowest, as the file has it.  path: of its file with debug information."""

    module: str
    low: int
    high: int
    linked: int
    path: str
