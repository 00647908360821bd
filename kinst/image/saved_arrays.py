"""Files of arrays that can be mapped: how indexes of debug information and of BTF are kept.

Layout: magic, length of the header, checksum of the header, the header (JSON: the key that the
arrays were made for, the arrays' checksum, and each one's type, offset and length), the arrays
(8-byte aligned), the magic again.  All of it is summed up when a file is opened: CRC-32 of a
whole kernel's 40 MB takes 13 ms.  A file is written under another name and renamed when all of it
is on disk, so that readers see a whole file and of two writers the later one wins.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

# What save() is given are numpy arrays, what load() gives are views of the mapped file.
Arrays: TypeAlias = dict[str, Any]

# The number counts changes of what indexes hold.
MAGIC = b"kinst index 05\n\0"
FIXED = len(MAGIC) + 8


def save(path: Path, key: str, arrays: Mapping[str, Any]) -> bool:
    """Write the arrays to path, atomically.  False when the folder cannot be written.

    key: what the arrays were made for; load() compares it.
    """
    table, at, checksum = {}, 0, 0
    for name, array in arrays.items():
        table[name] = [array.dtype.char, at, array.nbytes]
        at += array.nbytes + 7 & -8
        checksum = zlib.crc32(bytes(-array.nbytes % 8), zlib.crc32(array.tobytes(), checksum))
    content = {"key": key, "size": at, "checksum": checksum, "arrays": table}
    header = json.dumps(content).encode()
    header += b" " * (-(FIXED + len(header)) % 8)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC)
                file.write(len(header).to_bytes(4, "little"))
                file.write(zlib.crc32(header).to_bytes(4, "little"))
                file.write(header)
                for array in arrays.values():
                    file.write(array.tobytes())
                    file.write(bytes(-array.nbytes % 8))
                file.write(MAGIC)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return True
    return False


def load(path: Path, key: str) -> Arrays | None:
    """The arrays of a file that save() wrote for this key, mapped; None when it is no such file."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if data[: len(MAGIC)] != MAGIC or data[-len(MAGIC) :] != MAGIC or len(data) < FIXED:
        return None
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    header = data[FIXED : FIXED + size]
    if zlib.crc32(header) != int.from_bytes(data[len(MAGIC) + 4 : FIXED], "little"):
        return None
    # The checksum says that this is what save() wrote.
    found = json.loads(header)
    if found["key"] != key or len(data) != FIXED + size + found["size"] + len(MAGIC):
        return None
    view = memoryview(data)
    start = FIXED + size
    if zlib.crc32(view[start : start + found["size"]]) != found["checksum"]:
        return None
    return {
        name: view[start + at : start + at + length].cast(kind)
        for name, (kind, at, length) in found["arrays"].items()
    }
