"""Liveness of amd64's arithmetic flags: whether they are overwritten before they are read.

A flag that an instruction leaves undefined counts as overwritten, since no program can use the
flag's old value after it. An instruction that is not in the tables of this module counts as a
reader of all flags. So does every branch, call and return: the code that runs after it is not
considered. Source: Intel SDM volume 1, appendix A ("EFLAGS cross-reference").
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

from iced_x86 import Instruction, OpCodeInfo, OpCodeOperandKind

from kinst.isa import _x86
from kinst.isa._x86_length import LONGEST

CF, PF, AF, ZF, SF, OF = 0x001, 0x004, 0x010, 0x040, 0x080, 0x800
ARITHMETIC = CF | PF | AF | ZF | SF | OF

# Flags that counting changes: inc leaves CF alone.
COUNTING_CLOBBERS = ARITHMETIC & ~CF

LOOK_AHEAD = 16  # instructions; longer runs without any flag-setter are rare

# (mnemonics, flags read, flags written), for any operands.
_NONE = (
    "mov movzx movsx movsxd lea push pop nop xchg not bswap cdqe cdq cqo cwde cwd cbw"
    " movsb movsw movsd movsq stosb stosw stosd stosq lodsb lodsw lodsd lodsq movnti"
    " lfence mfence sfence pause prefetcht0 prefetcht1 prefetcht2 prefetchnta prefetchw"
    " shlx shrx sarx rorx rol ror endbr64 cld leave"
)
_ALL = "add sub cmp and or xor test neg mul imul div idiv xadd cmpxchg popcnt andn blsr blsi blsmsk"
_EFFECTS = (
    (_NONE, 0, 0),
    (_ALL, 0, ARITHMETIC),
    ("adc sbb", CF, ARITHMETIC),
    ("inc dec", 0, ARITHMETIC & ~CF),
    ("bt bts btr btc", 0, CF),
    # bsf and tzcnt have one encoding, and so have bsr and lzcnt; the processor decides which of
    # the two runs, and both write ZF.
    ("bsf bsr tzcnt lzcnt", 0, ZF),
    ("cmpxchg8b cmpxchg16b", 0, ZF),
)
_EFFECT = {
    number: (read, written) for names, read, written in _EFFECTS for number in _x86.numbers(names)
}
_COUNTED = _x86.numbers("shl shr sar sal shld shrd")
_VOID = (0, 0)
COUNT_MASK = 0x1F  # or 0x3F, by operand size: a multiple of 32 counts as 0


def effect_of(mnemonic: int) -> tuple[int, int] | None:
    """Return (flags read, flags written) by a mnemonic, given by iced-x86's number; None if the
    effect is not known or depends on an operand."""
    return _EFFECT.get(mnemonic)


@cache
def counts(code: Any) -> tuple[bool, int]:
    """Return (whether instructions of this code shift, where their count comes from). The count
    matters because a shift by 0 leaves the flags unchanged.

    The second value is 1 if the instructions shift by 1, and -1 if the count is the instruction's
    last byte. It is 0 if the count is in cl, and for instructions that do not shift.

    Args:
        code: iced-x86's code of the instructions.
    """
    info = OpCodeInfo(code)
    if info.mnemonic not in _COUNTED:
        return False, 0
    last = info.op_kind(info.op_count - 1)
    if last == OpCodeOperandKind.IMM8:
        return True, -1
    return True, int(last == OpCodeOperandKind.IMM8_CONST_1)


def _effect(instruction: Instruction, code: bytes) -> tuple[int, int] | None:
    counted, count = counts(instruction.code)
    if not counted:
        return effect_of(instruction.mnemonic)
    count = code[-1] if count < 0 else count
    return (0, ARITHMETIC) if count & COUNT_MASK else _VOID


def dead(code: bytes, following: bytes, address: int, flags: int = ARITHMETIC) -> bool:
    """Return whether all of `flags` are dead at an instruction: this instruction and those after it
    write each flag before they read it. Return False if the bytes end too early to tell.

    Args:
        code: the instruction.
        following: the bytes after the instruction; they may end anywhere.
        address: address of the instruction.
        flags: mask of flags.
    """
    run, at = code + following[: LOOK_AHEAD * LONGEST], 0
    for instruction in islice(_x86.listed(run, address), LOOK_AHEAD):
        effect = _effect(instruction, run[at : at + instruction.len])
        if effect is None:
            return False
        read, written = effect
        if read & flags:
            return False
        flags &= ~written
        if not flags:
            return True
        at += instruction.len
    return False
