"""Site descriptors: tables in scratch from which a clause reads facts about the probe that fired
(core/layout.py, SITE_*).

Tested by tests/patch/test_ways.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from kinst.core.dataclass import dataclass
from kinst.core.layout import (
    ARGUMENT_HOST,
    ARGUMENT_NONE,
    ARGUMENTS,
    SITE_ARGUMENTS,
    SITE_CFA_OFFSET,
    SITE_CFA_SLOT,
    SITE_EPID,
    SITE_HEADER,
    SITE_PC,
    SITE_PROBE,
    SITE_PROVIDER,
    SITE_RA_OFFSET,
)
from kinst.core.probe import Argument, Probe

NO_SLOT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FrameRule:
    """A rule that finds a function's caller at a site. The rule first computes the CFA (canonical
    frame address) from a register, then finds the return address from the CFA.

    Attributes:
        slot: the register, by its slot in the frame of saved registers.
        offset: the offset from the register's value to the CFA, in bytes.
        return_offset: the offset from the CFA to the return address, in bytes; RA_IN_SLOT if the
            return address is the register's value.
    """

    slot: int
    offset: int
    return_offset: int


class Strings:
    """A growing block of NUL-terminated texts, each stored once."""

    def __init__(self, start: bytes = b"") -> None:
        self._data = bytearray(start)
        self._at: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Store a text unless it is stored already, and return its offset from the start of the
        block."""
        at = self._at.get(text)
        if at is None:
            at = self._at[text] = len(self._data)
            self._data += text.encode() + b"\0"
        return at

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def descriptor_size(constant_aggregations: int) -> int:
    """Return the size in bytes of one site descriptor of a program.

    Args:
        constant_aggregations: number of the program's aggregations with constant keys.
    """
    return SITE_HEADER + 8 * constant_aggregations


class Described(Protocol):
    """A probe that gets a site descriptor."""

    @property
    def probe(self) -> Probe: ...

    @property
    def epid(self) -> int: ...

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """How to find arg0, arg1, ... when the probe fires; empty if it has no arguments."""
        ...


def _row(size: int) -> np.dtype[np.void]:
    """Return the numpy layout of one site descriptor (core/layout.py, SITE_*).

    Args:
        size: size of a descriptor in bytes.
    """
    return np.dtype(
        {
            "names": ["probe", "epid", "pc", "names", "slot", "offset", "back", "ten", "keys"],
            "formats": [
                "<u4", "<u4", "<u8", ("<u8", 4), "<u4", "<i4", "<i4",
                (np.dtype([("kind", "<u4"), ("value", "<i4")]), ARGUMENTS),
                ("<u8", (size - SITE_HEADER) // 8),
            ],
            "offsets": [
                SITE_PROBE, SITE_EPID, SITE_PC, SITE_PROVIDER, SITE_CFA_SLOT, SITE_CFA_OFFSET,
                SITE_RA_OFFSET, SITE_ARGUMENTS, SITE_HEADER,
            ],
            "itemsize": size,
        }
    )  # fmt: skip


def descriptors_of(
    rows: Sequence[Described],
    base: int,
    strings: Strings,
    size: int,
    keys: Sequence[tuple[int, ...]] = (),
    rules: Mapping[int, FrameRule] | None = None,
) -> bytes:
    """Return the bytes of site descriptors, one for each probe, in the same order.

    Args:
        rows: the probes.
        base: address at which the code of the clauses reads the string block.
        strings: the string block, to which the probes' names are added.
        size: size of one descriptor in bytes.
        keys: for each probe, the indexes of its entries in all aggregations with constant keys, in
            the order of the aggregations.
        rules: maps the index of a probe to the rule that finds the caller at the probe's site; a
            probe without a rule is left out.
    """
    if not rows:
        return b""
    table = np.zeros(len(rows), _row(size))
    probes = [row.probe for row in rows]
    table["probe"] = [probe.id for probe in probes]
    table["epid"] = [row.epid for row in rows]
    table["pc"] = [probe.site.address if probe.site else 0 for probe in probes]
    names = [probe.name for probe in probes]
    for k, texts in enumerate((
        [n.provider for n in names], [n.module for n in names], [n.function for n in names],
        [n.name for n in names],
    )):  # fmt: skip
        places = {text: base + strings.add(text) for text in dict.fromkeys(texts)}
        table["names"][:, k] = [places[text] for text in texts]
    table["slot"] = NO_SLOT
    for k, rule in (rules or {}).items():
        table["slot"][k] = rule.slot
        table["offset"][k], table["back"][k] = rule.offset, rule.return_offset
    # Many probes share a few lists of arguments, so each list is converted once.
    kinds = [(row.arguments, row.probe.site is None) for row in rows]
    number = {kind: k for k, kind in enumerate(dict.fromkeys(kinds))}
    which = [number[kind] for kind in kinds]
    table["ten"] = np.array([_ten(*kind) for kind in number], table["ten"].dtype)[which]
    if size > SITE_HEADER:
        table["keys"] = keys
    return table.tobytes()


def _ten(arguments: tuple[Argument, ...], on_host: bool) -> list[tuple[int, int]]:
    none = Argument(ARGUMENT_HOST if on_host else ARGUMENT_NONE)
    return [(a.kind, a.value) for a in (*arguments, *(ARGUMENTS * (none,)))[:ARGUMENTS]]
