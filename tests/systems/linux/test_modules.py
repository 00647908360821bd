"""A module's sections, as in the kernel's own files in /sys/module/NAME/sections.

They are laid out by hand as kernels before and since 6.14 do it.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from kinst.core.system import Section
from kinst.systems.linux.amd64 import LINUX
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.modules import LinuxModules

SECTIONS = [Section(".text", 0xFFFF_C000), Section(".data..percpu", 0xFFFF_D080)]
ATTRS, NAMES, LIST = 0x1000, 0x4000, 0x5000
# Offsets of members as pahole shows them of Debian's 6.12 and 7.2 for riscv64.
OLD = {
    ("module_sect_attrs", "nsections"): 40, ("module_sect_attrs", "attrs"): 48,
    ("module_sect_attr", "battr"): 0, ("module_sect_attr", "address"): 72,
    ("bin_attribute", "attr.name"): 0,
}  # fmt: skip
NEW = {
    ("module_sect_attrs", "grp.bin_attrs"): 40, ("module_sect_attrs", "attrs"): 48,
    ("bin_attribute", "private"): 24, ("bin_attribute", "attr.name"): 0,
}  # fmt: skip
SIZES = {"module_sect_attr": 80, "bin_attribute": 72}


def memory_of(offsets: dict[tuple[str, str], int]) -> dict[int, bytes]:
    """Return pieces of memory; bytes of 0xee follow the last section."""
    old = offsets is OLD
    size, where = (80, 72) if old else (72, 24)
    raw = bytearray(b"\xee" * 48)
    raw[40:48] = struct.pack("<II", len(SECTIONS), 0xEEEE_EEEE) if old else struct.pack("<Q", LIST)
    names = b""
    for section in SECTIONS:
        one = bytearray(b"\xee" * size)
        one[:8] = struct.pack("<Q", NAMES + len(names))
        one[where : where + 8] = struct.pack("<Q", section.address)
        raw += one
        names += section.name.encode() + b"\0"
    files = [ATTRS + 48 + size * k for k in range(len(SECTIONS))]
    listed = struct.pack(f"<{len(files) + 1}Q", *files, 0)
    tail = b"\xee" * 4096
    return {ATTRS: bytes(raw) + tail, NAMES: names + tail, LIST: listed + tail}


@pytest.mark.parametrize("offsets", [OLD, NEW], ids=["before 6.14", "since"])
def test_sections(offsets: dict[tuple[str, str], int]) -> None:
    pieces = memory_of(offsets)

    def read(address: int, size: int) -> bytes:
        start = max(at for at in pieces if at <= address)
        return pieces[start][address - start :][:size]

    unread: Any = SimpleNamespace()
    kernel = LinuxMemory(SimpleNamespace(read=read), unread, 0)  # type: ignore[arg-type]
    btf: Any = SimpleNamespace(
        has=lambda *member: member in offsets,
        offset=lambda *member: offsets[member], size=SIZES.__getitem__,
    )  # fmt: skip
    reader: Any = SimpleNamespace(has=lambda path: True, number=lambda path: ATTRS)
    found = LinuxModules(kernel, btf, LINUX, 12, 12)._sections(reader)
    assert list(found) == SECTIONS
