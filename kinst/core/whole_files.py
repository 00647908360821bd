"""Files of the cache: readers see a whole file or none, whichever processes write it.

Tested by tests/fuzz/test_caches.py.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path

PART = ".part"  # suffix of files that are being written
WRITING = 600.0  # seconds after which the writer of a part has ended


@contextmanager
def whole_file(path: Path) -> Iterator[FileIO]:
    """Open a file under a temporary name; it gets its own name when the block ends.

    Readers see a whole file, and of two writers the later one wins. If the block raises, the
    earlier file stays. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=PART)
    try:
        with FileIO(handle, "w") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _tidy(path)


def write_whole(path: Path, pieces: Iterable[bytes]) -> bool:
    """Write a file whole, all of it on disk before it has its name. Return False if that fails (a
    full or read-only disk); the earlier file stays."""
    with suppress(OSError):
        with whole_file(path) as raw, BufferedWriter(raw) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(raw.fileno())
        return True
    return False


def _tidy(path: Path) -> None:
    """Delete what killed writers of this file have left."""
    for part in path.parent.glob(f"{glob_of(path.name)}.*{PART}"):
        with suppress(OSError):
            if part.stat().st_mtime < time.time() - WRITING:
                part.unlink()


def glob_of(name: str) -> str:
    """Return the pattern that only this name matches (glob(7))."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
