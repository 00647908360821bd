"""Files of the cache: there whole, or not at all, whoever else reads and writes them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PART = ".part"
_WRITING = 600.0  # seconds after which whoever wrote a part has ended


def write_whole(path: Path, pieces: Iterable[bytes]) -> bool:
    """Write a file under another name, and give it its own when all of it is on disk: readers see a
    whole file, and of two writers the later one wins.  False where that cannot be done (a full or
    read-only disk): then there is what was there before."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=_PART)
        try:
            with open(handle, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _tidy(path)
        return True
    return False


def _tidy(path: Path) -> None:
    """Throw away what writers of this file that were killed have left."""
    for part in path.parent.glob(f"{glob_of(path.name)}.*{_PART}"):
        with suppress(OSError):
            if part.stat().st_mtime < time.time() - _WRITING:
                part.unlink()


def glob_of(name: str) -> str:
    """The pattern that only this name matches (glob(7))."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
