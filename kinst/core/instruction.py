"""A decoded instruction, and where control goes from it.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """A decoded instruction. text: mnemonic and operands as the disassembler spells them."""

    address: int
    code: bytes
    text: str

    @property
    def size(self) -> int:
        return len(self.code)

    @property
    def end(self) -> int:
        return self.address + len(self.code)


@dataclass(frozen=True, slots=True)
class Flow:
    """Where control goes from an instruction.

    Attributes:
        kind: "next"; "landing" (next, and indirect branches may come here); "jump", "branch"
            (conditional) and "call" by target; "return"; "indirect" (a jump to a computed address);
            "trap".
        falls_through: the next instruction may follow (after a call: when it returns).
        target: of a direct branch or call.
        condition: a D expression over regs[], true at the instruction if a conditional branch will
            be taken.
        otherwise: a D expression that is true if it will not.
        destination: of an indirect jump, as a D expression; "" if D cannot say it.
        fault: where control goes if the instruction faults on purpose (by the kernel's exception
            table, not by the ISA).
    """

    kind: str
    falls_through: bool = True
    target: int | None = None
    condition: str = ""
    otherwise: str = ""
    destination: str = ""
    fault: int | None = None


@dataclass(frozen=True, slots=True)
class JumpTable:
    """Data from which a computed jump takes its target: target = base + scale * entry, or the entry
    itself if base is 0.

    Attributes:
        address: of the first entry.
        size: bytes of an entry, which is signed unless it is an address.
        count: number of entries; 0 if the code does not say it.
    """

    address: int
    size: int
    base: int = 0
    scale: int = 1
    count: int = 0
