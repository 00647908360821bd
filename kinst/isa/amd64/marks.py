"""What is marked of many amd64 instructions when they are decoded, for batch.py.

Marked are those that are displaced in one of a few plain ways; what is refused, what has a
prefix that changes how far it reaches, and whatever is rare is left to the methods for one
instruction.  Source: Intel SDM volume 2, chapter 2 and appendix A.

Tested by tests/isa/test_marks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

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
)
from kinst.isa.amd64 import flags
from kinst.isa.amd64.decode import bare, whole
from kinst.isa.amd64.flags import COUNTING_CLOBBERS, LOOK_AHEAD
from kinst.isa.amd64.parse import ADDRESS_SIZE, LEGACY, MODRM, OPERAND_SIZE, RIP_RELATIVE
from kinst.isa.amd64.refuse import BY_MNEMONIC

# The kinds, in the lowest bits of a mark.
COPY, RELATIVE, JUMP, BRANCH, CALL, RETURN = range(1, 7)
KIND = 7
_FLOWS: U8 = np.zeros(KIND + 1, np.uint8)  # kinds as FLOW_KINDS has them
_FLOWS[[JUMP, BRANCH, CALL, RETURN]] = [
    FLOW_KINDS.index(name) for name in ("jump", "branch", "call", "return")
]
DEAD = 1 << 3  # the flags that counting changes are overwritten before they are read
NEAR = 1 << 4  # of a branch: four bytes of distance, not one
FIELD_SHIFT = 8  # where the distance, or the displacement, is in its bytes; four bits
CONDITION_SHIFT = 12  # of a branch

# What is not marked, whatever it is made of.
_ALONE = frozenset(("sti", "ud2", *BY_MNEMONIC))

_ONE_BYTE_ALONE = np.zeros(256, np.bool_)
_ONE_BYTE_ALONE[[*range(0xE0, 0xE4), 0xCA, 0xCB, 0xCC, 0xCF, 0xF1, 0x8E, 0xFF]] = True
_TWO_BYTE_ALONE = np.zeros(256, np.bool_)
_TWO_BYTE_ALONE[[0x20, 0x21, 0x22, 0x23, 0xA9]] = True
_LEGACY = np.isin(np.arange(256), sorted(LEGACY))
_MODRM = np.stack([np.isin(np.arange(256), sorted(ops)) for ops in MODRM])


class _Words:
    """Numbers for what instructions are called, and columns of what their names say."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._rows: list[tuple[int, int, bool, bool]] = []

    def number(self, mnemonic: str, operands: str) -> int:
        """The number of a name: of those whose effect hangs on an operand, with that."""
        name = bare(mnemonic) if " " in mnemonic else mnemonic
        effect, plain = flags.effect_of(name), name not in _ALONE
        if effect is None and flags.is_counted(name):
            key = f"{mnemonic} {operands.rpartition(', ')[2]}"
            if key not in self.known:
                self.known[key] = len(self._rows)
                self._rows.append((*flags.shift_effect(operands), False, plain))
            return self.known[key]
        self.known[mnemonic] = len(self._rows)
        self._rows.append((*(effect or (0, 0)), effect is None, plain))
        return self.known[mnemonic]

    def columns(self, names: I64) -> tuple[U16, U16, Bools, Bools]:
        """Of each name: flags read, flags written, whether that is not known; whether it may be
        marked."""
        read, written, unknown, plain = zip(*self._rows, strict=True)
        return (
            np.array(read, np.uint16)[names], np.array(written, np.uint16)[names],
            np.array(unknown, np.bool_)[names], np.array(plain, np.bool_)[names],
        )  # fmt: skip


@cache
def _words() -> _Words:
    return _Words()


def scan(pieces: Sequence[tuple[int, bytes]]) -> Scanned:
    """See Isa.scan."""
    words = _words()
    number, known = words.number, words.known
    addresses, sizes, names, ends = list[int](), list[int](), list[int](), [0]
    for address, code in pieces:
        for where, size, mnemonic, operands in whole(code, address):
            index = known.get(mnemonic)
            names.append(number(mnemonic, operands) if index is None else index)
            sizes.append(size)
            addresses.append(where)
        ends.append(len(sizes))
    bounds = np.array(ends)
    if not sizes:
        return Scanned(NO_COLUMNS, bounds)
    found = columns_in(pieces, bounds, addresses, sizes)
    piece = np.repeat(np.arange(len(pieces)), np.diff(bounds))
    found.marks[:] = _marks(found, np.array(names), piece)
    return Scanned(found, bounds)


def _marks(found: Columns, names: I64, piece: I64) -> U16:
    code, rows = found.code, np.arange(len(found))
    at = np.zeros(len(found), np.int64)
    wide, narrow = np.zeros(len(found), np.bool_), np.zeros(len(found), np.bool_)
    for _ in range(WIDTH - 4):
        here = code[rows, at]
        prefix = _LEGACY[here]
        if not prefix.any():
            break
        wide |= prefix & (here == OPERAND_SIZE)
        narrow |= prefix & (here == ADDRESS_SIZE)
        at += prefix
    first = code[rows, at]
    rex = first & 0xF0 == 0x40
    at += rex
    op = code[rows, at]
    alone = rex & (_LEGACY[op] | (op & 0xF0 == 0x40))  # a REX that is ignored
    vector = ~rex & np.isin(op, (0xC4, 0xC5, 0x62, 0x8F))  # and pop, which has no other 8F
    two = ~vector & (op == 0x0F)
    at += two
    op = np.where(two, code[rows, at], op)
    three = two & ((op == 0x38) | (op == 0x3A))
    at += three
    two &= ~three
    one = ~two & ~three
    has_modrm = three | np.where(two, _MODRM[1][op], _MODRM[0][op])
    modrm_at = at + 1
    modrm = code[rows, np.minimum(modrm_at, WIDTH - 1)]
    alone |= vector | narrow | (has_modrm & (modrm_at >= found.size))
    alone |= np.where(one, _ONE_BYTE_ALONE[op], two & _TWO_BYTE_ALONE[op])
    read, written, unknown, plain = _words().columns(names)
    alone |= ~plain

    relative = has_modrm & (modrm & 0xC7 == RIP_RELATIVE)
    call, near_jump = one & (op == 0xE8), one & (op == 0xE9)
    jump = near_jump | (one & (op == 0xEB))
    near_branch = two & (op & 0xF0 == 0x80)
    branch = near_branch | (one & (op & 0xF0 == 0x70))
    ret = one & ((op == 0xC2) | (op == 0xC3))
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


def _dead(found: Columns, piece: I64, read: U16, written: U16, unknown: Bools) -> Bools:
    """flags.dead() of what counting changes, at each instruction."""
    count = len(found)
    end = found.after
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
    """See Isa.counts_freely."""
    free: Bools = sites.marks & DEAD != 0
    for k in np.flatnonzero(sites.marks == 0).tolist():
        code = sites.code[k, : sites.size[k]].tobytes()
        free[k] = flags.dead(code, following[k], int(sites.address[k]), COUNTING_CLOBBERS)
    return free


def leads(columns: Columns) -> Leads:
    """See Isa.leads."""
    kind = columns.marks & KIND
    falls = (kind == COPY) | (kind == RELATIVE) | (kind == BRANCH)
    direct = np.flatnonzero((kind == JUMP) | (kind == BRANCH) | (kind == CALL))
    target = np.zeros(len(columns), np.uint64)
    target[direct] = columns.after[direct] + distances(columns.take(direct)).view(np.uint64)
    return Leads(falls, target, _FLOWS[kind])


def distances(columns: Columns) -> I64:
    """The number in each instruction that is relative to its end; of those that have one."""
    field = (columns.marks >> FIELD_SHIFT & 15).astype(np.int64)
    rows = np.arange(len(columns))
    four = np.zeros((len(columns), 4), np.uint8)
    for byte in range(4):
        four[:, byte] = columns.code[rows, np.minimum(field + byte, WIDTH - 1)]
    far = four.view("<i4").reshape(-1).astype(np.int64)
    short = (columns.marks & KIND != RELATIVE) & (columns.marks & NEAR == 0)
    return np.where(short, four[:, 0].astype(np.int8), far)
