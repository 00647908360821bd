"""Writer of drcov, DynamoRIO's coverage format, version 2, which extensions of disassemblers (such
as Lighthouse) read.

A file has a table of modules as text, followed by 8 bytes for each range of code that ran.

Tested by tests/views/test_coverage.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kinst.core.dataclass import dataclass
from kinst.core.source import TracedSite

_PIECE = struct.Struct("<IHH")  # offset in its module, bytes, number of the module
_LONGEST = 0xFFFF


@dataclass(frozen=True, slots=True)
class DrcovModule:
    """An entry of a drcov file's module table: the kernel or one of its modules.

    Attributes:
        low: linked address of its first byte of code, which is the address that a disassembler
            shows.
        high: linked address after its last byte of code.
        path: path of its ELF file.
    """

    low: int
    high: int
    path: str


def drcov(modules: Sequence[tuple[DrcovModule, Sequence[tuple[int, int]]]]) -> bytes:
    """Return the bytes of a drcov file.

    Args:
        modules: each module with the ranges of linked addresses in it that ran, as (low, high),
            high exclusive.
    """
    rows = [
        f"{k}, {one.low:#018x}, {one.high:#018x}, {0:#018x}, {0:#010x}, {0:#010x}, {one.path}\n"
        for k, (one, _) in enumerate(modules)
    ]
    pieces = [
        _PIECE.pack(at - one.low, min(_LONGEST, high - at), k)
        for k, (one, ran) in enumerate(modules)
        for low, high in ran
        for at in range(low, high, _LONGEST)
    ]
    head = (
        "DRCOV VERSION: 2\nDRCOV FLAVOR: drcov\n"
        f"Module Table: version 2, count {len(modules)}\n"
        "Columns: id, base, end, entry, checksum, timestamp, path\n"
        f"{''.join(rows)}BB Table: {len(pieces)} bbs\n"
    )
    return head.encode("utf-8", "surrogateescape") + b"".join(pieces)


def pieces_that_ran(
    sites: Sequence[TracedSite], counts: Mapping[int, int]
) -> dict[str, list[tuple[int, int]]]:
    """Return the address ranges that ran, as (low, high) with high exclusive, by module. Adjacent
    instructions with equal counts are joined to one range.

    Args:
        sites: planted and refused sites, in address order.
        counts: how often each planted site ran, by address.
    """
    ran: dict[str, list[tuple[int, int]]] = {}
    for before, site in pairwise([None, *sites]):
        assert site is not None
        count = counts.get(site.address)
        if not count:
            continue
        pieces = ran.setdefault(site.function.module, [])
        end = site.address + site.size
        if (
            before is not None and pieces and pieces[-1][1] == site.address
            and counts.get(before.address) == count
        ):  # fmt: skip
            pieces[-1] = pieces[-1][0], end
        else:
            pieces.append((site.address, end))
    return ran
