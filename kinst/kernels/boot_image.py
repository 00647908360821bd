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
_SHORTEST = 4  # bytes of a match of LZ4's


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
    except (zlib.error, lzma.LZMAError, IndexError, ValueError) as error:
        raise KinstError(f"{path}: damaged: {error}") from error
    (size,) = struct.unpack("<I", payload[-4:])
    if len(found) != size or not found.startswith(b"\x7fELF"):
        raise KinstError(f"{path}: damaged: what it unpacks is not the kernel")
    return found


def _unpacked(packed: bytes) -> bytes:
    """Raises KinstError for a compression that cannot be undone, and ValueError, IndexError and
    what the libraries raise for damage."""
    if packed.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(packed)
    if packed.startswith(_XZ):
        return lzma.LZMADecompressor().decompress(packed)
    if packed.startswith(_ZSTD):
        return _unzstd(packed)
    if packed.startswith(_LZ4):
        return _unlz4(packed)
    raise KinstError(
        f"the kernel is compressed in a way that kinst does not know ({packed[:4].hex()})",
        "kinst knows gzip, xz, zstd and lz4",
    )


def _unzstd(packed: bytes) -> bytes:
    if shutil.which("zstd") is None:
        raise KinstError(
            "the kernel is compressed with zstd, and there is no zstd to unpack it with",
            "apt-get install zstd",
        )
    done = subprocess.run(["zstd", "-dcq"], input=packed, capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ValueError(said or f"zstd ended with {done.returncode}")
    return done.stdout


def _unlz4(packed: bytes) -> bytes:
    """Blocks of at most 8 MB, each with its size in front (lz4_Frame_format.md, "Legacy frame")."""
    if shutil.which("lz4") is not None:
        done = subprocess.run(["lz4", "-dcq"], input=packed, capture_output=True)
        if not done.returncode:
            return done.stdout
    found = bytearray()
    at = len(_LZ4)
    while at + 4 <= len(packed):
        (size,) = struct.unpack_from("<I", packed, at)
        at += 4
        if packed[at - 4 : at] == _LZ4:  # another frame
            continue
        if at + size > len(packed):
            raise ValueError("a block ends behind the file")
        found += _block(packed, at, at + size)
        at += size
    return bytes(found)


def _block(packed: bytes, at: int, end: int) -> bytearray:
    """One block (lz4_Block_format.md): sequences of literals and of a match of what was before."""
    found = bytearray()
    while at < end:
        token = packed[at]
        at += 1
        count, at = _length(packed, token >> 4, at)
        found += packed[at : at + count]
        at += count
        if at >= end:
            break
        back = packed[at] | packed[at + 1] << 8
        count, at = _length(packed, token & 15, at + 2)
        count += _SHORTEST
        if not 0 < back <= len(found):
            raise ValueError("a match lies before the block")
        start = len(found) - back
        if back >= count:
            found += found[start : start + count]
        else:  # it overlaps what it makes: a pattern that repeats
            found += (found[start:] * (count // back + 1))[:count]
    return found


def _length(packed: bytes, nibble: int, at: int) -> tuple[int, int]:
    """A length that goes on in further bytes where its four bits are full; and what follows it."""
    count = nibble
    if nibble == 15:
        while True:
            more = packed[at]
            at += 1
            count += more
            if more != 255:
                break
    return count, at
