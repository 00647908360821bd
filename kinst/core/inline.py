"""Functions and their inlined copies, from debug information.

Addresses are as linked (running address = linked + slide). Terms are DWARF's (DWARF 5, section
3.3.8): an abstract instance is the function as written; a concrete inlined instance
(DW_TAG_inlined_subroutine) is a copy of it in another function; an out-of-line instance is the
function's own code.

Tested by tests/image/dwarf/scan and tests/sugar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FunctionDie:
    """A function in one unit.

    Attributes:
        die: offset in .debug_info of its entry.
        unit: offset in .debug_info of its unit.
        inlined: whether DW_AT_inline says that it was inlined or declared so, or copies of it
            exist.
        ranges: (low, high) pairs of its out-of-line instance; () if it has none.
    """

    name: str
    die: int
    unit: int
    decl_file: str
    decl_line: int
    inlined: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class InlineCopy:
    """One concrete inlined instance.

    Attributes:
        function: the abstract instance's name.
        die: offset in .debug_info of its entry.
        unit: offset in .debug_info of its unit.
        entry: by the rule of perf, SystemTap and libdw: DW_AT_entry_pc, else DW_AT_low_pc, else the
            start of the first range; None if the copy has no address at all.
        ranges: (low, high), in the order of the debug information; () for a copy without code.
        call_file: file of the call.
        call_line: line of the call.
        within: names of the inlined functions around it, innermost first.
        caller: name of the concrete function (DW_TAG_subprogram) whose tree it is in.
    """

    function: str
    die: int
    unit: int
    entry: int | None
    ranges: tuple[tuple[int, int], ...]
    call_file: str
    call_line: int
    within: tuple[str, ...]
    caller: str


@dataclass(frozen=True, slots=True)
class InlinedFrame:
    """An inlined function that an instruction belongs to, and its line there; file is "" and line 0
    if the debug information does not say."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The source of an instruction.

    Attributes:
        file: of the function whose code it is, "" if not known; if functions are inlined there, of
            the outermost one's call.
        line: the line in that file, 0 if not known.
        inlined: those functions, innermost first.
    """

    file: str
    line: int
    inlined: tuple[InlinedFrame, ...] = ()


class DebugIndex(Protocol):
    """Functions and their copies, by name and by address."""

    def functions(self, name: str) -> Sequence[FunctionDie]:
        """Return every function of this name, abstract and concrete ones merged, in file order."""
        ...

    def copies(self, name: str) -> Sequence[InlineCopy]:
        """Return every inlined copy of the functions of this name, in file order."""
        ...

    def inline_names(self) -> Sequence[str]:
        """Return the distinct names of functions that have inlined copies."""
        ...

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        """Return the inlined copies whose code holds this address, innermost first."""
        ...
