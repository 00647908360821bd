"""Sequences of patches and of pieces of code, stored as numpy columns. Columns take a few bytes for
each value, and Python objects would take many more."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

import numpy as np

from kinst.core.columns import I64, U64, ragged
from kinst.core.dataclass import dataclass

R = TypeVar("R", covariant=True)


class ColumnSequence(Sequence[R]):
    """A sequence whose values are stored as numpy columns and are made when they are read."""

    __slots__ = ()

    @abstractmethod
    def row(self, index: int) -> R:
        """Return the value at an index that is not negative."""

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[R]: ...
    def __getitem__(self, index: int | slice) -> R | Sequence[R]:
        rows = range(len(self))[index]
        return self.row(rows) if isinstance(rows, int) else [self.row(k) for k in rows]

    def __iter__(self) -> Iterator[R]:
        return map(self.row, range(len(self)))


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of kernel text.

    Attributes:
        address: address of the first byte.
        new: the bytes that kinst writes.
        old: the bytes that were there before, as many as `new` has.
    """

    address: int
    new: bytes
    old: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Patches(ColumnSequence[Patch]):
    """A sequence of patches, stored as columns.

    Attributes:
        address: address of each patch.
        start: offset at which the bytes of each patch begin in `new` and in `old`; as a last
            element, the length of `new`.
        new: the new bytes of all patches, joined.
        old: the old bytes of all patches, joined.
    """

    address: U64
    start: I64
    new: bytes
    old: bytes

    @property
    def size(self) -> I64:
        """Size of each patch in bytes."""
        return np.diff(self.start)

    def __len__(self) -> int:
        return len(self.address)

    def row(self, index: int) -> Patch:
        low, high = int(self.start[index]), int(self.start[index + 1])
        return Patch(int(self.address[index]), self.new[low:high], self.old[low:high])

    def __iter__(self) -> Iterator[Patch]:
        bounds = self.start.tolist()
        for address, low, high in zip(self.address.tolist(), bounds, bounds[1:], strict=False):
            yield Patch(address, self.new[low:high], self.old[low:high])

    def __add__(self, other: Patches) -> Patches:
        return Patches(
            np.concatenate([self.address, other.address]),
            np.concatenate([self.start, other.start[1:] + self.start[-1]]),
            self.new + other.new,
            self.old + other.old,
        )

    def take(self, which: I64) -> Patches:
        """Return the patches with these indexes, in this order."""
        size = self.size[which]
        bytes_of = ragged(self.start[:-1][which], size)
        return Patches(
            self.address[which],
            np.concatenate([np.zeros(1, np.int64), np.cumsum(size)]),
            np.frombuffer(self.new, np.uint8)[bytes_of].tobytes(),
            np.frombuffer(self.old, np.uint8)[bytes_of].tobytes(),
        )


def patches_of(patches: Iterable[Patch]) -> Patches:
    """Convert patches to numpy columns."""
    rows = [(p.address, p.new, p.old) for p in patches]
    return patch_columns([a for a, _, _ in rows], [n for _, n, _ in rows], [o for _, _, o in rows])


def patch_columns(address: Sequence[int], new: Sequence[bytes], old: Sequence[bytes]) -> Patches:
    """Make Patches of columns: the address, the new bytes and the old bytes of each patch."""
    start = np.zeros(len(address) + 1, np.int64)
    np.cumsum([len(one) for one in new], out=start[1:])
    return Patches(np.array(address, np.uint64), start, b"".join(new), b"".join(old))


NO_PATCHES = patches_of(())


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(ColumnSequence[tuple[int, bytes]]):
    """A sequence of (address, bytes) of pieces of code in one block of memory. The block may have
    bytes between the pieces.

    Attributes:
        address: address of the block.
        block: bytes of the block.
        start: offset of each piece in the block.
        size: size of each piece in bytes.
    """

    address: int
    block: bytes
    start: I64
    size: I64

    def __len__(self) -> int:
        return len(self.start)

    def row(self, index: int) -> tuple[int, bytes]:
        at = int(self.start[index])
        return self.address + at, self.block[at : at + int(self.size[index])]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for at, size in zip(self.start.tolist(), self.size.tolist(), strict=True):
            yield self.address + at, self.block[at : at + size]


def pieces_of(pieces: Sequence[tuple[int, bytes]]) -> Pieces:
    """Convert pieces of code to numpy columns.

    Args:
        pieces: (address, bytes) of each piece, in address order.
    """
    if not pieces:
        return NO_PIECES
    address = pieces[0][0]
    block = bytearray(pieces[-1][0] + len(pieces[-1][1]) - address)
    for at, code in pieces:
        block[at - address : at - address + len(code)] = code
    return Pieces(
        address, bytes(block),
        np.array([at - address for at, _ in pieces], np.int64),
        np.array([len(code) for _, code in pieces], np.int64),
    )  # fmt: skip


NO_PIECES = Pieces(0, b"", np.zeros(0, np.int64), np.zeros(0, np.int64))
