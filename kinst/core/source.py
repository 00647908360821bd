"""Functions of a running machine in their source: lines, and inlined copies.

Tested by tests/views/test_coverage.py.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.probe import Function


@dataclass(frozen=True, slots=True)
class CodeLine:
    """Instructions of one source line: running addresses [low, high)."""

    low: int
    high: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class InlinedCode:
    """A copy of an inline function: file and line of its declaration, running addresses.

    entry: None if it is not known, or in no loaded code."""

    name: str
    file: str
    line: int
    entry: int | None
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A function, or a part of one that the compiler has moved elsewhere.

    Attributes:
        name: as in the source.
        file: of its declaration, "" if not known.
        line: of its declaration, 0 if not known.
        lines: of its code, by address; () without debug information.
        inlined: the copies in it.
    """

    function: Function
    name: str
    file: str
    line: int
    lines: tuple[CodeLine, ...]
    inlined: tuple[InlinedCode, ...]


@dataclass(frozen=True, slots=True)
class TracedSite:
    """An instruction that has probes of a trace. reason: why it is not planted, or ""."""

    function: Function
    address: int
    size: int
    reason: str = ""

    @property
    def offset(self) -> int:
        return self.address - self.function.address


@dataclass(frozen=True, slots=True)
class CodeImage:
    """The code of the kernel or of a module.

    Attributes:
        low: its lowest running address.
        high: the address after its highest.
        linked: its lowest address in the file.
        path: of its file with debug information.
    """

    module: str
    low: int
    high: int
    linked: int
    path: str
