"""Search for the guest's RAM in the address space of its QEMU, and access to it.

kinst finds RAM by its contents. It reads some pages of the kernel's text through the stub. Then it
compares them with each range of QEMU's writable memory, at the offsets that the pages have in RAM.
Exactly one range must match.

Tested by tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kinst.core.dataclass import dataclass
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
    """Contiguous part of guest RAM, and its place in QEMU's address space.

    Attributes:
        physical: guest physical address of its start.
        host: address of its start in the QEMU process.
        size: bytes.
    """

    physical: int
    host: int
    size: int


def may_be_split(process: OtherProcess) -> bool:
    """Return whether a QEMU has a range of memory so large that guest RAM may continue
    above 4 GB.
    """
    return any(end - start > min(_SPLITS) for start, end in process.writable(LEAST))


def find_ram(
    process: OtherProcess, base: int, contents: Mapping[int, bytes], high: Mapping[int, bytes]
) -> tuple[RamRange, ...]:
    """Return the parts of a guest's RAM in the address space of its QEMU.

    Args:
        base: physical address at which the machine's RAM begins.
        contents: some pages of the kernel, by physical address.
        high: the pages at the physical addresses HIGH_PAGES, as the stub reads them. If the guest's
            RAM does not continue above 4 GB, they are all zeros, or there are none.

    Raises TargetError if no memory of the process matches the pages, or if several ranges do.
    """
    layouts = []
    for start, end in process.writable(LEAST):
        layouts += [
            pieces
            for shift in range(0, min(end - start, LEAST), _ALIGNED)
            for pieces in _layouts(base, start + (-start % _ALIGNED) + shift, end)
            if _holds(process, pieces, contents)
        ]
    split = [layout for layout in layouts if len(layout) > 1 and _holds_some(process, layout, high)]
    continues = any(any(data) for data in high.values())
    layouts = split if continues else [layout for layout in layouts if len(layout) == 1]
    if not layouts:
        raise TargetError(
            f"no memory of process {process.pid} is the RAM of the machine at this stub",
            "is it another machine's stub, or on another host?",
        )
    if len(layouts) > 1:
        raise TargetError(
            f"kinst cannot tell which memory of process {process.pid} is the guest's RAM:"
            f" {len(layouts)} mappings have the same {len(contents)} pages of the guest's kernel"
        )
    return layouts[0]


def _layouts(base: int, start: int, end: int) -> Iterator[tuple[RamRange, ...]]:
    """Yield the ways in which RAM may lie in a range [start, end) of QEMU's address space.

    Args:
        base: physical address at which the machine's RAM begins.
    """
    size = end - start
    whole = RamRange(base, start, size)
    if base + size <= FOUR_GB or base:
        yield (whole,)
    for low in _SPLITS if not base else ():
        if size > low:
            yield (RamRange(0, start, low), RamRange(FOUR_GB, start + low, size - low))


def _holds(process: OtherProcess, pieces: Sequence[RamRange], wanted: Mapping[int, bytes]) -> bool:
    """Return whether some pages are in QEMU's memory at the addresses that a layout of RAM gives
    them. The result is False if a page is outside of that layout.

    Args:
        pieces: the layout of RAM.
        wanted: the contents of each page, by its physical address.
    """
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
    """Return whether some pages are in QEMU's memory at the addresses that a layout of RAM gives
    them. Pages above the end of that layout are not compared.

    Args:
        pieces: the layout of RAM.
        wanted: the contents of each page, by its physical address.
    """
    end = pieces[-1].physical + pieces[-1].size
    return _holds(process, pieces, {at: data for at, data in wanted.items() if at < end})


def _read(
    process: OtherProcess, pieces: Sequence[RamRange], address: int, size: int = PAGE
) -> bytes:
    return process.read(host_address(pieces, address, size), size)


def host_address(pieces: Sequence[RamRange], address: int, size: int) -> int:
    """Return the address in QEMU of guest physical memory.

    Raises TargetError if [address, address + size) is not RAM.
    """
    for piece in pieces:
        if piece.physical <= address and address + size <= piece.physical + piece.size:
            return piece.host + address - piece.physical
    raise TargetError(f"physical address {address:#x} is not in the guest's memory")


class Ram:
    """Guest RAM by physical address, read and written in the memory of its QEMU.

    The guest may run or be stopped.
    """

    def __init__(self, process: OtherProcess, pieces: Sequence[RamRange]) -> None:
        self._process = process
        self._pieces = tuple(pieces)

    def read_physical(self, address: int, size: int) -> bytes:
        return self._process.read(host_address(self._pieces, address, size), size)

    def write_physical(self, address: int, data: bytes) -> None:
        """Write guest RAM.

        Code that has been executed must not be written here: QEMU would keep its old translation.
        """
        self._process.write(host_address(self._pieces, address, len(data)), data)

    def host(self, address: int, size: int) -> int:
        """Return the address in QEMU of guest physical memory.  Raises TargetError if it is not
        RAM.
        """
        return host_address(self._pieces, address, size)
