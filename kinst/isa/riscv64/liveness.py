"""Liveness of riscv64 registers: which registers are dead at an instruction, that is, written
before they are read.

A jump that reaches a trampoline takes two instructions and changes a register. That register must
be dead where the jump is planted. On every path from there, it is written before it is read, or the
function returns.

After a return the caller may read a result or a register that calls preserve (RISC-V psABI,
"Integer Register Convention"). If the compiler has analysed the function (GCC's -fipa-ra), the
caller may also read any register that the function leaves alone. So only registers that the
function itself writes are candidates.

GCC does not analyse functions that begin with space for a tracer's call (toplev.cc,
process_options: function_entry_patch_area_size). The space is two nops, or an auipc and a nop. At
any time, this nop may become a jalr that reads the auipc's register. Functions with such space are
a compiler's: if the last instruction is a call, such as that of the stack protector, it does not
return.

A called function reads its arguments, and may preserve any temporary. Jumps out of the function and
unknown instructions read all registers. encodings.py has what other instructions read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kinst.core.instruction import Flow, Instruction
from kinst.isa.riscv64 import encodings
from kinst.isa.riscv64.encode import A0, NOP, RA, T0, TEMPORARIES
from kinst.isa.riscv64.encodings import ALL


def _bits(*registers: int) -> int:
    bits = 0
    for register in registers:
        bits |= 1 << register & ALL
    return bits


_TEMPORARIES = _bits(*TEMPORARIES)
_ARGUMENTS = _bits(*range(A0, A0 + 8))
_CANDIDATES = _TEMPORARIES | _ARGUMENTS
_BITS_RA = _bits(RA)
_CALLED = ALL & ~_TEMPORARIES  # what a function may read when it is called
_RETURNED = ALL & ~(_CANDIDATES & ~_bits(A0, A0 + 1))  # what its caller may read when it returns

_AUIPC, _ECALL = 0x17, 0x73


def dead_registers(instructions: Sequence[Instruction], flows: Sequence[Flow]) -> list[int]:
    index = {instruction.address: k for k, instruction in enumerate(instructions)}
    count, written = len(instructions), 0
    effects = [_effect(instruction.code) for instruction in instructions]
    # A function that begins with space for a tracer's call is a compiler's.
    patchable = [instruction.code for instruction in instructions[:2]] == [NOP, NOP]
    if _is_room_for_call(instructions):
        patchable = True
        effects[1] = effects[0][1], 0
    # For each instruction: the instructions that may come next (ways); registers that are read in
    # any case (reads); registers that the instruction does not write (passed).
    ways, reads, passed = list[tuple[int, ...]](), list[int](), list[int]()
    for k, (instruction, flow) in enumerate(zip(instructions, flows, strict=True)):
        following, out = _successors(k, instruction, flow, index, instructions)
        if patchable and flow.kind == "call" and k == count - 1:
            following, out = [], 0
        if flow.kind == "call":
            # The alternate link register (t0) is for calls of another convention.
            out |= _CALLED if effects[k][1] == _BITS_RA else ALL
        ways.append(tuple(following))
        passed.append(~effects[k][1])
        reads.append(out & passed[k] | effects[k][0])
    live: list[int] = [0] * count
    changed = True
    while changed:
        changed = False
        for k in range(count - 1, -1, -1):
            needed = 0
            for way in ways[k]:
                needed |= live[way]
            now = needed & passed[k] | reads[k]
            if now != live[k]:
                live[k], changed = now, True
    for _, writes in effects:
        written |= writes
    candidates: int = _CANDIDATES if patchable else _CANDIDATES & written
    return [candidates & ~instruction for instruction in live]


def _is_room_for_call(instructions: Sequence[Instruction]) -> bool:
    """Return whether a function begins with space for a tracer's call: an auipc and a nop."""
    if len(instructions) < 2 or instructions[1].code != NOP or len(instructions[0].code) != 4:
        return False
    return int.from_bytes(instructions[0].code, "little") & 0x7F == _AUIPC


def choose(registers: int) -> int:
    """Return the number of a register in a mask; 0 if the mask is empty. t0 is returned only if no
    other register is in the mask, because processors predict a jump by t0 as a return."""
    order = (*TEMPORARIES[1:], *range(A0, A0 + 8), T0)
    return next((register for register in order if registers >> register & 1), 0)


def _successors(
    k: int,
    instruction: Instruction,
    flow: Flow,
    index: dict[int, int],
    instructions: Sequence[Instruction],
) -> tuple[list[int], int]:
    """Return where control may go from an instruction: (indexes of instructions in the function,
    mask of registers). The mask has the registers that may be read if control leaves the function;
    it is 0 if control stays in the function.

    Args:
        k: index of the instruction.
        instruction: the instruction.
        flow: where control goes from the instruction.
        index: index of each instruction, by address.
        instructions: the function's instructions.
    """
    following, out = [], 0
    if flow.falls_through:
        after = k + 1
        if after < len(instructions) and instructions[after].address == instruction.end:
            following.append(after)
        else:
            out = ALL
    if flow.kind == "return":
        out |= _RETURNED
    elif flow.kind == "indirect":
        out = ALL
    elif flow.kind in ("jump", "branch"):
        row = index.get(flow.target or 0)
        if row is None:
            out = ALL
        else:
            following.append(row)
    if flow.fault is not None:
        row = index.get(flow.fault)
        if row is None:
            out = ALL
        else:
            following.append(row)
    return following, out


@lru_cache(maxsize=1 << 16)
def _effect(code: bytes) -> tuple[int, int]:
    """Return (mask of registers read, mask of registers written) for one instruction."""
    word = int.from_bytes(code, "little")
    if word == _ECALL and len(code) == 4:
        return _ARGUMENTS, 0  # the firmware's arguments; it preserves all but a0 and a1
    return encodings.effect(word, len(code))
