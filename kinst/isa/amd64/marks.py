"""Marks of amd64 instructions: 16 bits that tell batch.py how to displace an instruction.

Marks are made for many instructions at once, while the instructions are decoded. An instruction
gets a mark other than 0 if it can be copied, or if only its distance or displacement has to change.

Mark 0 means that batch.py leaves the instruction to relocate.py. This mark is for refused
instructions, rare instructions, and those with a prefix that changes the size of an address.
Source: Intel SDM volume 2, chapter 2 and appendix A.

Tested by tests/isa/test_marks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from iced_x86 import OpCodeInfo

from kinst.core.columns import (
    FLOW_KINDS,
    FOLLOWING,
    I64,
    NO_COLUMNS,
    U8,
    U16,
    WIDTH,
    Bools,
    Columns,
    Leads,
    Scanned,
    columns_in,
    distinct,
)
from kinst.core.dataclass import dataclass
from kinst.isa import _x86
from kinst.isa._x86_length import ADDRESS_SIZE, LEGACY, MODRM, OPERAND_SIZE
from kinst.isa.amd64 import flags, refuse
from kinst.isa.amd64.flags import COUNTING_CLOBBERS, LOOK_AHEAD
from kinst.isa.amd64.parse import RIP_RELATIVE

# How an instruction is displaced (its kind): the lowest bits of a mark.
COPY, RELATIVE, JUMP, BRANCH, CALL, RETURN = range(1, 7)
KIND = 7
_FLOWS: U8 = np.zeros(KIND + 1, np.uint8)  # index in FLOW_KINDS of each kind
_FLOWS[[JUMP, BRANCH, CALL, RETURN]] = [
    FLOW_KINDS.index(name) for name in ("jump", "branch", "call", "return")
]
DEAD = 1 << 3  # the flags that counting changes are overwritten before they are read
NEAR = 1 << 4  # of a branch: four bytes of distance, not one
FIELD_SHIFT = 8  # offset of its distance or displacement; four bits
CONDITION_SHIFT = 12  # of a branch

_MOST_CODES = 1 << 16  # more than iced-x86 has codes
# Mnemonics that get no mark although they are not refused.
_ALONE = _x86.numbers("sti ud2")

_ONE_BYTE_ALONE = np.zeros(256, np.bool_)
_ONE_BYTE_ALONE[[*range(0xE0, 0xE4), 0xCA, 0xCB, 0xCC, 0xCF, 0xF1, 0x8E, 0xFF]] = True
_TWO_BYTE_ALONE = np.zeros(256, np.bool_)
_TWO_BYTE_ALONE[[0x20, 0x21, 0x22, 0x23, 0xA9]] = True
_LEGACY = np.isin(np.arange(256), sorted(LEGACY))
_MODRM = np.stack([np.isin(np.arange(256), sorted(ops)) for ops in MODRM])


@dataclass(slots=True)
class _Effects:
    """Effects of instructions on flags, as arrays with an element for each of iced-x86's codes.

    Attributes:
        known: the codes whose elements are filled in.
        read: arithmetic flags that the instruction reads.
        written: arithmetic flags that the instruction writes.
        unknown: whether the effect on flags is not known.
        counted: whether the instruction's last byte is the count of a shift. If the count is 0, no
            flag is written.
        plain: whether batch.py may displace instructions with this code, so that they get a mark
            other than 0.
    """

    known: set[int]
    read: U16
    written: U16
    unknown: Bools
    counted: Bools
    plain: Bools

    def learn(self, codes: I64) -> None:
        """Fill in the effects of instructions with these codes of iced-x86."""
        for code in set(distinct(codes).tolist()) - self.known:
            self.known.add(code)
            mnemonic = OpCodeInfo(code).mnemonic
            counted, count = flags.counts(code)
            self.counted[code] = counted and count < 0
            effect = flags.effect_of(mnemonic)
            if counted:
                effect = (0, flags.ARITHMETIC if count else 0)
            self.unknown[code] = effect is None
            self.read[code], self.written[code] = effect or (0, 0)
            refused = mnemonic in refuse.BY_MNEMONIC or mnemonic in _ALONE
            self.plain[code] = not refused and code not in _x86.unknown()


@cache
def _effects() -> _Effects:
    bools = [np.zeros(_MOST_CODES, np.bool_) for _ in range(3)]
    read, written = (np.zeros(_MOST_CODES, np.uint16) for _ in range(2))
    return _Effects(set(), read, written, *bools)


def scan(pieces: Sequence[tuple[int, bytes]]) -> Scanned:
    sizes, codes, ends = list[int](), list[int](), [0]
    for address, code in pieces:
        some, kinds = _x86.sizes_and_codes(code, address)
        sizes += some
        codes += kinds
        ends.append(len(sizes))
    if not sizes:
        return Scanned(NO_COLUMNS, np.array(ends))
    size, kind, bounds = np.array(sizes), np.array(codes), np.array(ends)
    piece = np.repeat(np.arange(len(pieces)), np.diff(bounds))
    after = np.cumsum(size)
    first = np.concatenate([[0], after])[bounds[:-1]]
    start = np.array([address for address, _ in pieces], np.uint64)
    address = start[piece] + (after - size - first[piece]).astype(np.uint64)
    kept = ~_left_out(kind, piece)
    bounds = np.concatenate([[0], np.cumsum(kept)])[bounds]
    columns = columns_in(pieces, bounds, address[kept], size[kept])
    columns.marks[:] = _marks(columns, kind[kept], piece[kept])
    return Scanned(columns, bounds)


@cache
def _never_falls_through() -> Bools:
    """Return a mask of iced-x86's codes: those of the instructions after which control never
    continues with the next instruction (returns, jumps, ud2)."""
    mask = np.zeros(_MOST_CODES, np.bool_)
    mask[sorted(_x86.never_falls_through())] = True
    return mask


def _left_out(codes: I64, piece: I64) -> Bools:
    """Return a mask of the breakpoints that decode() leaves out: those directly after an
    instruction that never falls through (a return, a jump, ud2), and those directly after such a
    breakpoint.

    Args:
        codes: iced-x86's code of each instruction.
        piece: for each instruction, the index of the piece of code (in scan()'s `pieces`) that
            contains the instruction.
    """
    trap = codes == _x86.INT3
    at = np.arange(len(codes))
    before = np.maximum.accumulate(np.where(trap, -1, at))  # the last one that is no breakpoint
    ends = _never_falls_through()[codes[before]]
    left_out: Bools = trap & (before >= 0) & (piece[before] == piece) & ends
    return left_out


def _marks(found: Columns, codes: I64, piece: I64) -> U16:
    code, rows = found.code, np.arange(len(found))
    at = np.zeros(len(found), np.int64)
    wide, narrow = np.zeros(len(found), np.bool_), np.zeros(len(found), np.bool_)
    for _ in range(WIDTH - 4):
        byte_at = code[rows, at]
        prefix = _LEGACY[byte_at]
        if not prefix.any():
            break
        wide |= prefix & (byte_at == OPERAND_SIZE)
        narrow |= prefix & (byte_at == ADDRESS_SIZE)
        at += prefix
    first = code[rows, at]
    rex = first & 0xF0 == 0x40
    at += rex
    op = code[rows, at]
    alone = rex & (_LEGACY[op] | (op & 0xF0 == 0x40))  # a REX that is ignored
    vector = ~rex & np.isin(op, (0xC4, 0xC5, 0x62, 0x8F))  # and pop, which has no other 8F
    two_byte = ~vector & (op == 0x0F)
    at += two_byte
    op = np.where(two_byte, code[rows, at], op)
    three_byte = two_byte & ((op == 0x38) | (op == 0x3A))
    at += three_byte
    two_byte &= ~three_byte
    one_byte = ~two_byte & ~three_byte
    has_modrm = three_byte | np.where(two_byte, _MODRM[1][op], _MODRM[0][op])
    modrm_at = at + 1
    modrm = code[rows, np.minimum(modrm_at, WIDTH - 1)]
    alone |= vector | narrow | (has_modrm & (modrm_at >= found.size))
    alone |= np.where(one_byte, _ONE_BYTE_ALONE[op], two_byte & _TWO_BYTE_ALONE[op])
    effects = _effects()
    effects.learn(codes)
    alone |= ~effects.plain[codes]
    last = code[rows, found.size - 1]
    stays = effects.counted[codes] & (last & flags.COUNT_MASK == 0)
    read, unknown = effects.read[codes], effects.unknown[codes]
    written = np.where(stays, 0, effects.written[codes])

    relative = has_modrm & (modrm & 0xC7 == RIP_RELATIVE)
    call, near_jump = one_byte & (op == 0xE8), one_byte & (op == 0xE9)
    jump = near_jump | (one_byte & (op == 0xEB))
    near_branch = two_byte & (op & 0xF0 == 0x80)
    branch = near_branch | (one_byte & (op & 0xF0 == 0x70))
    ret = one_byte & ((op == 0xC2) | (op == 0xC3))
    alone |= wide & (call | jump | branch | ret)
    kind = np.select(
        [relative, call, jump, branch, ret], [RELATIVE, CALL, JUMP, BRANCH, RETURN], COPY
    )
    field = np.where(relative, modrm_at + 1, at + 1)
    marks = kind | field << FIELD_SHIFT
    marks |= np.where(branch, (op & 0xF).astype(np.int64) << CONDITION_SHIFT, 0)
    marks |= np.where(call | near_jump | near_branch, NEAR, 0)
    marks |= np.where(_dead(found, piece, read, written, unknown), DEAD, 0)
    return np.where(alone, 0, marks).astype(np.uint16)


def _dead(columns: Columns, piece: I64, read: U16, written: U16, unknown: Bools) -> Bools:
    """Return a mask of the instructions at which the flags that counting changes are dead. Its
    elements are what flags.dead() returns for each instruction.

    Args:
        columns: the instructions.
        piece: for each instruction, the index of the piece of code (in scan()'s `pieces`) that
            contains the instruction.
        read: flags that each instruction reads.
        written: flags that each instruction writes.
        unknown: whether each instruction's effect on flags is not known.
    """
    count = len(columns)
    end = columns.after
    live = np.full(count, COUNTING_CLOBBERS, np.uint16)
    dead = np.zeros(count, np.bool_)
    active = np.arange(count)
    for step in range(LOOK_AHEAD):
        active = active[active + step < count]
        there = active + step
        seen = (piece[there] == piece[active]) & (end[there] - end[active] <= FOLLOWING)
        seen &= ~unknown[there] & (read[there] & live[active] == 0)
        active, there = active[seen], there[seen]
        live[active] &= ~written[there]
        decided = live[active] == 0
        dead[active[decided]] = True
        active = active[~decided]
    return dead


def counts_freely(sites: Columns, following: Sequence[bytes]) -> Bools:
    free: Bools = sites.marks & DEAD != 0
    for k in np.flatnonzero(sites.marks == 0).tolist():
        code = sites.code[k, : sites.size[k]].tobytes()
        free[k] = flags.dead(code, following[k], int(sites.address[k]), COUNTING_CLOBBERS)
    return free


def leads(columns: Columns) -> Leads:
    kind = columns.marks & KIND
    falls = (kind == COPY) | (kind == RELATIVE) | (kind == BRANCH)
    direct = np.flatnonzero((kind == JUMP) | (kind == BRANCH) | (kind == CALL))
    target = np.zeros(len(columns), np.uint64)
    target[direct] = columns.after[direct] + distances(columns.take(direct)).view(np.uint64)
    return Leads(falls, target, _FLOWS[kind])


def distances(columns: Columns) -> I64:
    """Return the branch distance or rip-relative displacement of each instruction, as a signed
    number of bytes from the instruction's end. Each instruction must have one of the two, and a
    mark other than 0."""
    field = (columns.marks >> FIELD_SHIFT & 15).astype(np.int64)
    rows = np.arange(len(columns))
    four = np.zeros((len(columns), 4), np.uint8)
    for byte in range(4):
        four[:, byte] = columns.code[rows, np.minimum(field + byte, WIDTH - 1)]
    far = four.view("<i4").reshape(-1).astype(np.int64)
    short = (columns.marks & KIND != RELATIVE) & (columns.marks & NEAR == 0)
    return np.where(short, four[:, 0].astype(np.int8), far)
