"""Values for functions and their inlined copies, as debug information describes them.

Addresses are as linked (running address = linked + slide). Terms are DWARF's (DWARF 5, section
3.3.8): an abstract instance is the function as written; a concrete inlined instance
(DW_TAG_inlined_subroutine) is its copy in another function; an out-of-line instance is the
function's own code.

Tested by tests/image/dwarf/scan and tests/sugar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FunctionDie:
    """A function as one compilation unit describes it.

    Attributes:
        die: offset of the function's DIE (debugging information entry) in .debug_info.
        unit: offset of the unit in .debug_info.
        inlined: whether the function has inlined copies, or DW_AT_inline says that it was inlined
            or declared inline.
        ranges: (low, high) pairs of the out-of-line instance; () if there is no such instance.
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
    """An inlined copy of a function (DWARF's concrete inlined instance).

    Attributes:
        function: name of the function that was inlined.
        die: offset of the copy's DIE in .debug_info.
        unit: offset of the copy's unit in .debug_info.
        entry: address at which control enters the copy, by the rule of perf, SystemTap and libdw:
            DW_AT_entry_pc, else DW_AT_low_pc, else the start of the first range; None if the copy
            has no address at all.
        ranges: (low, high) pairs, in the order of the debug information; () for a copy without
            code.
        call_file: source file of the call.
        call_line: source line of the call.
        within: names of the inlined functions around this copy, innermost first.
        caller: name of the function (DW_TAG_subprogram) whose code contains the copy.
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
    """An inlined function that an instruction belongs to, and the instruction's file and line in
    the source of that function. The file is "" and the line 0 if they are not known."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where an instruction is in the source: file, line, and the inlined functions that it belongs
    to.

    `file` and `line` are in the function whose symbol covers the instruction. If the instruction
    belongs to an inlined function, they are the line on which the function of the symbol calls it
    (or calls the outermost of several nested ones). Each InlinedFrame of `inlined` has the line in
    its own function.

    Attributes:
        file: the source file, "" if not known.
        line: the line in `file`, 0 if not known.
        inlined: the inlined functions that the instruction belongs to, innermost first.
    """

    file: str
    line: int
    inlined: tuple[InlinedFrame, ...] = ()


class DebugIndex(Protocol):
    """Index of an image's functions and their inlined copies, by name and by address."""

    def functions(self, name: str) -> Sequence[FunctionDie]:
        """Return the functions of this name, in the order of the debug information. A function has
        one result, even if the debug information describes its abstract instance and its
        out-of-line instances apart."""
        ...

    def copies(self, name: str) -> Sequence[InlineCopy]:
        """Return the inlined copies of all functions of this name, in the order of the debug
        information."""
        ...

    def inline_names(self) -> Sequence[str]:
        """Return the names of all functions that have inlined copies, each once."""
        ...

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        """Return the inlined copies whose code contains this address, innermost first."""
        ...
