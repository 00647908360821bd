"""A kernel's file in place of its memory, as it is once the kernel has booted and uses nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kinst.core.paths import cache_folder
from kinst.image.btf import Btf, open_btf
from kinst.image.elf import Elf, open_elf
from kinst.image.function_table import FunctionTable
from kinst.isa import load
from kinst.systems.linux.isafacts import facts_of
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.static_keys import StaticKeys
from kinst.systems.linux.system import MODULE, PADDING
from kinst.systems.linux.tables import KernelTables
from kinst.systems.linux.tracepoints import LinuxTracepoints

ENTRY, KEY, BOOT = 16, 8, 2  # bytes of a jump table's entry, of its first fields; its flag for boot


class FileMemory:
    """Memory with the file's content, and with what was written since.

    The build marks entries of the jump table with the flag that the kernel clears while it boots,
    except in those of code of boot.
    """

    def __init__(self, elf: Elf) -> None:
        self._elf = elf
        self.written: dict[int, int] = {}
        start, stop = elf.address("__start___jump_table"), elf.address("__stop___jump_table")
        boot, ended = elf.address("__init_begin"), elf.address("__init_end")
        assert start and stop and boot and ended
        raw = elf.read(start, stop - start)
        for at in range(start, stop, ENTRY):
            code = at + int.from_bytes(raw[at - start : at - start + 4], "little", signed=True)
            flags = raw[at - start + KEY] & ~BOOT
            self.written[at + KEY] = flags | (BOOT if boot <= code < ended else 0)

    def read(self, address: int, size: int) -> bytes:
        data = bytearray(self._elf.read(address, size))
        for at in range(address, address + size) if size <= 64 else sorted(self.written):
            if at in self.written and 0 <= at - address < size:
                data[at - address] = self.written[at]
        return bytes(data)

    def write(self, writes: list[tuple[int, bytes]]) -> None:
        for address, data in writes:
            self.written |= {address + n: byte for n, byte in enumerate(data)}


class KernelFile:
    """Everything that finds tracepoints in a kernel's file."""

    def __init__(self, isa: str, path: Path) -> None:
        self.isa, self.arch = load(isa), facts_of(isa)
        self.path, self.elf = path, open_elf(path)
        self.memory = FileMemory(self.elf)
        self.kernel = LinuxMemory(self.memory, self.elf, 0)
        btf = open_btf(self.elf, cache_folder())
        assert btf is not None
        self.btf: Btf = btf
        self.tables = KernelTables(self.elf, self.arch.label_size)
        self.functions = FunctionTable(self.elf, 0, MODULE, PADDING)
        modules: Any = SimpleNamespace(all=(), at=lambda address: None)
        self.keys = StaticKeys(self.kernel, btf, self.arch, self.tables, modules)
        self.tracepoints = LinuxTracepoints(
            self.kernel, btf, self.tables, modules, self.keys, self.isa,
            self.functions.lookup, self.functions.at,
        )  # fmt: skip
