"""Columns: many instructions as numpy arrays, one array for each property.

An object for each of 300,000 instructions would take seconds to make and hundreds of megabytes to
keep; columns take neither.

Tested by tests/isa/test_marks.py, tests/patch/test_patches.py, tests/image/test_string_index.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.instruction import Instruction

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_Number = TypeVar("_Number", bound=np.integer[Any])

WIDTH = 16  # bytes of a row of Columns.code: no instruction of any ISA is longer
FLOW_KINDS = ("next", "landing", "jump", "branch", "call", "return", "indirect", "trap")
FOLLOWING = 48  # bytes after a site that flag liveness may depend on


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Instructions as columns, in the order of their addresses.

    Attributes:
        address: address of each instruction.
        size: bytes of each instruction.
        code: the bytes of each instruction, in a row of WIDTH bytes, with zeros after the
            instruction.
        marks: the mark of each instruction: a number in which Isa.scan() notes facts about the
            instruction. Only the ISA itself knows what its numbers mean. The methods of Isa for
            many instructions answer from the marks, without decoding. 0 if the instruction has no
            mark: only the methods for one instruction can answer for it.
    """

    address: U64
    size: U8
    code: U8
    marks: U16

    def __len__(self) -> int:
        return len(self.address)

    @property
    def after(self) -> U64:
        """The address after each instruction."""
        return self.address + self.size

    def take(self, which: I64 | Bools | slice) -> Columns:
        """Return the columns of the selected instructions, in the order of `which`."""
        return Columns(self.address[which], self.size[which], self.code[which], self.marks[which])


NO_COLUMNS = Columns(
    np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros((0, WIDTH), np.uint8),
    np.zeros(0, np.uint16),
)  # fmt: skip


def columns_of(addresses: Sequence[int], codes: Sequence[bytes]) -> Columns:
    """Return columns of instructions that Isa.scan() has not seen, so all of their marks are 0.

    Args:
        addresses: address of each instruction.
        codes: the bytes of each instruction, in the order of the addresses.
    """
    size = np.fromiter(map(len, codes), np.uint8, len(codes))
    code = np.frombuffer(b"".join([c.ljust(WIDTH, b"\0") for c in codes]), np.uint8)
    return Columns(
        np.array(addresses, np.uint64), size, code.reshape(-1, WIDTH),
        np.zeros(len(codes), np.uint16),
    )  # fmt: skip


def instructions_of(columns: Columns) -> list[Instruction]:
    """Return an Instruction object, without text, for each instruction. Slow: only for a few."""
    rows = zip(columns.address.tolist(), columns.size.tolist(), columns.code, strict=True)
    return [Instruction(address, code[:size].tobytes(), "") for address, size, code in rows]


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """Instructions found in several pieces of code.

    Attributes:
        columns: the instructions of all pieces.
        bounds: index in the columns of each piece's first instruction, then the number of all
            instructions.
    """

    columns: Columns
    bounds: I64


def concatenated(parts: Sequence[Columns]) -> Columns:
    """Return the instructions of all parts as one Columns, part after part."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_COLUMNS
    return Columns(
        np.concatenate([p.address for p in parts]), np.concatenate([p.size for p in parts]),
        np.concatenate([p.code for p in parts]), np.concatenate([p.marks for p in parts]),
    )  # fmt: skip


def columns_in(
    pieces: Sequence[tuple[int, bytes]],
    bounds: I64,
    addresses: Sequence[int] | U64,
    sizes: Sequence[int] | I64,
) -> Columns:
    """Return instructions in several pieces of code as columns without marks.

    Args:
        pieces: (address, bytes) of each piece.
        bounds: index of each piece's first instruction, then the number of all instructions.
        addresses: address of each instruction.
        sizes: bytes of each instruction.
    """
    address, size = np.array(addresses, np.uint64), np.array(sizes, np.uint8)
    lengths = np.array([len(code) for _, code in pieces])
    moved = np.array([at for at, _ in pieces], np.uint64) - (np.cumsum(lengths) - lengths).astype(
        np.uint64
    )
    offset = (address - np.repeat(moved, np.diff(bounds))).astype(np.int64)
    data = np.frombuffer(b"".join([code for _, code in pieces]) + bytes(WIDTH), np.uint8)
    code = np.lib.stride_tricks.sliding_window_view(data, WIDTH)[offset]
    code[np.arange(WIDTH) >= size[:, None]] = 0
    return Columns(address, size, code, np.zeros(len(address), np.uint16))


@dataclass(frozen=True, slots=True, eq=False)
class Leads:
    """Where control goes from instructions, as columns. Elements for instructions whose mark is 0
    (Columns.marks) have no meaning.

    Attributes:
        falls: whether control falls through to the next instruction. False for a call, even though
            the call may return there.
        target: target of a direct jump, branch or call, else 0.
        kind: index in FLOW_KINDS of Flow.kind. An instruction whose Flow.kind is "landing" may have
            the index of "next" here.
    """

    falls: Bools
    target: U64
    kind: U8


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Where control goes from instructions, as columns.

    Attributes:
        kind: index in FLOW_KINDS of Flow.kind.
        falls: whether the next instruction may follow; for a call, after the call returns.
        target: target of a direct jump, branch or call, else 0.
        fault: whether the kernel's exception table expects the instruction to fault.
    """

    kind: U8
    falls: Bools
    target: U64
    fault: Bools

    @property
    def direct(self) -> Bools:
        """Whether each instruction is a direct jump, branch or call, which has a target."""
        targeted: Bools = self.target != 0
        return targeted

    def take(self, which: slice) -> Flows:
        """Return the flows of the selected instructions."""
        return Flows(self.kind[which], self.falls[which], self.target[which], self.fault[which])


def joined_flows(parts: Sequence[Flows]) -> Flows:
    """Return the flows of all parts as one Flows, part after part. There is at least one part."""
    return Flows(
        np.concatenate([p.kind for p in parts]), np.concatenate([p.falls for p in parts]),
        np.concatenate([p.target for p in parts]), np.concatenate([p.fault for p in parts]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TrampolineBatch:
    """Trampolines to make together. Each instruction has a mark of Isa.scan(), and the work of each
    trampoline is only counting, or only one call.

    Attributes:
        columns: the instructions.
        counters: CountBody's offsets, a row for each instruction.
        count: how many offsets of each row are used.
        calls: (CallBody.entry, CallBody.slots) of each call; equal calls are listed once.
        call: for each instruction, the index of its call in `calls`; -1 if it makes no call.
        argument: CallBody's argument for each instruction that makes a call.
        falls_into: whether the next instruction is planted, with its trampoline directly after.
        head: whether the trampoline begins with one instruction that is long enough for a jump
            (Onward.head).
        low: start of the memory in which the trampolines will lie.
        high: end of that memory.
    """

    columns: Columns
    counters: I64
    count: U8
    calls: Sequence[tuple[int, frozenset[int]]]
    call: I64
    argument: U64
    falls_into: Bools
    head: Bools
    low: int
    high: int

    @classmethod
    def without_work(cls, columns: Columns, address: int) -> TrampolineBatch:
        """Return a batch of trampolines that only run their displaced instructions, in memory at an
        address. For such a batch, Isa.trampoline_sizes() tells which instructions can be displaced
        there."""
        count = len(columns)
        none = np.zeros(count, np.bool_)
        return cls(
            columns, np.zeros((count, 0), np.int64), np.zeros(count, np.uint8), (),
            np.full(count, -1), np.zeros(count, np.uint64), none, none, address, address,
        )  # fmt: skip

    def take(self, which: I64 | Bools) -> TrampolineBatch:
        """Return a batch of the trampolines of the selected instructions, in the order of
        `which`."""
        return TrampolineBatch(
            self.columns.take(which), self.counters[which], self.count[which], self.calls,
            self.call[which], self.argument[which], self.falls_into[which], self.head[which],
            self.low, self.high,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class MadeTrampolines:
    """Code of the trampolines of a TrampolineBatch.

    Attributes:
        code: the code of all trampolines, one directly after another.
        original_at: for each trampoline, the offset in it of its displaced instruction, if that
            instruction may fault; -1 if it cannot fault.
    """

    code: U8
    original_at: I32


def distinct(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return the different numbers among `values`, ascending.

    np.unique() does the same, but its first call imports numpy.ma, which takes a hundredth of a
    second.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def stable_order(values: npt.NDArray[np.integer[Any]]) -> I64:
    """Return the indexes that sort numbers of 0 and more; the indexes of equal numbers are
    ascending.

    np.argsort(values, kind="stable") does the same, in four times the time. Here a number and its
    index share a word if they fit, and the words are sorted.
    """
    bits = len(values).bit_length()
    base = values.min() if len(values) else 0
    if len(values) and int(values.max()) - int(base) >> (63 - bits):
        return np.argsort(values, kind="stable")
    words = (values - base).astype(np.int64) << bits | np.arange(len(values))
    words.sort()
    return words & ((1 << bits) - 1)


def ragged(start: I64, size: I64) -> I64:
    """Return the concatenated ranges start[i], start[i] + 1, ..., start[i] + size[i] - 1 for each
    i, in order."""
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    numbers: I64 = np.arange(total) + np.repeat(start - (ends - size), size)
    return numbers


@dataclass(frozen=True, slots=True, eq=False)
class Pairs(Sequence[tuple[int, int]]):
    """Pairs of addresses, as two columns."""

    first: U64
    second: U64

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Pairs:
        """Return pairs of addresses as columns."""
        rows = np.array(list(pairs), np.uint64).reshape(-1, 2)
        return cls(rows[:, 0], rows[:, 1])

    def __len__(self) -> int:
        return len(self.first)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        if isinstance(index, slice):
            return Pairs(self.first[index], self.second[index])
        return int(self.first[index]), int(self.second[index])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.first.tolist(), self.second.tolist(), strict=True)


NO_PAIRS = Pairs(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
