"""Values for functions of a running machine in their source: lines, and inlined copies.

Tested by tests/views/test_coverage.py."""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.probe import Function
from kinst.core.words import COLD


@dataclass(frozen=True, slots=True)
class CodeLine:
    """Consecutive instructions of one source line: running addresses [low, high)."""

    low: int
    high: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class InlinedCode:
    """An inlined copy of a function, with running addresses.

    Attributes:
        file: file of the function's declaration.
        line: line of the function's declaration.
        entry: address at which control enters the copy; None if it is not known, or not loaded.
        ranges: [low, high) of the copy's code.
    """

    name: str
    file: str
    line: int
    entry: int | None
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A function, or a part that the compiler has split off (NAME.cold), with its source lines.

    Attributes:
        name: name in the source.
        file: file of the declaration, "" if not known.
        line: line of the declaration, 0 if not known.
        lines: the lines of the code, by address; () without debug information.
        inlined: the inlined copies in the code.
    """

    function: Function
    name: str
    file: str
    line: int
    lines: tuple[CodeLine, ...]
    inlined: tuple[InlinedCode, ...]

    @property
    def is_part(self) -> bool:
        """Whether this is a part that the compiler has split off."""
        return COLD in self.function.name


@dataclass(frozen=True, slots=True)
class TracedSite:
    """An instruction that has probes in a trace.

    Attributes:
        reason: why the instruction is not planted, or "".
    """

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
        low: the lowest running address of the code.
        high: the running address directly after the code.
        linked: the linked address of the code at `low`.
        path: path of the file with debug information.
    """

    module: str
    low: int
    high: int
    linked: int
    path: str
