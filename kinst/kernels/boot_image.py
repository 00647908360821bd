"""Finding and uncompressing the ELF file in an x86 kernel's boot image (bzImage), such as
/boot/vmlinuz-*.

After the compressed ELF file, 4 bytes have its uncompressed size (scripts/Makefile.lib,
"size_append"). Format: Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".

Tested by tests/kernels/test_rebuilt_vmlinux.py.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import zstandard
from lz4.block import LZ4BlockError  # type: ignore[import-untyped]
from lz4.block import decompress as unpacked_lz4

from kinst.core.errors import KinstError

_SECTORS, _MAGIC, _PAYLOAD = 0x1F1, 0x202, 0x248  # offsets in the header
_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"
_LZ4 = b"\x02\x21\x4c\x18"  # lz4's legacy frame format
_LZ4_BLOCK = 8 << 20  # most bytes that one block unpacks to


def elf_in(path: Path) -> bytes:
    """Return the bytes of the stripped vmlinux in a boot image, uncompressed.

    Raises:
        KinstError: the file is not a boot image, is damaged, or is compressed in an unknown way.
    """
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
        vmlinux = _unpacked(payload[:-4])
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, LZ4BlockError) as error:
        raise KinstError(f"{path}: damaged: {error}") from error
    (size,) = struct.unpack("<I", payload[-4:])
    if len(vmlinux) != size or not vmlinux.startswith(b"\x7fELF"):
        raise KinstError(f"{path}: damaged: what it unpacks is not the kernel")
    return vmlinux


def _unpacked(packed: bytes) -> bytes:
    """Uncompress bytes by the method that their first bytes tell. Raises KinstError for an unknown
    method, and the libraries' own errors for damaged data."""
    if packed.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(packed)
    if packed.startswith(_XZ):
        return lzma.LZMADecompressor().decompress(packed)
    if packed.startswith(_ZSTD):
        return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    if packed.startswith(_LZ4):
        return b"".join(
            unpacked_lz4(block, uncompressed_size=_LZ4_BLOCK) for block in _lz4_blocks(packed)
        )
    raise KinstError(
        f"the kernel is compressed in a way that kinst does not know ({packed[:4].hex()})",
        "kinst knows gzip, xz, zstd and lz4",
    )


def _lz4_blocks(packed: bytes) -> Iterator[bytes]:
    """Yield the compressed blocks of a frame in lz4's legacy format, in which the size of each
    block precedes it (doc/lz4_Frame_format.md of lz4)."""
    at = len(_LZ4)
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "little")
        yield packed[at + 4 : at + 4 + size]
        at += 4 + size
