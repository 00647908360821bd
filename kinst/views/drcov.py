"""drcov, DynamoRIO's format for coverage, version 2, which disassemblers show (Lighthouse and
others): a table of modules as text, then the code that ran, as 8 bytes for each piece.

Tested by tests/views/test_coverage.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kinst.core.source import TracedSite

_PIECE = struct.Struct("<IHH")  # offset in its module, bytes, number of the module
_LONGEST = 0xFFFF


@dataclass(frozen=True, slots=True)
class DrcovModule:
    """A module.

    Attributes:
        low: first address of its code, as a disassembler has it if it does not move the file.
        high: address after its code.
        path: of its file.
    """

    low: int
    high: int
    path: str


def drcov(modules: Sequence[tuple[DrcovModule, Sequence[tuple[int, int]]]]) -> bytes:
    """Return the file's bytes.

    Args:
        modules: each with the pieces of it that ran: addresses, low to high (exclusive).
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
    """Return the code that ran, low to high, by module; adjacent instructions with one count are
    joined.

    Args:
        sites: by address.
        counts: by address.
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
