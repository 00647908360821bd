"""The kernel's own kprobe events in a guest, told by tests/programs/kprobes.c.

What the events saw comes through perf, which takes it on all instruction sets.  tracefs' buffer
does not on riscv64: a breakpoint's handler is in the context of an NMI there, and in that context
the buffer of a kernel without CONFIG_ARCH_HAVE_NMI_SAFE_CMPXCHG, as Debian's 6.12 is, takes
nothing; nor has such a kernel histogram triggers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """pid: of the command.  events: hits in it by the event's name, of those that could be set.
    values: what the event called regs fetched, hit by hit."""

    pid: str
    events: Mapping[str, int]
    values: Sequence[Sequence[int]]


def script(places: Mapping[str, str], command: str) -> str:
    """Shell commands that set an event for each name at its place ("function+offset", with
    arguments to fetch behind it) and run a command.

    Without the kernel's jumps, which are longer than what kinst expects at its neighbours."""
    return "\n".join(
        [
            "echo 0 > /proc/sys/debug/kprobes-optimization 2>/dev/null",
            "cd /sys/kernel/tracing || exit 1",
            *(f"echo 'p:{name} {at}' >> kprobe_events" for name, at in places.items()),
            f"kprobes {' '.join(places)} -- {command}",
        ]
    )


def seen(printed: str) -> Seen:
    """What kprobes printed among other things."""
    (pid,) = re.findall(r"^pid (\d+)$", printed, re.M)
    events = {name: int(n) for name, n in re.findall(r"^event (\w+) (\d+)$", printed, re.M)}
    fetched = re.findall(r"^regs ([0-9a-f ]+)$", printed, re.M)
    return Seen(pid, events, [[int(word, 16) for word in line.split()] for line in fetched])
