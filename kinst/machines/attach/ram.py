"""Where the guest's RAM is in QEMU's own address space.

kinst finds RAM by its contents: in exactly one range of the process's writable memory, pages of the
kernel's text that were read through the stub are at the offsets that they have in RAM.

Tested by tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.core.words import PAGE
from kinst.wire.other_process import OtherProcess

LEAST = 64 << 20  # bytes of RAM that a kernel needs at least, more than other mappings of QEMU
_ALIGNED = 2 << 20  # alignment of QEMU's RAM, anywhere in a mapping
FOUR_GB = 1 << 32
# Where QEMU's machines split RAM that does not fit below 4 GB: hw/i386/pc_piix.c (3 GB or 3.5 GB),
# pc_q35.c (2 GB or 2.75 GB).
HIGH_PAGES = tuple(FOUR_GB + at for at in (0, 1 << 20, 16 << 20, 17 << 20, 64 << 20, 200 << 20))
_SPLITS = (0x8000_0000, 0xB000_0000, 0xC000_0000, 0xE000_0000)


@dataclass(frozen=True, slots=True)
class RamRange:
    """RAM at [physical, physical + size), which is at the address `host` in the process."""

    physical: int
    host: int
    size: int


def may_be_split(process: OtherProcess) -> bool:
    """Return whether a range of the process is large enough for RAM that continues at FOUR_GB."""
    return any(end - start > min(_SPLITS) for start, end in process.writable(LEAST))


def find_ram(
    process: OtherProcess, base: int, contents: Mapping[int, bytes], high: Mapping[int, bytes]
) -> tuple[RamRange, ...]:
    """Return all ranges of RAM.

    Args:
        base: physical address where the machine's RAM begins.
        contents: some pages of the kernel, by physical address.
        high: what the stub reads at HIGH_PAGES, where RAM may continue.

    Raises TargetError if no memory matches, or several ranges do.
    """
    layouts = []
    for start, end in process.writable(LEAST):
        layouts += [
            pieces
            for shift in range(0, min(end - start, LEAST), _ALIGNED)
            for pieces in _layouts(base, start + (-start % _ALIGNED) + shift, end)
            if _holds(process, pieces, contents)
        ]
    split = [one for one in layouts if len(one) > 1 and _holds_some(process, one, high)]
    continues = any(any(data) for data in high.values())
    layouts = split if continues else [one for one in layouts if len(one) == 1]
    if not layouts:
        raise TargetError(
            f"no memory of process {process.pid} is the RAM of the machine at this stub",
            "is it another machine's stub, or on another host?",
        )
    if len(layouts) > 1:
        raise TargetError(
            f"{len(layouts)} places in process {process.pid} look like its guest's RAM,"
            f" by {len(contents)} pages of its kernel"
        )
    return layouts[0]


def _layouts(base: int, start: int, end: int) -> Iterator[tuple[RamRange, ...]]:
    """Yield the possible layouts of RAM that is at [start, end) in the process."""
    size = end - start
    whole = RamRange(base, start, size)
    if base + size <= FOUR_GB or base:
        yield (whole,)
    for low in _SPLITS if not base else ():
        if size > low:
            yield (RamRange(0, start, low), RamRange(FOUR_GB, start + low, size - low))


def _holds(process: OtherProcess, pieces: Sequence[RamRange], wanted: Mapping[int, bytes]) -> bool:
    """Return whether the pages are where these ranges of RAM have them."""
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
    """Return whether those pages that are in these ranges are where the ranges have them."""
    end = pieces[-1].physical + pieces[-1].size
    return _holds(process, pieces, {at: data for at, data in wanted.items() if at < end})


def _read(
    process: OtherProcess, pieces: Sequence[RamRange], address: int, size: int = PAGE
) -> bytes:
    return process.read(host_address(pieces, address, size), size)


def host_address(pieces: Sequence[RamRange], address: int, size: int) -> int:
    """Return where physical memory is in the process.  Raises TargetError if it is no RAM."""
    for piece in pieces:
        if piece.physical <= address and address + size <= piece.physical + piece.size:
            return piece.host + address - piece.physical
    raise TargetError(f"physical address {address:#x} is not in the guest's memory")


class Ram:
    """Guest RAM by physical address, while the guest runs or is stopped."""

    def __init__(self, process: OtherProcess, pieces: Sequence[RamRange]) -> None:
        self._process = process
        self._pieces = tuple(pieces)

    def read_physical(self, address: int, size: int) -> bytes:
        return self._process.read(host_address(self._pieces, address, size), size)

    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM.  Code that has run must not be written here, since QEMU keeps its
        translation."""
        self._process.write(host_address(self._pieces, address, len(data)), data)

    def host(self, address: int, size: int) -> int:
        """Return where physical memory is in the process."""
        return host_address(self._pieces, address, size)
