"""Exit statuses that are kinst's own, and which of them `-x fail` asks for.

They lie above those of commands and below those that timeout(1) and the shell use (124 to 127, and
128 and more for signals); `git bisect run` takes each of them for "bad".

Tested by tests/session/test_fail_option.py.
"""

from __future__ import annotations

PANIC, HANG, OOPS, WARN, ERRORS, DROPS = range(110, 116)

# Words of -x fail, worst first: the first that was seen gives the status.
STATUS_OF = {"hang": HANG, "oops": OOPS, "warn": WARN, "errors": ERRORS, "drops": DROPS}


def status_when_gone(kind: str) -> int:
    """Return the exit status for a guest that has ended by itself. kind: "panic", "hang", or "" for
    any other reason."""
    return {"panic": PANIC, "hang": HANG}.get(kind, 1)
