"""The indentation of flowindent (-F): entries and returns of functions as a tree (libdtrace's
dt_flowindent()).

An instruction at which an inlined function is entered or left is shown like the entry or return of
a function, with the inlined function's name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.probe import Crossing, Probe
from kinst.dlang.typed import Clause
from kinst.providers import interfaces

HEADER = f"{'CPU':>3} {'FUNCTION':<41}\n"
_STEP = 2


def _kind(name: str) -> str:
    """Return the last part of a probe's name, after the last hyphen, if it is "entry" or "return";
    else "".
    """
    last = name.rpartition("-")[2]
    return last if last in ("entry", "return") else ""


@dataclass(slots=True)
class FlowIndent:
    """The present indentation of each CPU's rows.

    Attributes:
        crossings: for each (clause, function of the probe, name of the probe) whose instruction
            enters or leaves an inlined function: that function, and which of the two the
            instruction does.
    """

    crossings: dict[tuple[int, str, str], Crossing] = field(default_factory=dict)
    _indents: dict[int, int] = field(default_factory=dict)
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def _crossing(self, probe: Probe, clause: int) -> Crossing:
        name = probe.name
        crossing = self.crossings.get((clause, name.function, name.name))
        return crossing or Crossing(_kind(name.name), name.function)

    def prefix(self, cpu: int, probe: Probe, clause: int, following: tuple[int, int] | None) -> str:
        """Return the first columns of a record's row, and update the CPU's indentation.

        If several clauses of a probe write a record at a hit, the hit changes the indentation only
        once: the first clause's row at an entry, the last clause's row at a return.

        Args:
            cpu: CPU of the record.
            probe: probe of the record.
            clause: clause of the record.
            following: (probe id, clause) of this CPU's next record; None if that is not known.
        """
        this = probe.id, clause
        before = self._last.get(cpu)
        self._last[cpu] = this
        crossing = self._crossing(probe, clause)
        flow = crossing.kind
        for other, kind in ((before, "entry"), (following, "return")):
            if flow == kind and other is not None and other != this and other[0] == probe.id:
                flow = "" if self._crossing(probe, other[1]) == crossing else flow
        indent = self._indents.get(cpu, 0)
        interface = interfaces().get(probe.name.provider)
        system_call = interface is not None and interface.system_calls
        if flow == "return":
            indent = max(0, indent - _STEP)
            shown = (" <= " if system_call else " <- ") + crossing.function
        elif flow == "entry":
            shown = (" => " if system_call else " -> ") + crossing.function
        else:
            shown = f"| {crossing.function}:{crossing.kind or probe.name.name}"
        self._indents[cpu] = indent + (_STEP if flow == "entry" else 0)
        return f"{cpu:3d} {' ' * indent + shown:<41} "


def crossings_of(clauses: Iterable[Clause]) -> dict[tuple[int, str, str], Crossing]:
    """Return FlowIndent.crossings for a program's clauses."""
    return {
        (clause.index, pattern.function, pattern.name): crossing
        for clause in clauses
        for pattern, crossing in zip(clause.patterns, clause.crossings, strict=False)
        if crossing is not None
    }
