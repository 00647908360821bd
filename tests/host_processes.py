"""Processes of the machine that the tests run on, read from proc(5)."""

from __future__ import annotations

import time
from pathlib import Path

SECONDS = 120.0  # long enough for a busy machine; only a hang takes longer


def fields(pid: int) -> list[str]:
    """Return the fields of proc(5)'s stat, beginning with the state; none for an ended process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def has_ended(pid: int) -> bool:
    """Return whether no process with that id runs.  A zombie (ended, not yet reaped) does not
    run."""
    found = fields(pid)
    return not found or found[0] in "ZX"


def wait_until_ended(pid: int, seconds: float = SECONDS) -> bool:
    """Return whether the process ends within that time.

    A signal is sent immediately, but the process acts on it only when it gets a CPU again.
    """
    end = time.monotonic() + seconds
    while not has_ended(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return has_ended(pid)
