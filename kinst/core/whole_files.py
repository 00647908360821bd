"""Files of the cache: there whole, or not at all, whoever else reads and writes them.

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

PART = ".part"  # how names of files end that are being written
WRITING = 600.0  # seconds after which whoever wrote a part has ended


@contextmanager
def whole_file(path: Path) -> Iterator[FileIO]:
    """A file to write to under another name, which gets its own when the block ends: readers see a
    whole file, and of two writers the later one wins.  If the block raises, there is what was there
    before.  Raises OSError."""
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
    """Write such a file, all of it on disk before it has its name.  False where that cannot be done
    (a full or read-only disk): then there is what was there before."""
    with suppress(OSError):
        with whole_file(path) as raw, BufferedWriter(raw) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(raw.fileno())
        return True
    return False


def _tidy(path: Path) -> None:
    """Throw away what writers of this file that were killed have left."""
    for part in path.parent.glob(f"{glob_of(path.name)}.*{PART}"):
        with suppress(OSError):
            if part.stat().st_mtime < time.time() - WRITING:
                part.unlink()


def glob_of(name: str) -> str:
    """The pattern that only this name matches (glob(7))."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
