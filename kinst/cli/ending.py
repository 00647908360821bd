"""What ended a trace, for people, where the output does not tell."""

from __future__ import annotations

from kinst.events import End


def ending_text(end: End, timeout: float | None, command: str) -> str:
    """Return a sentence on an end that neither the program nor its user brought about, else "".

    Args:
        end: the last event.
        timeout: of --timeout, in seconds.
        command: of -c.
    """
    if end.reason != "timeout" or timeout is None:
        return ""
    still = f", while {command!r} still ran" if command else ""
    return f"kinst: the trace ended after {timeout:g} s, by --timeout{still}"
