"""Compare costs on a machine that is not quiet: paired rounds, takes by turns, several boots.

The guest's program calls in short rounds, with getuid(2) before and after each, and a call's time
is a multiple of those (tests/programs/rounds.c).  The host's processor runs at half its speed for
a while, or another program takes it; that changes what a read(2) takes by 400 ns, but hardly the
multiple.  A round whose getuid(2) before and after differ does not count.

A take is some hundred rounds of one planting, and its figure their median.  A hit costs the median
of a boot's takes less that of its untraced takes, over the hits of a call, in ns of the quickest
getuid(2) of all boots; the figure of a mode is the median over boots, with their range.

QEMU finds translated code and the host's addresses of memory in small direct-mapped tables.  Each
boot (KASLR) and each planting decide anew which addresses meet there, and each exec does for a
process's stacks.  So each take has a planting of its own, there are several boots, and one process
of the guest makes all calls of a boot.
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

TAKES = 3  # of a boot, for what costs little
OTHERS = 200  # hits by other programs of the guest while a mode is measured, at most


@dataclass(slots=True)
class Mode:
    """One way to probe, in one boot.

    Attributes:
        name: of the mode.
        effort: calls of a take.
        hits: hits of one call.
        take: run the effort's command traced; returns its rounds, and the hits that were counted.
        note: remark in the tables.
        takes: takes of a boot.
        others: hits by other programs of the guest, at most.
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
    """Takes of one boot, each as a multiple of getuid(2).

    Attributes:
        guest: with tests/programs/rounds.c in it.
        pace: ns of the quickest getuid(2).
        untraced: takes with nothing planted, by their effort.
        traced: takes of each mode, by its name.
    """

    guest: Guest
    pace: float = math.inf
    untraced: dict[Effort, list[float]] = field(default_factory=dict)
    traced: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guest.run("rounds serve")

    def take(self, mode: Mode) -> None:
        """Take a mode once, with untraced takes around it.

        Raises KinstError if hits are missing, or there are more than other programs explain.
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
        """Return the getuid(2) that a call took with its hits; None if no take counts."""
        return _median(self.traced.get(mode.name, ()))

    def hit(self, mode: Mode) -> float | None:
        """Return the getuid(2) that one hit took; None if no take counts."""
        traced, untraced = self.call(mode), _median(self.untraced.get(mode.effort.bare, ()))
        if traced is None or untraced is None:
            return None
        return (traced - untraced) / max(mode.hits, 1)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


@dataclass(slots=True)
class Boots:
    """Costs of modes in each boot.

    Attributes:
        budget: takes reports of modes that are left out.
        boots: the boots that there were.
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
        """Measure one boot: the modes of a group by turns, then the next group.

        If the guest hangs, the boot ends with the figures that it has.
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
        """Return the ns of the quickest getuid(2) of all boots."""
        return min(boot.pace for boot in self.boots)

    def costs(self, name: str) -> list[float]:
        """Return the ns of a hit of a mode, in each boot that has a figure."""
        hits = (boot.hit(self.modes[name]) for boot in self.boots) if name in self.modes else ()
        return [self.pace * hit for hit in hits if hit is not None]

    def untraced(self, call: str = "") -> list[float]:
        """Return the ns of an untraced call in each boot that made it."""
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
        """Return the cost of each mode: the median over boots, and their range.

        A mode without a figure of any boot is reported as a failure.
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
