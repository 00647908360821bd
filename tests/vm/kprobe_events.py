"""The kernel's own kprobe events in a guest, read by tests/programs/kprobes.c.

The program reads the events through perf, which works on all instruction sets.  tracefs' buffer
does not work on riscv64: there a breakpoint's handler runs in NMI context, and in that context the
buffer of a kernel without CONFIG_ARCH_HAVE_NMI_SAFE_CMPXCHG, as Debian's 6.12 is, takes nothing.
Such a kernel has no histogram triggers either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """Hits of kprobe events in one command.

    Attributes:
        pid: of the command.
        events: hits by the event's name, for events that could be set.
        values: values that the event called regs fetched at each hit.
    """

    pid: str
    events: Mapping[str, int]
    values: Sequence[Sequence[int]]


def script(places: Mapping[str, str], command: str) -> str:
    """Return shell commands that set an event for each name and run a command.

    Places are "function+offset", followed by the arguments to fetch.  The kernel's own jumps are
    turned off: they are longer than the patches that kinst expects near its own.
    """
    return "\n".join(
        [
            "echo 0 > /proc/sys/debug/kprobes-optimization 2>/dev/null",
            "cd /sys/kernel/tracing || exit 1",
            *(f"echo 'p:{name} {at}' >> kprobe_events" for name, at in places.items()),
            f"kprobes {' '.join(places)} -- {command}",
        ]
    )


def seen(printed: str) -> Seen:
    """Return the output of kprobes, found among other output."""
    (pid,) = re.findall(r"^pid (\d+)$", printed, re.M)
    events = {name: int(n) for name, n in re.findall(r"^event (\w+) (\d+)$", printed, re.M)}
    fetched = re.findall(r"^regs ([0-9a-f ]+)$", printed, re.M)
    return Seen(pid, events, [[int(word, 16) for word in line.split()] for line in fetched])
