"""Messages and progress of the machine that a command opens, on standard error.

Tested by tests/cli/test_reporting.py.
"""

from __future__ import annotations

import time

from kinst.api import Report, Request
from kinst.cli.guard import say
from kinst.cli.progress import Progress


def user_report(request: Request, started: float | None = None) -> Report:
    """Return a Report that prints on standard error, and asks the user before a download unless
    the request has --yes.

    Args:
        request: options of the machine.
        started: monotonic seconds when the command began; None for now.
    """
    progress = Progress("kinst")
    return Report(
        say,
        progress,
        time.monotonic() if started is None else started,
        request.verbose,
        confirm=None if request.yes else progress.confirm,
    )


def discard(*_: object) -> None:
    """Discard a message or progress that kinst would otherwise print."""
