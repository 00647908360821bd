"""flowindent (-F): entries and returns shown as a tree (libdtrace's dt_flowindent())."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinst.core.probe import Probe

HEADER = f"{'CPU':>3} {'FUNCTION':<41}\n"
_STEP = 2


def _flow(name: str) -> str:
    """entry or return, for probes of that name or with that last part; else ""."""
    last = name.rpartition("-")[2]
    return last if last in ("entry", "return") else ""


@dataclass(slots=True)
class Flow:
    """The indentation of each CPU.  A record is told by its probe and its clause."""

    _indents: dict[int, int] = field(default_factory=dict)
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def prefix(self, cpu: int, probe: Probe, clause: int, following: tuple[int, int] | None) -> str:
        """The first columns of a record's row.

        following: (probe id, clause) of the next record of this CPU, None where it is not
        known.  An entry's second clause does not indent again, a return's unindents last.
        """
        this = probe.id, clause
        before = self._last.get(cpu)
        self._last[cpu] = this
        flow = _flow(probe.name.name)
        for other, kind in ((before, "entry"), (following, "return")):
            if flow == kind and other is not None and other != this and other[0] == probe.id:
                flow = ""
        indent = self._indents.get(cpu, 0)
        system_call = probe.name.provider == "syscall"
        if flow == "return":
            indent = max(0, indent - _STEP)
            shown = (" <= " if system_call else " <- ") + probe.name.function
        elif flow == "entry":
            shown = (" => " if system_call else " -> ") + probe.name.function
        else:
            shown = f"| {probe.name.function}:{probe.name.name}"
        self._indents[cpu] = indent + (_STEP if flow == "entry" else 0)
        return f"{cpu:3d} {' ' * indent + shown:<41} "
