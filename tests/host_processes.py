"""Processes of the machine that the tests run on, by proc(5)."""

from __future__ import annotations

import time
from pathlib import Path

SECONDS = 120.0  # a hang takes this long, a busy machine is slow


def fields(pid: int) -> list[str]:
    """Return the fields of proc(5)'s stat from the state on; none for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def has_ended(pid: int) -> bool:
    """Return whether no process of that id runs; one that waits to be reaped does not run."""
    found = fields(pid)
    return not found or found[0] in "ZX"


def wait_until_ended(pid: int, seconds: float = SECONDS) -> bool:
    """Return whether the process ends in that time: a signal is sent at once and acts when the
    process gets a CPU again."""
    end = time.monotonic() + seconds
    while not has_ended(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return has_ended(pid)
