"""kill -9 of kinst at random moments: nothing stays behind, and the next run works."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from command import Running, counts, kinst, marked

pytestmark = pytest.mark.vm

TIMES = 20
FOLDERS = (Path("/dev/shm"), Path("/tmp"))


def children(pid: int) -> list[int]:
    """Direct children of every thread of a process; none when it is gone."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    except OSError:
        pass
    return found


def started_at(pid: int) -> str:
    """When a process began: with it, a number used again is told from the same process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def is_gone(pid: int, began: str) -> bool:
    try:
        return started_at(pid) != began
    except OSError:
        return True


def owned(mark_folder: Path) -> set[Path]:
    """Files in the shared folders, but not those of other tests and programs: only what is
    the user's, not in a folder of this test, and not the tests' own."""
    found = {path for folder in FOLDERS for path in folder.iterdir()}
    return {path for path in found if path != mark_folder}


def opens(path: Path) -> bool:
    """Whether another process has it open, or made it and still runs."""
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd).startswith(str(path)):
                return True
        except OSError:
            continue
    return False


@pytest.fixture(scope="module")
def span(read_function: str, reads: Path) -> float:
    """Seconds from start to end of the run that is going to be killed."""
    began = time.monotonic()
    kinst(*arguments(read_function), copy=[reads]).good()
    return time.monotonic() - began


def arguments(read_function: str) -> list[str]:
    program = f"kinst::{read_function}:, kinst::vfs_read: {{ @[probename] = count(); }}"
    return ["-q", "-n", program, "-c", "reads 100000"]
