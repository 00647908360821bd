"""Values for a decoded instruction, and for where control goes from an instruction.

Tested by tests/isa/test_isa_contract.py."""

from __future__ import annotations

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """A decoded instruction.

    Attributes:
        text: mnemonic and operands, as the disassembler spells them.
    """

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
        kind: "next"; "landing" (like "next", and indirect branches may lead to this instruction);
            "jump", "branch" (conditional) or "call" to `target`; "return"; "indirect" (a jump to a
            computed address); "trap".
        falls_through: whether the next instruction may follow; for a call, after the call returns.
        target: target of a direct jump, branch or call; else None.
        condition: a D expression over regs[] that is true at a conditional branch if it will be
            taken; "" if D has none.
        otherwise: a D expression over regs[] that is true if the branch will not be taken.
        destination: target of an indirect jump as a D expression; "" if D has none.
        fault: where control goes if the instruction faults and the kernel's exception table expects
            that; else None.
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
    """A table of targets of a computed jump. If `base` is 0, each entry is a target's address;
    otherwise a target is base + scale * entry.

    Attributes:
        address: address of the first entry.
        size: bytes of an entry. If `base` is not 0, entries are signed numbers.
        count: number of entries; 0 if the code does not show how many there are.
    """

    address: int
    size: int
    base: int = 0
    scale: int = 1
    count: int = 0
