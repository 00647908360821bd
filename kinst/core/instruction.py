"""An instruction as it is decoded: where it is, and where control goes from it.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """A decoded instruction. text is mnemonic and operands as the disassembler spells them."""

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

    kind: "next"; "landing" (next, and indirect branches may come here); "jump", "branch"
    (conditional) and "call" by target; "return"; "indirect" (a jump to a computed place);
    "trap".  falls_through: the next instruction may follow (after a call: when it returns).
    target: of a direct branch or call.  condition, otherwise: D expressions over regs[], true
    at the instruction when a conditional branch will be taken, and when not.  destination: of
    an indirect jump, as a D expression; "" when D cannot say it.  fault: where control goes when
    the instruction faults on purpose (not the ISA's word but the kernel's exception table).
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
    """Data that a computed jump takes its target from: target = base + scale * entry, where base
    0 means that entries are whole addresses.

    address: of the first entry.  size: bytes of an entry, which is signed unless it is an address.
    count: of entries; 0 where the code does not say it.
    """

    address: int
    size: int
    base: int = 0
    scale: int = 1
    count: int = 0
