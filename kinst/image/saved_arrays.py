"""Cache files of arrays, for indexes of debug information and of BTF. The arrays are mapped.

Layout: magic, length of the header, checksum of the header, the header, the arrays (8-byte
aligned), the magic again. The header is JSON. It has a key, which identifies the data from which
the arrays were made, the arrays' checksum, and the type, offset and length of each array. Opening a
file checks all of it: CRC-32 of a whole kernel's 40 MB takes 13 ms.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from kinst.core.whole_files import write_whole

# save() takes numpy arrays; load() returns views of the mapped file.
Arrays: TypeAlias = dict[str, Any]

# The number in the magic is raised when the contents of indexes change.
MAGIC = b"kinst index 05\n\0"
FIXED = len(MAGIC) + 8


def save(path: Path, key: str, arrays: Mapping[str, Any]) -> bool:
    """Write arrays to a cache file, atomically. Return whether that succeeded: False if the folder
    cannot be written.

    Args:
        key: text that identifies the data from which the arrays were made, such as a build-id with
            a checksum. load() compares it with its own key.
    """
    table, at, checksum = {}, 0, 0
    for name, array in arrays.items():
        table[name] = [array.dtype.char, at, array.nbytes]
        at += array.nbytes + 7 & -8
        checksum = zlib.crc32(bytes(-array.nbytes % 8), zlib.crc32(array.tobytes(), checksum))
    content = {"key": key, "size": at, "checksum": checksum, "arrays": table}
    header = json.dumps(content).encode()
    header += b" " * (-(FIXED + len(header)) % 8)
    sums = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    return write_whole(path, (MAGIC, sums, header, *_content(arrays), MAGIC))


def _content(arrays: Mapping[str, Any]) -> Iterator[bytes]:
    for array in arrays.values():
        yield array.tobytes()
        yield bytes(-array.nbytes % 8)


def load(path: Path, key: str) -> Arrays | None:
    """Return the arrays of a cache file, mapped; None if the file is missing, damaged or saved
    under another key."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if data[: len(MAGIC)] != MAGIC or data[-len(MAGIC) :] != MAGIC or len(data) < FIXED:
        return None
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    header = data[FIXED : FIXED + size]
    # The checksum of no bytes is 0, and so are the bytes of a hole in a file.
    if not size or zlib.crc32(header) != int.from_bytes(data[len(MAGIC) + 4 : FIXED], "little"):
        return None
    # The checksum shows that save() wrote this.
    content = json.loads(header)
    if content["key"] != key or len(data) != FIXED + size + content["size"] + len(MAGIC):
        return None
    view = memoryview(data)
    start = FIXED + size
    if zlib.crc32(view[start : start + content["size"]]) != content["checksum"]:
        return None
    return {
        name: view[start + at : start + at + length].cast(kind)
        for name, (kind, at, length) in content["arrays"].items()
    }
