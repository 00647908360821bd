"""Code of many amd64 trampolines, made together with numpy, for probes that only count or only make
one call. The code of each trampoline is byte for byte what trampoline.py makes.

    [nop]  if unplanting must be able to write a jump over the first instruction (Onward.head).
           Before an inc there is no nop, since an inc is long enough for the jump
    [push rax; lahf; seto al]  if flags are live; in user programs, rsp is first moved below the red
           zone
    inc gs:[...]  for each counter
    [add al, 127; sahf; pop rax]  if flags are live
    [a frame of saved registers; mov rdi, argument; call]  if the probe makes a call
    the displaced instruction, with a new distance or displacement
    [jmp]  back, if control can run off the end and the next trampoline is elsewhere

The size of a trampoline does not depend on its address, because all branches in it have 32-bit
distances. A trampoline may come to lie anywhere in the batch's memory. If a distance would be too
large for 32 bits at some of these addresses, trampoline.py makes the trampoline.

Tested by tests/isa/test_batches.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinst.core.columns import (
    I32,
    I64,
    U8,
    U64,
    WIDTH,
    Bools,
    Columns,
    MadeTrampolines,
    TrampolineBatch,
    ragged,
)
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64.inline import flag_saving
from kinst.isa.amd64.marks import (
    BRANCH,
    CALL,
    CONDITION_SHIFT,
    COPY,
    DEAD,
    FIELD_SHIFT,
    JUMP,
    KIND,
    RELATIVE,
    distances,
    leads,
)
from kinst.isa.amd64.registers import PC_SLOT
from kinst.isa.amd64.trampoline import COUNT_OPCODE, call_frame

_COUNT_SIZE = len(e.increment_gs(0))
_BRANCH_SIZE, _PUSH_SIZE = len(e.branch(0, 0, 0)), len(e.push_value(0))
_LOAD = e.load_value(e.RDI, -1)[:-4]  # the argument follows: a negative number of 32 bits
_MARGIN = 1 << 12  # more than the bytes of any trampoline
_REACH = 1 << 31


class _Frame:
    """Code of a trampoline around the call instruction that calls a probe's clauses.

    Attributes:
        before: code that makes the frame of saved registers, and the start of the instruction that
            loads the call's argument. The argument itself (4 bytes) and the call instruction
            follow; they differ from trampoline to trampoline.
        after: code that removes the frame.
        size: bytes of all this code, with the argument and the call instruction.
    """

    def __init__(self, slots: frozenset[int]) -> None:
        before, self.after = call_frame(slots, 0)
        self.before = before + _LOAD
        self.size = len(self.before) + 4 + e.JUMP_SIZE + len(self.after)


class _Shape:
    """Sizes in bytes of the parts of a batch's trampolines: arrays with an element for each
    trampoline."""

    def __init__(self, batch: TrampolineBatch, red_zone: bool) -> None:
        save, restore = flag_saving(red_zone)
        marks = batch.columns.marks
        self.kind = marks & KIND
        count = batch.count.astype(np.int64)
        self.saved = (count > 0) & (marks & DEAD == 0)
        self.nop = batch.head & (self.saved | (count == 0))
        self.counts_at = self.nop * len(e.NOP5) + self.saved * len(save)
        self.work = self.counts_at + count * _COUNT_SIZE + self.saved * len(restore)
        self.frames = [_Frame(slots) for _, slots in batch.calls]
        if self.frames:
            called = np.array([frame.size for frame in self.frames])
            self.work += np.where(batch.call >= 0, called[batch.call], 0)
        sizes = np.zeros(KIND + 1, np.int64)
        sizes[[JUMP, BRANCH, CALL]] = e.JUMP_SIZE, _BRANCH_SIZE, _PUSH_SIZE + e.JUMP_SIZE
        self.copied = sizes[self.kind] == 0
        self.displaced = np.where(self.copied, batch.columns.size, sizes[self.kind])
        on = (self.kind == COPY) | (self.kind == RELATIVE) | (self.kind == BRANCH)
        self.back = on & ~batch.falls_into
        self.size = self.work + self.displaced + self.back * e.JUMP_SIZE


def trampoline_sizes(batch: TrampolineBatch, red_zone: bool = False) -> I32:
    shape, columns = _Shape(batch, red_zone), batch.columns
    after = columns.after
    fits = _reached(after, batch)
    relative = shape.kind == RELATIVE
    direct = np.isin(shape.kind, (JUMP, BRANCH, CALL))
    target = np.where(direct, leads(columns).target, after)
    target = np.where(relative, after + distances(columns).view(np.uint64), target)
    fits &= _reached(target, batch)
    fits &= (shape.kind != CALL) | _fits32(after.view(np.int64))
    fits &= _fits32(batch.counters).all(axis=1)
    calling = batch.call >= 0
    if calling.any():
        argument = batch.argument.view(np.int64)
        # Elsewhere, the frame or the code that loads the argument has another size.
        alike = np.array([PC_SLOT not in slots for _, slots in batch.calls])[batch.call]
        entry = np.array([entry for entry, _ in batch.calls], np.uint64)[batch.call]
        fits &= ~calling | (alike & (argument < 0) & (argument >= -_REACH))
        fits &= ~calling | (_reached(entry, batch) & (not red_zone))
    fits &= batch.high - batch.low < _REACH
    return np.where(fits, shape.size, -1).astype(np.int32)


def _fits32(value: I64) -> Bools:
    return (value >= -_REACH) & (value < _REACH)


def _reached(target: U64, batch: TrampolineBatch) -> Bools:
    """Return a mask of the addresses in `target` that an instruction anywhere in the batch's memory
    reaches by a 32-bit distance."""
    low = (target - np.uint64(batch.low)).view(np.int64)
    high = (target - np.uint64(batch.high)).view(np.int64)
    near = _REACH - _MARGIN
    return (np.abs(low) < near) & (np.abs(high) < near)


def trampolines(
    batch: TrampolineBatch, to: U64, target: U64, red_zone: bool = False
) -> MadeTrampolines:
    shape, columns = _Shape(batch, red_zone), batch.columns
    save, restore = flag_saving(red_zone)
    start = np.cumsum(shape.size) - shape.size
    out = np.zeros(int(shape.size.sum()), np.uint8)
    _put(out, start[shape.nop], e.NOP5)
    nop = shape.nop * len(e.NOP5)
    _put(out, (start + nop)[shape.saved], save)
    for column in range(batch.counters.shape[1]):
        there = batch.count > column
        at = (start + shape.counts_at)[there] + column * _COUNT_SIZE
        _put(out, at, COUNT_OPCODE)
        _put32(out, at + len(COUNT_OPCODE), batch.counters[there, column])
    displaced = start + shape.work
    _put(out, (displaced - len(restore))[shape.saved], restore)
    for k, ((entry, _), frame) in enumerate(zip(batch.calls, shape.frames, strict=True)):
        rows = np.flatnonzero(batch.call == k)
        at = (start + nop)[rows]
        _put(out, at, frame.before)
        _put32(out, at + len(frame.before), batch.argument[rows].view(np.int64))
        call = at + len(frame.before) + 4
        _put(out, call, b"\xe8")
        end = to[rows] + (call + e.JUMP_SIZE - start[rows]).view(np.uint64)
        _put32(out, call + 1, (np.uint64(entry) - end).view(np.int64))
        _put(out, call + e.JUMP_SIZE, frame.after)

    def aimed(which: Bools, at: I64, to_address: U64) -> None:
        """Write the distances of branches into `out`, the code of all trampolines. A distance has 4
        bytes, and counts from the address after these bytes.

        Args:
            which: mask of the trampolines that have this branch.
            at: offset of the 4 bytes in `out`, for each trampoline.
            to_address: address that the branch leads to, for each trampoline.
        """
        here = to + (at - start).view(np.uint64) + np.uint64(4)
        _put32(out, at[which], (to_address - here)[which].view(np.int64))

    size = columns.size.astype(np.int64)
    rows = np.flatnonzero(shape.copied)
    of_code = ragged(rows * columns.code.shape[1], size[rows])
    out[ragged(displaced[rows], size[rows])] = columns.code.reshape(-1)[of_code]
    after, relative = columns.after, shape.kind == RELATIVE
    meant = after[relative] + distances(columns.take(relative)).view(np.uint64)
    field = (columns.marks >> FIELD_SHIFT & 15).astype(np.int64)
    end = to[relative] + (shape.work + shape.displaced)[relative].view(np.uint64)
    _put32(out, (displaced + field)[relative], (meant - end).view(np.int64))

    jump, branch, call = (shape.kind == kind for kind in (JUMP, BRANCH, CALL))
    _put(out, displaced[jump], b"\xe9")
    aimed(jump, displaced + 1, target)
    _put(out, displaced[branch], b"\x0f")
    out[displaced[branch] + 1] = 0x80 | (columns.marks[branch] >> CONDITION_SHIFT)
    aimed(branch, displaced + 2, target)
    _put(out, displaced[call], b"\x68")
    _put32(out, displaced[call] + 1, after[call].view(np.int64))
    _put(out, displaced[call] + _PUSH_SIZE, b"\xe9")
    aimed(call, displaced + _PUSH_SIZE + 1, target)
    back = displaced + shape.displaced
    _put(out, back[shape.back], b"\xe9")
    aimed(shape.back, back + 1, after)
    return MadeTrampolines(out, np.where(shape.copied, shape.work, -1).astype(np.int32))


def stubs(
    at: int, counters: I64, to: U64, free: Bools, red_zone: bool = False
) -> tuple[U8, I64] | None:
    saved = ~free
    save, restore = flag_saving(red_zone)
    size = _COUNT_SIZE + e.JUMP_SIZE + saved * (len(save) + len(restore))
    start = np.cumsum(size) - size
    out = np.zeros(int(size.sum()), np.uint8)
    _put(out, start[saved], save)
    count = start + saved * len(save)
    _put(out, count, COUNT_OPCODE)
    _put32(out, count + len(COUNT_OPCODE), counters)
    jump = start + size - e.JUMP_SIZE
    _put(out, (jump - len(restore))[saved], restore)
    _put(out, jump, b"\xe9")
    ends = np.uint64(at) + (start + size).astype(np.uint64)
    distance = (to - ends).view(np.int64)
    _put32(out, jump + 1, distance)
    return (out, size) if (_fits32(distance) & _fits32(counters)).all() else None


def jump_patches(columns: Columns, to: U64) -> tuple[Bools, U8]:
    distance = (to - columns.address - np.uint64(e.JUMP_SIZE)).view(np.int64)
    reaches = (columns.size >= e.JUMP_SIZE) & _fits32(distance)
    rows = np.full(columns.code.shape, e.INT3[0], np.uint8)
    rows[:, 0] = 0xE9
    _put32(rows.reshape(-1), np.arange(len(columns)) * WIDTH + 1, distance)
    rows[np.arange(WIDTH) >= columns.size[:, None]] = 0
    return reaches, rows


def run_patches(
    start: U64, at: I64, code: bytes, to: U64, dead: Sequence[int]
) -> tuple[Bools, bytes]:
    distance = (to - start - np.uint64(e.JUMP_SIZE)).view(np.int64)
    reaches = _fits32(distance) & (np.diff(at) >= e.JUMP_SIZE)
    rows = np.full(len(code), e.INT3[0], np.uint8)
    _put(rows, at[:-1][reaches], b"\xe9")
    _put32(rows, at[:-1][reaches] + 1, distance[reaches])
    return reaches, rows.tobytes()


def _put(out: U8, at: I64, code: bytes) -> None:
    """Write the same bytes to `out` at each of many offsets."""
    for offset, byte in enumerate(code):
        out[at + offset] = byte


def _put32(out: U8, at: I64, value: I64) -> None:
    """Write 32-bit numbers to `out`: value[i] at offset at[i]."""
    for offset in range(4):
        out[at + offset] = value >> 8 * offset & 0xFF
