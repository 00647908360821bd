"""What the end of a trace is as a number: the exit statuses that are kinst's own, and which of them
`-x fail` asks for.

They lie above what commands end with and below what timeout(1) and the shell keep (124 to 127, and
128 and more for signals), where `git bisect run` takes each for "bad".

Tested by tests/session/test_fail_option.py.
"""

from __future__ import annotations

PANIC, HANG, OOPS, WARN, ERRORS, DROPS = range(110, 116)

# What -x fail takes, worst first: where several were seen, the first gives the status.
STATUS_OF = {"hang": HANG, "oops": OOPS, "warn": WARN, "errors": ERRORS, "drops": DROPS}


def status_when_gone(kind: str) -> int:
    """Of a guest that has ended by itself.  kind: "panic", "hang", or "" for any other reason."""
    return {"panic": PANIC, "hang": HANG}.get(kind, 1)
