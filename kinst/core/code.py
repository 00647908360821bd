"""A function of the running kernel as it stands in memory: instructions, blocks, and the edges
between them.

Tested by tests/views/test_flow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kinst.core.inline import SourcePlace
from kinst.core.instruction import Flow
from kinst.core.probe import Function, Gap

OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class CodeInstruction:
    """One live instruction.

    text: as the disassembler spells it.  function: the part that it is in, whose probe it has.
    place: its source, None where that is not known.  refused: it is known not to be plantable;
    why is for planting to say.  target: of a direct branch or call, None for others; target_name:
    of one that leaves the function, as NAME or NAME+OFFSET.
    """

    address: int
    code: bytes
    text: str
    flow: Flow
    function: Function
    place: SourcePlace | None = None
    refused: bool = False
    target: int | None = None
    target_name: str = ""

    @property
    def offset(self) -> int:
        """From the start of its part: the name of its probe."""
        return self.address - self.function.address


@dataclass(frozen=True, slots=True)
class CodeEdge:
    """A way from the end of a block to the start of another, or to OUTSIDE of the function.

    kind: "next" (straight on), "taken" (of a conditional branch), "jump", "computed", "return",
    "fault" (what the instruction does when it faults on purpose).  condition: a D expression over
    regs[], true at the block's last instruction when control will go this way; "" where D cannot
    say it, and where there is no other way.
    """

    to: int
    kind: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Instructions that control enters only at the first, and leaves behind the last, but for
    calls that do not return.  destination: of a computed jump, as a D expression, or ""."""

    instructions: tuple[CodeInstruction, ...]
    edges: tuple[CodeEdge, ...]
    destination: str = ""

    @property
    def address(self) -> int:
        return self.instructions[0].address

    @property
    def last(self) -> CodeInstruction:
        return self.instructions[-1]


@dataclass(frozen=True)
class FunctionCode:
    """The live code of a function and of its parts.

    Attributes:
        parts: the function, then what the compiler moved away from it (NAME.cold).
        blocks: by address.
        root: the block that the function is entered by.
        gaps: bytes of the parts that are not decoded.
    """

    parts: tuple[Function, ...]
    blocks: tuple[CodeBlock, ...]
    root: int
    gaps: tuple[Gap, ...] = ()

    @property
    def function(self) -> Function:
        return self.parts[0]

    @cached_property
    def instructions(self) -> Sequence[CodeInstruction]:
        """All of them, by address."""
        return tuple(one for block in self.blocks for one in block.instructions)
