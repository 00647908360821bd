"""Where QEMU has the guest's RAM in its own address space.

RAM is looked for by its contents: pages around the kernel's text, read through the stub, must be
where RAM would have them in one range of the process' writable memory, and in no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.wire.other_process import OtherProcess

LEAST = 64 << 20  # bytes of RAM that a kernel needs, and more than other memory of QEMU's has
_ALIGNED = 2 << 20  # QEMU's RAM begins at such a multiple, wherever that is in a mapping
_PAGE = 4096
_FOUR_GB = 1 << 32
# Where QEMU's machines split RAM that does not fit below 4 GB: hw/i386/pc_piix.c (3 GB or 3.5 GB),
# pc_q35.c (2 GB or 2.75 GB).
_SPLITS = (0x8000_0000, 0xB000_0000, 0xC000_0000, 0xE000_0000)
_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """RAM at [physical, physical + size) is at `host` in the process."""

    physical: int
    host: int
    size: int


def find_ram(
    process: OtherProcess, read: Callable[[int, int], bytes], base: int, pages: Sequence[int]
) -> tuple[Piece, ...]:
    """All of RAM.

    read: physical memory, through the stub.  base: where the machine's RAM begins.  pages: physical
    addresses of pages of the kernel.  Raises TargetError where no memory matches, or several.
    """
    wanted = {page: read(page, _PAGE) for page in pages}
    found = []
    for start, end in process.writable(LEAST):
        found += [
            pieces
            for shift in range(0, min(end - start, LEAST), _ALIGNED)
            for pieces in _layouts(base, start + (-start % _ALIGNED) + shift, end)
            if _holds(process, pieces, wanted)
        ]
    found = [one for one in found if _agree(process, one, read)]
    if not found:
        raise TargetError(
            f"no memory of process {process.pid} is the RAM of the machine at this stub",
            "is it another machine's stub, or on another host?",
        )
    if len({(p.physical, p.host) for one in found for p in one}) > len(found[0]):
        raise TargetError(f"several ranges of process {process.pid} look like its guest's RAM")
    return found[0]


def _layouts(base: int, start: int, end: int) -> Iterator[tuple[Piece, ...]]:
    """What RAM that begins at `start` in the process could be, up to `end`."""
    size = end - start
    whole = Piece(base, start, size)
    if base + size <= _FOUR_GB or base:
        yield (whole,)
    for low in _SPLITS if not base else ():
        if size > low:
            yield (Piece(0, start, low), Piece(_FOUR_GB, start + low, size - low))


def _holds(process: OtherProcess, pieces: Sequence[Piece], wanted: dict[int, bytes]) -> bool:
    """Whether the pages are where these pieces of RAM have them."""
    for page, data in wanted.items():
        try:
            if _read(process, pieces, page) != data:
                return False
        except TargetError:
            return False
    return True


def _agree(
    process: OtherProcess, pieces: Sequence[Piece], read: Callable[[int, int], bytes]
) -> bool:
    """Whether the stub reads the same as the process has, all over several pieces."""
    if len(pieces) == 1:
        return True
    for piece in pieces:
        step = max(piece.size // _SAMPLES, _PAGE) & -_PAGE
        for at in range(piece.physical, piece.physical + min(piece.size, _SAMPLES * step), step):
            if read(at, 64) != _read(process, pieces, at, 64):
                return False
    return True


def _read(process: OtherProcess, pieces: Sequence[Piece], address: int, size: int = _PAGE) -> bytes:
    return process.read(host_address(pieces, address, size), size)


def host_address(pieces: Sequence[Piece], address: int, size: int) -> int:
    """Where physical memory is in the process.  Raises TargetError outside of RAM."""
    for piece in pieces:
        if piece.physical <= address and address + size <= piece.physical + piece.size:
            return piece.host + address - piece.physical
    raise TargetError(f"physical address {address:#x} is not in the guest's memory")


class Ram:
    """Guest RAM by physical address, while the guest runs or stands."""

    def __init__(self, process: OtherProcess, pieces: Sequence[Piece]) -> None:
        self._process = process
        self._pieces = tuple(pieces)

    def read_physical(self, address: int, size: int) -> bytes:
        return self._process.read(host_address(self._pieces, address, size), size)

    def write_physical(self, address: int, data: bytes) -> None:
        """Not for code that may have run: QEMU would go on with its translation."""
        self._process.write(host_address(self._pieces, address, len(data)), data)

    def host(self, address: int, size: int) -> int:
        """Where it is in the process."""
        return host_address(self._pieces, address, size)
