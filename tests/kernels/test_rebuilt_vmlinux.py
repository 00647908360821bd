"""A vmlinux made from a boot image and the output of /proc/kallsyms, compared with the one with
DWARF."""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.core.probe import Function
from kinst.image.debug_info import DebugFiles
from kinst.image.elf import STT_OBJECT, Elf, open_elf
from kinst.image.function_table import FunctionTable
from kinst.image.type_files import FileTypes, ImagePaths
from kinst.kernels.boot_image import elf_in
from kinst.kernels.fetch import Prepared
from kinst.kernels.rebuilt_vmlinux import make_vmlinux
from kinst.systems.linux.system import PADDING

SLIDE = 0x1A000000


def ignore(what: str, part: float | None) -> None:
    pass


def boot_image(folder: Path, payload: bytes, size: int) -> Path:
    """Make a bzImage with one sector of set-up code."""
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    data = payload + struct.pack("<I", size)
    struct.pack_into("<II", head, 0x248, 0, len(data))
    path = folder / "vmlinuz"
    path.write_bytes(bytes(head) + data)
    return path


# Literals, repeated patterns that overlap themselves, and matches longer than one byte can say.
KERNEL = b"\x7fELF" + b"ab" * 300 + os.urandom(5000) + bytes(70_000) + b"ab" * 300


@pytest.mark.parametrize(
    "command", [["gzip", "-c"], ["xz", "-c", "--check=crc32"], ["zstd", "-cq"], ["lz4", "-lcq"]]
)
def test_each_compression_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Sequence[str]
) -> None:
    """Without the programs that compressed it, and with more than one of lz4's blocks."""
    kernel = KERNEL + bytes(9 << 20) + KERNEL
    packed = subprocess.run(command, input=kernel, capture_output=True, check=True).stdout
    monkeypatch.setenv("PATH", "")
    assert elf_in(boot_image(tmp_path, packed, len(kernel))) == kernel
    for at in (4,) if command[0] == "lz4" else (4, 2000):  # lz4 has no checksum of its content
        other = bytes(~byte & 255 for byte in packed[at : at + 60])
        hurt = packed[:at] + other + packed[at + 60 :]
        with pytest.raises(KinstError, match=r"damaged|does not know"):
            elf_in(boot_image(tmp_path, hurt, len(kernel)))
    with pytest.raises(KinstError, match="damaged"):
        elf_in(boot_image(tmp_path, packed[:-50], len(kernel)))


def test_a_damaged_boot_image_is_refused(tmp_path: Path) -> None:
    packed = zlib.compress(KERNEL, wbits=31)
    with pytest.raises(KinstError, match="not the kernel"):
        elf_in(boot_image(tmp_path, packed, len(KERNEL) - 1))
    with pytest.raises(KinstError, match="damaged"):
        elf_in(boot_image(tmp_path, packed[:40] + b"\xff" * 60 + packed[100:], len(KERNEL)))
    with pytest.raises(KinstError, match="does not know"):
        elf_in(boot_image(tmp_path, b"BZh91AY", 7))
    path = boot_image(tmp_path, packed, len(KERNEL))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(KinstError, match="truncated"):
        elf_in(path)
    path.write_bytes(b"MZ" + bytes(2000))
    with pytest.raises(KinstError, match="not an x86"):
        elf_in(path)


def shown(elf: Elf, path: Path) -> None:
    """Return what /proc/kallsyms would show of a kernel that KASLR has moved, by nm(1)."""
    said = subprocess.run(["nm", "-n", elf.path], capture_output=True, text=True, check=True)
    lines = []
    for line in said.stdout.splitlines():
        place, kind, name = line.split()
        if kind in "aU":
            continue
        address = int(place, 16)
        lines.append(f"{address + (SLIDE if address >> 32 else 0):016x} {kind} {name}")
    lines.append(f"{0xFFFFFFFFC0000000:016x} t of_a_module\t[module]")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def full(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug)


@pytest.fixture(scope="module")
def made(full: Elf, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Elf:
    folder = tmp_path_factory.mktemp("made")
    section = full.section(".notes")
    assert section is not None
    (folder / "notes").write_bytes(full.data(section))
    shown(full, folder / "kallsyms")
    files = (prepared.kernel, folder / "kallsyms", folder / "notes", folder)
    path = make_vmlinux(*files, ignore)
    (folder / "kallsyms").unlink()
    assert make_vmlinux(*files, ignore) == path  # the file is kept
    return open_elf(path)


def by_address(elf: Elf) -> dict[int, Function]:
    return {one.address: one for one in FunctionTable(elf, 0, "vmlinux", PADDING).all}


def test_functions_are_those_of_the_debug_package(full: Elf, made: Elf) -> None:
    wanted, found = by_address(full), by_address(made)
    both = wanted.keys() & found.keys()
    # Missing: names of the linker's own marks.  More: labels within assembly.
    assert len(both) > 0.999 * len(wanted)
    assert len(found) - len(both) < 30
    assert all(wanted[at].name == found[at].name for at in both)
    differ = [(wanted[at], found[at]) for at in both if wanted[at].size != found[at].size]
    # A breakpoint after a last return is padding in one file and not in the other.
    other = [(one, two) for one, two in differ if one.size - two.size != 1]
    assert len(other) < 0.006 * len(both), other[:10]
    for name in ("vfs_read", "do_sys_openat2", "tcp_ack", "schedule"):
        (one,) = FunctionTable(full, 0, "vmlinux", PADDING).lookup(name)
        (two,) = FunctionTable(made, 0, "vmlinux", PADDING).lookup(name)
        assert one == two


def test_variables_and_sections_are_the_same(full: Elf, made: Elf) -> None:
    assert made.build_id == full.build_id
    assert not made.has_debug
    for name in ("jiffies_64", "init_task", "current_task", "__start___ex_table", "linux_banner"):
        assert made.address(name) == full.address(name), name
    (at,) = made.symbols.indexes("init_task")
    assert made.symbols.kind[at] == STT_OBJECT
    (there,) = full.symbols.indexes("init_task")
    assert 0 <= int(made.symbols.size[at]) - int(full.symbols.size[there]) < 4096
    for name in (".altinstructions", ".init.text", ".orc_unwind", ".BTF"):
        one, two = full.section(name), made.section(name)
        assert one is not None
        assert two is not None
        assert full.data(one) == made.data(two), name


def test_local_variables_are_refused_with_the_reason(made: Elf, tmp_path: Path) -> None:
    types = FileTypes(ImagePaths(lambda: made.path, dict, DebugFiles(tmp_path)))
    assert types.function("vfs_read")
    with pytest.raises(KinstError, match="vmlinux has no debug information about local variables"):
        types.local("vfs_read", "count")


def test_what_does_not_fit_is_refused(full: Elf, prepared: Prepared, tmp_path: Path) -> None:
    section = full.section(".notes")
    assert section is not None
    notes, kallsyms = tmp_path / "notes", tmp_path / "kallsyms"
    data = full.data(section)
    notes.write_bytes(data)
    kallsyms.write_text("0000000000000000 T _text\n")
    with pytest.raises(KinstError, match="kptr_restrict"):
        make_vmlinux(prepared.kernel, kallsyms, notes, tmp_path / "out", ignore)
    raw = bytes.fromhex(full.build_id)
    notes.write_bytes(data.replace(raw, bytes(len(raw))))
    with pytest.raises(KinstError, match="not the kernel that runs"):
        make_vmlinux(prepared.kernel, kallsyms, notes, tmp_path / "out", ignore)
    assert not list((tmp_path / "out").iterdir())
    notes.write_bytes(np.zeros(16, np.uint8).tobytes())
    with pytest.raises(KinstError, match="no build-id"):
        make_vmlinux(prepared.kernel, kallsyms, notes, tmp_path / "out", ignore)
