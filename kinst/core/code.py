"""A function of the running kernel as it is in memory: instructions, blocks, and the edges between
them.

Tested by tests/views/test_flow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from kinst.core.dataclass import dataclass
from kinst.core.inline import SourcePlace
from kinst.core.instruction import Flow
from kinst.core.probe import Function, Gap

OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class CodeInstruction:
    """One live instruction.

    Attributes:
        text: as the disassembler spells it.
        function: the function, or part of one, that it is in and whose probe it has.
        place: its source, None if not known.
        refused: whether it is known that it cannot be planted; planting gives the reason.
        target: of a direct branch or call, else None.
        target_name: NAME or NAME+OFFSET of a target outside the function.
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
        """Offset from the start of its part: the name of its probe."""
        return self.address - self.function.address


@dataclass(frozen=True, slots=True)
class CodeEdge:
    """An edge from the end of a block to the start of another, or to OUTSIDE of the function.

    Attributes:
        to: index of the block.
        kind: "next", "taken" (of a conditional branch), "jump", "computed", "return" or "fault"
            (the instruction faults on purpose).
        condition: a D expression over regs[], true at the block's last instruction if control will
            take this edge; "" if D cannot say it, or there is no other edge.
    """

    to: int
    kind: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Instructions that control enters only at the first and leaves only after the last, apart from
    calls that do not return. destination: of a computed jump, as a D expression, or ""."""

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
        parts: the function, then its parts that the compiler moved away (NAME.cold).
        blocks: by address.
        root: index of the block at the function's entry.
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
        """All instructions, by address."""
        return tuple(one for block in self.blocks for one in block.instructions)
