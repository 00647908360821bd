"""Bits of an allocation's flags, from the table of their names in a memory that the test writes."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.system import allocation_flag

FLAGS = ((0x400, "__GFP_IO"), (0x8000, "__GFP_NOFAIL"), (0x4000, "__GFP_NOFAIL_NOT"))
TABLE, NAMES, SLIDE = 0x1000, 0x2000, 0x40_0000


def kernel_with(symbols: dict[str, int]) -> LinuxMemory:
    rows, names = b"", b""
    for bits, name in FLAGS:
        rows += struct.pack("<QQ", bits, NAMES + SLIDE + len(names))
        names += name.encode() + b"\0"
    data = (rows + bytes(16)).ljust(NAMES - TABLE, b"\xff") + names.ljust(0x1000, b"\xff")

    def read(address: int, size: int) -> bytes:
        at = address - TABLE - SLIDE
        assert 0 <= at <= len(data) - size
        return data[at : at + size]

    elf: Any = SimpleNamespace(address=symbols.get, path="vmlinux")
    memory: Any = SimpleNamespace(read=read)
    return LinuxMemory(memory, elf, SLIDE)


def test_flags_by_their_names() -> None:
    kernel = kernel_with({"gfpflag_names": TABLE})
    assert {name: allocation_flag(kernel, name) for _, name in FLAGS} == {n: b for b, n in FLAGS}
    assert not allocation_flag(kernel, "__GFP_NOFAI")
    assert not allocation_flag(kernel_with({}), "__GFP_NOFAIL")
