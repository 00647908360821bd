"""Where QEMU has the guest's RAM in its own address space.

RAM is looked for by its contents: pages around the kernel's text, read through the stub, must be
where RAM would have them in one range of the process' writable memory, and in no other.

Tested by tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.core.words import PAGE
from kinst.wire.other_process import OtherProcess

LEAST = 64 << 20  # bytes of RAM that a kernel needs, and more than other memory of QEMU's has
_ALIGNED = 2 << 20  # QEMU's RAM begins at such a multiple, wherever that is in a mapping
FOUR_GB = 1 << 32
# Where QEMU's machines split RAM that does not fit below 4 GB: hw/i386/pc_piix.c (3 GB or 3.5 GB),
# pc_q35.c (2 GB or 2.75 GB).
HIGH_PAGES = tuple(FOUR_GB + at for at in (0, 1 << 20, 16 << 20, 17 << 20, 64 << 20, 200 << 20))
_SPLITS = (0x8000_0000, 0xB000_0000, 0xC000_0000, 0xE000_0000)


@dataclass(frozen=True, slots=True)
class RamRange:
    """RAM at [physical, physical + size) is at `host` in the process."""

    physical: int
    host: int
    size: int


def may_be_split(process: OtherProcess) -> bool:
    """Whether a range of the process is large enough for RAM that goes on at FOUR_GB."""
    return any(end - start > min(_SPLITS) for start, end in process.writable(LEAST))


def find_ram(
    process: OtherProcess, base: int, contents: Mapping[int, bytes], high: Mapping[int, bytes]
) -> tuple[RamRange, ...]:
    """All of RAM.

    base: where the machine's RAM begins.  contents: some pages of the kernel, by physical address.
    high: what the stub reads of HIGH_PAGES, where RAM may go on.  Raises TargetError where no
    memory matches, or several.
    """
    found = []
    for start, end in process.writable(LEAST):
        found += [
            pieces
            for shift in range(0, min(end - start, LEAST), _ALIGNED)
            for pieces in _layouts(base, start + (-start % _ALIGNED) + shift, end)
            if _holds(process, pieces, contents)
        ]
    split = [one for one in found if len(one) > 1 and _holds_some(process, one, high)]
    goes_on = any(any(data) for data in high.values())
    found = split if goes_on else [one for one in found if len(one) == 1]
    if not found:
        raise TargetError(
            f"no memory of process {process.pid} is the RAM of the machine at this stub",
            "is it another machine's stub, or on another host?",
        )
    if len(found) > 1:
        raise TargetError(
            f"{len(found)} places in process {process.pid} look like its guest's RAM,"
            f" by {len(contents)} pages of its kernel"
        )
    return found[0]


def _layouts(base: int, start: int, end: int) -> Iterator[tuple[RamRange, ...]]:
    """What RAM that begins at `start` in the process could be, up to `end`."""
    size = end - start
    whole = RamRange(base, start, size)
    if base + size <= FOUR_GB or base:
        yield (whole,)
    for low in _SPLITS if not base else ():
        if size > low:
            yield (RamRange(0, start, low), RamRange(FOUR_GB, start + low, size - low))


def _holds(process: OtherProcess, pieces: Sequence[RamRange], wanted: Mapping[int, bytes]) -> bool:
    """Whether the pages are where these pieces of RAM have them."""
    for page, data in wanted.items():
        try:
            if _read(process, pieces, page) != data:
                return False
        except TargetError:
            return False
    return True


def _holds_some(
    process: OtherProcess, pieces: Sequence[RamRange], wanted: Mapping[int, bytes]
) -> bool:
    """As _holds(), of those pages that these pieces have."""
    end = pieces[-1].physical + pieces[-1].size
    return _holds(process, pieces, {at: data for at, data in wanted.items() if at < end})


def _read(
    process: OtherProcess, pieces: Sequence[RamRange], address: int, size: int = PAGE
) -> bytes:
    return process.read(host_address(pieces, address, size), size)


def host_address(pieces: Sequence[RamRange], address: int, size: int) -> int:
    """Where physical memory is in the process.  Raises TargetError outside of RAM."""
    for piece in pieces:
        if piece.physical <= address and address + size <= piece.physical + piece.size:
            return piece.host + address - piece.physical
    raise TargetError(f"physical address {address:#x} is not in the guest's memory")


class Ram:
    """Guest RAM by physical address, while the guest runs or stands."""

    def __init__(self, process: OtherProcess, pieces: Sequence[RamRange]) -> None:
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
