"""The running kernel as providers see it: functions by name, live instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kinst.core.isa import Instruction
from kinst.core.probe import Function, ProbeName, ProbePattern, Site


class Kernel(Protocol):
    """What a provider may ask of the traced kernel."""

    def find(self, module: str, function: str) -> Sequence[Function]:
        """Functions whose module and name match the globs; two symbols of one name come as
        name@1, name@2 in address order.  A plain name that several symbols have raises
        KinstError and lists them."""
        ...

    def suggest(self, function: str) -> str:
        """A hint for an unknown name: 'did you mean ...', or ""."""
        ...

    def instructions(self, function: Function) -> Sequence[Instruction]:
        """The live instructions of a function, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Timer:
    """period_ns between firings; each_cpu: profile-N (every CPU) rather than tick-N (one)."""

    period_ns: int
    each_cpu: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A probe that a description means, before it has an id."""

    name: ProbeName
    site: Site | None = None
    timer: Timer | None = None


class Provider(Protocol):
    name: str
    needs_kernel: bool  # its probes are instructions of a traced kernel

    def listed(self) -> Sequence[Found]:
        """The probes that exist without being asked for (for -l with nothing named)."""
        ...

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Sequence[Found]:
        """The probes that pattern means; KinstError where it names what cannot be."""
        ...
