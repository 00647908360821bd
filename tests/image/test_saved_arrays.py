"""Files of arrays: load() returns what save() wrote, and rejects everything else."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinst.image.saved_arrays import MAGIC, load, save

KEY = "made for this"
ARRAYS: list[dict[str, Any]] = [
    {"one": np.arange(5, dtype=np.uint8)},
    {"text": np.frombuffer(b"a\0bc\0", np.uint8), "at": np.arange(3, dtype=np.uint32),
     "die": np.array([1 << 63, 0, 7], dtype=np.uint64), "file": np.array([-1], dtype=np.int32)},
    {"none": np.zeros(0, np.uint32), "eight": np.arange(8, dtype=np.uint8),
     "after": np.array([3], np.uint8)},
    *({f"a{size}": np.arange(size, dtype=np.uint8), "last": np.arange(2, dtype=np.uint64)}
      for size in range(17)),
    {},
]  # fmt: skip


@pytest.mark.parametrize("arrays", ARRAYS, ids=" ".join)
def test_what_was_saved_is_loaded(arrays: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert save(path, KEY, arrays)
    found = load(path, KEY)
    assert found is not None and list(found) == list(arrays)
    for name, array in arrays.items():
        assert np.asarray(found[name]).dtype == array.dtype
        assert np.asarray(found[name]).tolist() == array.tolist()


@pytest.mark.parametrize("arrays", ARRAYS, ids=" ".join)
def test_the_layout(arrays: dict[str, Any], tmp_path: Path) -> None:
    """The module's docstring has it: magic, length and checksum of the header, the header, the
    arrays at multiples of 8 bytes, the magic again."""
    path = tmp_path / "file"
    save(path, KEY, arrays)
    data = path.read_bytes()
    assert data.startswith(MAGIC) and data.endswith(MAGIC) and len(data) % 8 == 0
    length, checksum = (int.from_bytes(data[16 + 4 * k : 20 + 4 * k], "little") for k in range(2))
    header, body = data[24 : 24 + length], data[24 + length : -16]
    assert zlib.crc32(header) == checksum and length % 8 == 0
    content = json.loads(header)
    assert (content["key"], content["size"]) == (KEY, len(body))
    assert content["checksum"] == zlib.crc32(body)
    for name, (_, at, size) in content["arrays"].items():
        assert at % 8 == 0 and body[at : at + size] == arrays[name].tobytes()


def test_every_byte_counts(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    save(path, KEY, ARRAYS[1])
    data = path.read_bytes()
    for at in range(len(data)):
        other.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        assert load(other, KEY) is None, at
    for size in range(len(data)):
        other.write_bytes(data[:size])
        assert load(other, KEY) is None, size
        other.write_bytes(data[:size] + data[-16:])  # the bytes between them are missing
        assert load(other, KEY) is None or size == len(data) - 16


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b" "], ids=bytes.hex)
def test_holes(filler: bytes, tmp_path: Path) -> None:
    """Of any length at any place, as a disk that was full leaves them."""
    path, other = tmp_path / "file", tmp_path / "other"
    save(path, KEY, ARRAYS[1])
    data = path.read_bytes()
    for at in range(0, len(data), 4):
        for size in (4, 8, 16, len(data)):
            holed = data[:at] + filler * len(data[at : at + size]) + data[at + size :]
            other.write_bytes(holed)
            assert (load(other, KEY) is None) == (holed != data), (at, size)


def test_what_is_longer_or_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save(path, KEY, ARRAYS[1])
    assert load(path, f"{KEY} ") is None and load(tmp_path / "none", KEY) is None
    data = path.read_bytes()
    for more in (b"\0", bytes(8), bytes(4096)):
        path.write_bytes(data[:-16] + more + data[-16:])
        assert load(path, KEY) is None
    path.write_bytes(b"")
    assert load(path, KEY) is None
    assert not save(path / "below a file", KEY, ARRAYS[1])
