"""Message about the end of a trace, if the output does not explain the end."""

from __future__ import annotations

from kinst.events import End


def ending_text(end: End, timeout: float | None, command: str) -> str:
    """Return a sentence that says that --timeout ended the trace; "" for another end.

    Args:
        end: the last event of the trace.
        timeout: seconds of --timeout; None without --timeout.
        command: command of -c; "" without -c.
    """
    if end.reason != "timeout" or timeout is None:
        return ""
    still = f", while {command!r} still ran" if command else ""
    return f"kinst: the trace ended after {timeout:g} s, by --timeout{still}"
