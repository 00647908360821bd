"""The ELF file inside of an x86 kernel's boot image (bzImage), such as /boot/vmlinuz-*.

Format: Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".  The payload is compressed,
and 4 bytes follow it with its size when it is not (scripts/Makefile.lib, "size_append").
"""

from __future__ import annotations

import lzma
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from kinst.core.errors import KinstError

_SECTORS, _MAGIC, _PAYLOAD = 0x1F1, 0x202, 0x248  # where they are in the header
_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"
_LZ4 = b"\x02\x21\x4c\x18"  # of the format that lz4 calls its legacy frame


def elf_in(path: Path) -> bytes:
    """The stripped vmlinux that a boot image unpacks.  Raises KinstError where it is none, is
    damaged, or is compressed in a way that nothing here can undo."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from error
    if data[_MAGIC : _MAGIC + 4] != b"HdrS" or len(data) < _PAYLOAD + 8:
        raise KinstError(f"{path}: not an x86 kernel's boot image")
    offset, length = struct.unpack_from("<II", data, _PAYLOAD)
    start = ((data[_SECTORS] or 4) + 1) * 512 + offset
    payload = data[start : start + length]
    if len(payload) < length or length < 8:
        raise KinstError(f"{path}: truncated: the file ends inside of the kernel")
    try:
        found = _unpacked(payload[:-4])
    except (zlib.error, lzma.LZMAError, ValueError) as error:
        raise KinstError(f"{path}: damaged: {error}") from error
    (size,) = struct.unpack("<I", payload[-4:])
    if len(found) != size or not found.startswith(b"\x7fELF"):
        raise KinstError(f"{path}: damaged: what it unpacks is not the kernel")
    return found


def _unpacked(packed: bytes) -> bytes:
    """Raises KinstError for a compression that cannot be undone, and ValueError and what
    the libraries raise for damage."""
    if packed.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(packed)
    if packed.startswith(_XZ):
        return lzma.LZMADecompressor().decompress(packed)
    if packed.startswith(_ZSTD):
        return _by_program("zstd", packed)
    if packed.startswith(_LZ4):
        return _by_program("lz4", packed)
    raise KinstError(
        f"the kernel is compressed in a way that kinst does not know ({packed[:4].hex()})",
        "kinst knows gzip, xz, zstd and lz4",
    )


def _by_program(name: str, packed: bytes) -> bytes:
    """What a compressor's own program unpacks.  Raises ValueError where it finds damage."""
    if shutil.which(name) is None:
        raise KinstError(
            f"the kernel is compressed with {name}, and there is no {name} to unpack it with",
            f"apt-get install {name}",
        )
    done = subprocess.run([name, "-dcq"], input=packed, capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ValueError(said or f"{name} ended with {done.returncode}")
    return done.stdout
