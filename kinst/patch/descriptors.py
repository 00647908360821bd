"""Site descriptors: what a clause is told of the probe that fired (core/layout.py SITE_*)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kinst.core.kernel import Argument
from kinst.core.layout import ARGUMENT_HOST, ARGUMENT_NONE, ARGUMENTS, SITE_HEADER
from kinst.core.probe import Probe

NO_SLOT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FrameRule:
    """CFA = frame[slot] + offset; the return address is at CFA + return_offset."""

    slot: int
    offset: int
    return_offset: int


class Strings:
    """NUL-terminated texts, each stored once; offsets are from the area's start."""

    def __init__(self, start: bytes = b"") -> None:
        self._data = bytearray(start)
        self._at: dict[str, int] = {}

    def add(self, text: str) -> int:
        at = self._at.get(text)
        if at is None:
            at = self._at[text] = len(self._data)
            self._data += text.encode() + b"\0"
        return at

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def descriptor_size(constant_aggregations: int) -> int:
    """Bytes of one descriptor."""
    return SITE_HEADER + 8 * constant_aggregations


def descriptor(
    probe: Probe,
    epid: int,
    strings: Mapping[str, int],
    rule: FrameRule | None,
    keys: tuple[int, ...],
    arguments: tuple[Argument, ...] = (),
) -> bytes:
    """One descriptor.

    strings: addresses, as the machine that runs the probe sees them, of the four parts of
    the probe's name.  rule: how the caller is found, or None.  keys: entries of this probe in
    the constant-key aggregations, in their order.  arguments: arg0... of a probe with a site.
    """
    none = Argument(ARGUMENT_NONE if probe.site else ARGUMENT_HOST)
    ten = (*arguments, *(ARGUMENTS * (none,)))[:ARGUMENTS]
    name = probe.name
    slot, offset, back = (rule.slot, rule.offset, rule.return_offset) if rule else (NO_SLOT, 0, 0)
    return struct.pack(
        "<IIQQQQQIiiI",
        probe.id,
        epid,
        probe.site.address if probe.site else 0,
        strings[name.provider],
        strings[name.module],
        strings[name.function],
        strings[name.name],
        slot,
        offset,
        back,
        0,
    ) + b"".join(
        [struct.pack("<Ii", a.kind, a.value) for a in ten] + [struct.pack(f"<{len(keys)}Q", *keys)]
    )
