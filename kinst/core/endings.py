"""Exit statuses that only kinst uses, and the words of `-x fail` that select them.

The numbers are above the usual statuses of commands, and below those that timeout(1) and the shell
use (124 to 127, and 128 and more for signals). `git bisect run` takes each of them for "bad".

Tested by tests/session/test_fail_option.py."""

from __future__ import annotations

PANIC, HANG, OOPS, WARN, ERRORS, DROPS = range(110, 116)

# Words of -x fail, worst first.  The first of them that happened gives the status.
STATUS_OF = {"hang": HANG, "oops": OOPS, "warn": WARN, "errors": ERRORS, "drops": DROPS}


def status_when_gone(kind: str) -> int:
    """Return the exit status of a trace whose guest has ended by itself.

    Args:
        kind: "panic", "hang", or "" for any other reason.
    """
    return {"panic": PANIC, "hang": HANG}.get(kind, 1)
