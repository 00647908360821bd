"""Values for the live code of a function: instructions, basic blocks, and the edges between blocks.

Tested by tests/views/test_flow.py."""

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
    """A live instruction of a function, with its source and the target of its branch.

    Attributes:
        text: mnemonic and operands, as the disassembler spells them.
        function: the function, or its part that was split off (NAME.cold), that contains the
            instruction. The name of the instruction's probe has this function.
        place: the source file and line, None if not known.
        refused: whether the instruction is known to be impossible to plant. Planting gives the
            reason.
        target: target of a direct branch or call, else None.
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
        """Offset in bytes from the start of `function`. This number is also the name of the
        instruction's probe."""
        return self.address - self.function.address


@dataclass(frozen=True, slots=True)
class CodeEdge:
    """An edge from the end of a basic block to the start of another block, or out of the function.

    Attributes:
        to: index of the other block, or OUTSIDE.
        kind: "next", "taken" (a conditional branch is taken), "jump", "computed", "return" or
            "fault" (the instruction faults and the kernel expects that).
        condition: a D expression over regs[]. At the block's last instruction, it is true if
            control will take this edge. "" if no D expression can tell, or if the block has no
            other edge.
    """

    to: int
    kind: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A basic block: control enters only at the first instruction, and leaves only after the last,
    apart from calls that do not return.

    Attributes:
        destination: a D expression for the target of the computed jump at the block's end; "" if
            the block does not end with such a jump, or D cannot express the target.
    """

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
    """The live code of a function, with the parts that the compiler split off.

    Attributes:
        parts: the function, then its other parts (NAME.cold).
        blocks: the basic blocks, by address.
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
        """All instructions of all blocks, by address."""
        return tuple(one for block in self.blocks for one in block.instructions)
