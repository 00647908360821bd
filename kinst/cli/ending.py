"""Messages about the end of a trace that the output does not explain."""

from __future__ import annotations

from kinst.events import End


def ending_text(end: End, timeout: float | None, command: str) -> str:
    """Return a sentence about an end by --timeout, else "".

    Args:
        end: the last event.
        timeout: of --timeout, in seconds.
        command: of -c.
    """
    if end.reason != "timeout" or timeout is None:
        return ""
    still = f", while {command!r} still ran" if command else ""
    return f"kinst: the trace ended after {timeout:g} s, by --timeout{still}"
