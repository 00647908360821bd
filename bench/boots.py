"""Comparison of costs on a host that is not quiet: paired rounds, short alternating measurements
(takes), several boots.

The guest's program makes calls in short rounds, with getuid(2) before and after each round. A
call's time is expressed as a multiple of getuid(2)'s (tests/programs/rounds.c). The host's CPU may
run at half its speed for a while, or another program may use it: that changes the time of a read(2)
by 400 ns, but hardly its multiple. A round does not count if getuid(2) takes different times before
and after it.

A take is a few hundred rounds with the probes planted once; its figure is their median. The cost of
a hit in a boot is the median of the boot's takes minus the median of its untraced takes, divided by
the hits in a call. This cost is converted to nanoseconds by the quickest getuid(2) of all boots.
The figure of a mode is the median over boots, with the range.

QEMU finds translated code and host addresses of memory in small direct-mapped tables. Each boot
(KASLR) and each planting changes which addresses share a slot of these tables, and each exec does
so for a process's stacks. Therefore probes are planted anew for each take, there are several boots,
and one process of the guest makes all calls of a boot.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.budget import Budget
from bench.guest import Guest, GuestHangsError
from bench.hit_table import Cost
from bench.hit_tools import Effort, Paired, paired_of
from kinst import KinstError

TAKES = 3  # number of takes in a boot, for modes that cost little
OTHERS = 200  # most hits by other programs of the guest while a mode is measured


@dataclass(slots=True)
class Mode:
    """A way to probe that is measured, in one boot.

    Attributes:
        name: name of the mode.
        effort: the calls of a take.
        hits: number of hits in one call.
        take: runs the effort's command traced; returns its rounds and the number of counted hits.
        note: remark in the tables.
        takes: number of takes in a boot.
        others: most hits by other programs of the guest during a take.
    """

    name: str
    effort: Effort
    hits: int
    take: Callable[[Effort], tuple[Paired, int]]
    note: str = ""
    takes: int = TAKES
    others: float = OTHERS


@dataclass(slots=True)
class Boot:
    """Takes of one boot, each as a multiple of the time of getuid(2).

    Attributes:
        guest: a guest that has tests/programs/rounds.c.
        pace: nanoseconds of the quickest getuid(2).
        untraced: takes with nothing planted, by their effort.
        traced: takes of each mode, by the mode's name.
    """

    guest: Guest
    pace: float = math.inf
    untraced: dict[Effort, list[float]] = field(default_factory=dict)
    traced: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guest.run("rounds serve")

    def take(self, mode: Mode) -> None:
        """Run a take of a mode, and untraced takes before and after it, and keep their figures.

        Raises KinstError if hits are missing, or if there are more hits than other programs
        explain.
        """
        bare = mode.effort.bare
        if bare not in self.untraced:
            self._take_untraced(bare)
        rounds, hits = mode.take(mode.effort)
        wanted = mode.effort.total * mode.hits
        if not wanted <= hits <= wanted + mode.others * max(mode.hits, 1):
            raise KinstError(f"{mode.name}: {hits} hits were counted, and there were {wanted}")
        self._add(self.traced.setdefault(mode.name, []), rounds)
        self._take_untraced(bare)

    def _take_untraced(self, bare: Effort) -> None:
        takes = self.untraced.setdefault(bare, [])
        self._add(takes, paired_of(self.guest.run(bare.command), bare))

    def _add(self, takes: list[float], rounds: Paired) -> None:
        self.pace = min(self.pace, rounds.pace)
        if rounds.times is not None:
            takes.append(rounds.times)

    def call(self, mode: Mode) -> float | None:
        """Return the time of a call with its hits, in multiples of getuid(2); None if no take
        counts."""
        return _median(self.traced.get(mode.name, ()))

    def hit(self, mode: Mode) -> float | None:
        """Return the cost of one hit, in multiples of getuid(2); None if no take counts."""
        traced, untraced = self.call(mode), _median(self.untraced.get(mode.effort.bare, ()))
        if traced is None or untraced is None:
            return None
        return (traced - untraced) / max(mode.hits, 1)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


@dataclass(slots=True)
class Boots:
    """Costs of modes over several boots.

    Attributes:
        budget: time limit, which also gets reports of modes that are left out.
        boots: the boots so far.
        modes: modes of all boots, by their names.
        failed: names of modes that failed; later boots leave them out.
    """

    budget: Budget
    boots: list[Boot] = field(default_factory=list)
    modes: dict[str, Mode] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.boots)

    def measure(self, guest: Guest, groups: Sequence[Sequence[Mode]]) -> None:
        """Measure one boot: alternate between the modes of a group, then go on to the next group.

        If the guest hangs, the boot ends with the figures that it has.

        Args:
            guest: a guest that has just booted.
            groups: groups of modes.
        """
        boot = Boot(guest)
        self.boots.append(boot)
        try:
            for modes in groups:
                for lap in range(max((mode.takes for mode in modes), default=0)):
                    self._lap(boot, lap, modes)
        except GuestHangsError as error:
            self.budget.say(f"boot {self.count} ends early: {error}")

    def _lap(self, boot: Boot, lap: int, modes: Iterable[Mode]) -> None:
        due = [mode for mode in modes if lap < mode.takes and mode.name not in self.failed]
        if due:
            self.budget.say(f"boot {self.count}, lap {lap + 1}: {len(due)} ways to probe")
        for mode in due:
            self.modes[mode.name] = mode
            try:
                boot.take(mode)
            except GuestHangsError:
                raise
            except KinstError as error:
                self.failed.add(mode.name)
                self.budget.failed(f"{mode.name}: {error}")

    @property
    def pace(self) -> float:
        """Nanoseconds of the quickest getuid(2) of all boots."""
        return min(boot.pace for boot in self.boots)

    def costs(self, name: str) -> list[float]:
        """Return the nanoseconds of a hit of a mode, for each boot that has a figure."""
        hits = (boot.hit(self.modes[name]) for boot in self.boots) if name in self.modes else ()
        return [self.pace * hit for hit in hits if hit is not None]

    def untraced(self, call: str = "") -> list[float]:
        """Return the nanoseconds of an untraced call, for each boot that made such calls.

        Args:
            call: "" for read(2), or "getppid".
        """
        found = []
        for boot in self.boots:
            takes = [
                statistics.median(each)
                for effort, each in boot.untraced.items()
                if effort.call == call and each
            ]
            if takes:
                found.append(self.pace * min(takes))
        return found

    def table(self) -> list[Cost]:
        """Return the cost of each mode: the median over boots, and the range.

        A mode that has no figure in any boot is reported as a failure.
        """
        rows = []
        for name, mode in self.modes.items():
            each = self.costs(name)
            if not each and name in self.failed:
                continue
            if not each:
                self.budget.failed(f"{name}: something disturbed all its rounds, or the guest hung")
                continue
            calls = [boot.call(mode) for boot in self.boots]
            call = self.pace * statistics.median(times for times in calls if times is not None)
            rows.append(
                Cost(name, mode.hits, call, statistics.median(each), min(each), max(each),
                     len(each), mode.note)
            )  # fmt: skip
        return rows
