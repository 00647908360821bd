"""Message about a trace that shows nothing for a while: what is planted, and why nothing comes.

Tested by tests/session/test_silence.py and tests/vm/language/test_silence.py.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 2.0  # seconds without a record until the message


@dataclass(frozen=True, slots=True)
class Quiet:
    """Trace that has shown no record of the kernel yet.

    Attributes:
        planted: how many instructions are planted.
        has_counted: whether an aggregation has a value.
        has_command: whether it ends with a command.
        is_guest: whether the machine is a guest that runs kinst's commands and nothing else.
        waits_in: function of the kernel in which the command waits; "" if it does not wait, or that
            is not known.
    """

    planted: int
    has_counted: bool
    has_command: bool
    is_guest: bool
    waits_in: str = ""


def reason(quiet: Quiet) -> str:
    """Return the line to say, "" if there is nothing to say yet."""
    if not quiet.planted:
        return ""
    if quiet.has_counted:
        if quiet.has_command:
            return ""
        return "kinst: probes fire; aggregations are printed when the trace ends: Ctrl-C ends it"
    some = "1 instruction is" if quiet.planted == 1 else f"{quiet.planted} instructions are"
    planted = f"kinst: {some} planted, and none has run for {SECONDS:g} s"
    if not quiet.has_command:
        if quiet.is_guest:
            return f"{planted}: the guest has booted and is idle; -c or --shell gives it work"
        return f"{planted}: nothing that runs there comes to them"
    return f"{planted}: the command waits in {quiet.waits_in}()" if quiet.waits_in else ""
