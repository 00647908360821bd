"""Files of the cache, written so that readers see a whole file or no file, even if several
processes write it.

Tested by tests/fuzz/test_caches.py."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path

PART = ".part"  # suffix of files that are being written
WRITING = 600.0  # seconds after which a temporary file's writer is taken to have ended


@contextmanager
def whole_file(path: Path) -> Iterator[FileIO]:
    """Open a file for writing under a temporary name, and rename it to `path` when the block ends.

    If two processes write the file, the later one wins. If the block raises an exception, the old
    file stays. Raises OSError."""
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
    """Write a file and rename it to `path` once all of it is on disk. Return whether that worked;
    if it fails (a full or read-only disk), the old file stays."""
    with suppress(OSError):
        with whole_file(path) as raw, BufferedWriter(raw) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(raw.fileno())
        return True
    return False


def _tidy(path: Path) -> None:
    """Delete temporary files that killed writers of this file have left."""
    for part in path.parent.glob(f"{glob_of(path.name)}.*{PART}"):
        with suppress(OSError):
            if part.stat().st_mtime < time.time() - WRITING:
                part.unlink()


def glob_of(name: str) -> str:
    """Return a glob(7) pattern that matches only this name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
