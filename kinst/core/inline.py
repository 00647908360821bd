"""What debug information says of functions and of where they were inlined.

Addresses are as linked (running address = linked + slide).  Terms are DWARF's (DWARF 5,
section 3.3.8): an abstract instance is the function as written; a concrete inlined instance
(DW_TAG_inlined_subroutine) is a copy of it in another function; an out-of-line instance is
the function's own code.

Tested by tests/image/dwarf/scan and tests/sugar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FunctionDie:
    """A function in one unit.  die, unit: offsets in .debug_info.

    inlined: DW_AT_inline says it was or was declared so, or copies of it exist.
    ranges: of its out-of-line instance, (low, high) pairs; () where it has none.
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

    entry: by the rule of perf, SystemTap and libdw: DW_AT_entry_pc, else DW_AT_low_pc, else
    the start of the first range; None where the copy has no address at all.
    ranges: (low, high), in the order of the debug information; () for a copy without code.
    call_file, call_line: where it was called.  function: the abstract instance's name.
    within: names of the inlined functions that it is nested in, innermost first.
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
    """An inlined function that an instruction belongs to, and where in it that is; file is "" and
    line 0 where the debug information does not say."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The source of an instruction.

    file, line: in the function whose code it is ("" and 0 where they are not known): where
    functions are inlined there, the outermost one's call.  inlined: those, innermost first.
    """

    file: str
    line: int
    inlined: tuple[InlinedFrame, ...] = ()


class DebugIndex(Protocol):
    """What debug information says of functions and their copies, by name and by address."""

    def functions(self, name: str) -> Sequence[FunctionDie]:
        """Every function of this name, abstract and concrete ones joined, in file order."""
        ...

    def copies(self, name: str) -> Sequence[InlineCopy]:
        """Every inlined copy of the functions of this name, in file order."""
        ...

    def inline_names(self) -> Sequence[str]:
        """The distinct names of functions that have inlined copies."""
        ...

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        """The inlined copies whose code holds this address, innermost first."""
        ...
