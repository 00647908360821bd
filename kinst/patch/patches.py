"""Patches, and pieces of code, as columns: sequences of plain values that take a few bytes for
each of them instead of several objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from kinst.core.columns import I64, U64, ragged


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes at an address of kernel text: what kinst writes and what was there."""

    address: int
    new: bytes
    old: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Patches(Sequence[Patch]):
    """Patches in an order.  new, old: the bytes of all, one behind the other; start: where those of
    each begin, with one number more at the end."""

    address: U64
    start: I64
    new: bytes
    old: bytes

    @property
    def size(self) -> I64:
        """Bytes of each."""
        return np.diff(self.start)

    def __len__(self) -> int:
        return len(self.address)

    @overload
    def __getitem__(self, index: int) -> Patch: ...
    @overload
    def __getitem__(self, index: slice) -> Patches: ...
    def __getitem__(self, index: int | slice) -> Patch | Patches:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        at = range(len(self))[index]
        low, high = int(self.start[at]), int(self.start[at + 1])
        return Patch(int(self.address[at]), self.new[low:high], self.old[low:high])

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
        """Some of them, by their indexes."""
        size = self.size[which]
        bytes_of = ragged(self.start[:-1][which], size)
        return Patches(
            self.address[which],
            np.concatenate([np.zeros(1, np.int64), np.cumsum(size)]),
            np.frombuffer(self.new, np.uint8)[bytes_of].tobytes(),
            np.frombuffer(self.old, np.uint8)[bytes_of].tobytes(),
        )


def patches_of(patches: Iterable[Patch]) -> Patches:
    """Patches as columns."""
    rows = [(p.address, p.new, p.old) for p in patches]
    return patch_columns([a for a, _, _ in rows], [n for _, n, _ in rows], [o for _, _, o in rows])


def patch_columns(address: Sequence[int], new: Sequence[bytes], old: Sequence[bytes]) -> Patches:
    """The same from what patches are made of; new and old bytes of a patch are equally many."""
    start = np.zeros(len(address) + 1, np.int64)
    np.cumsum([len(one) for one in new], out=start[1:])
    return Patches(np.array(address, np.uint64), start, b"".join(new), b"".join(old))


NO_PATCHES = patches_of(())


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(Sequence[tuple[int, bytes]]):
    """Code in one block of memory, as pieces: (address, bytes) each.

    address: of the block.  start: of each piece, from there.  Between pieces may be bytes that
    belong to none."""

    address: int
    block: bytes
    start: I64
    size: I64

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, index: int) -> tuple[int, bytes]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, bytes]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, bytes] | Sequence[tuple[int, bytes]]:
        if isinstance(index, slice):
            return Pieces(self.address, self.block, self.start[index], self.size[index])
        at = int(self.start[index])
        return self.address + at, self.block[at : at + int(self.size[index])]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for at, size in zip(self.start.tolist(), self.size.tolist(), strict=True):
            yield self.address + at, self.block[at : at + size]


def pieces_of(pieces: Sequence[tuple[int, bytes]]) -> Pieces:
    """Pieces, in the order of their addresses, as columns."""
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
