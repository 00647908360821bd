"""How costs are compared on a machine that is not quiet: short takes in turns, several boots.

A take is some hundred rounds of a guest's calls, each of a fraction of a ms, and its figure the
least of them: whatever disturbs a round only ever adds time.  A mode's takes each stand between two
untraced ones of as many rounds, and a hit costs by how much the take is above the mean of those
two: the median of a boot's takes, and then the median over boots, with their range.  What that is
for:
- The least of many rounds is less than the least of few, so what is compared has to have as many:
  not a mode's own rounds and all untraced ones of a boot.
- CPUs change their speed, by 2 to 4, for ms or for seconds, and other programs want them.  A take
  is 0.1 s, which outlasts most slow stretches: the least of 600 rounds is within 2% of that of the
  next take's, the least of 60 was not within 40%.  Benchmark and guests have a real-time priority
  where the host allows it (go_first()).  A take beside an untraced one that is 5% slower than such
  ones of the boot mostly are fell into a slow stretch and is not used; a mode that has no other
  take has no figure of this boot.
- QEMU finds translated code and the host's addresses of memory in small direct-mapped tables.
  What meets what there is another matter in each boot, where the kernel and what kinst puts beside
  it have addresses of their own (KASLR), and what code is translated to lies elsewhere after each
  planting.  So there are many takes, each of a planting of its own, and several boots.  One
  process of the guest makes all of a boot's calls (bench/caller.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.budget import Budget
from bench.caller import Callers
from bench.guest import Guest, GuestHangsError
from bench.hit_table import Cost
from bench.hit_tools import Effort, rounds_of
from kinst import KinstError

LAPS = 5  # of a boot, at most: good takes that are wanted of what costs little
NEAR = 1.05  # times a boot's untraced takes, at their lower quartile: as fast as the machine is
OTHERS = 200  # hits of the guest's other programs while a mode is measured, at most


@dataclass(frozen=True, slots=True)
class Take:
    """least: ns of a call, in a take's fastest round.  before, after: of the untraced takes."""

    least: float
    before: float
    after: float

    @property
    def added(self) -> float:
        """ns of a call that are the probes'."""
        return self.least - (self.before + self.after) / 2


@dataclass(slots=True)
class Bare:
    """Untraced takes of a guest, by their effort: the least ns of a call in each."""

    guest: Guest
    takes: dict[Effort, list[float]] = field(default_factory=dict)
    _last: Effort | None = None

    def take(self, effort: Effort) -> float:
        """Of as many rounds as an effort has, and as many calls in each."""
        bare = effort.bare
        self.takes.setdefault(bare, []).append(min(rounds_of(self.guest.run(bare.command))))
        self._last = bare
        return self.takes[bare][-1]

    def before(self, effort: Effort) -> float:
        """The take that a mode's follows: the last one, where that was of such rounds."""
        return self.takes[effort.bare][-1] if self._last == effort.bare else self.take(effort)

    def usual(self, effort: Effort) -> float:
        """What such a take is where nothing disturbs it."""
        each = self.takes[effort.bare]
        return statistics.quantiles(each, n=4, method="inclusive")[0] if each[1:] else each[0]

    def good(self, effort: Effort, takes: Iterable[Take]) -> list[Take]:
        """Those of an effort's takes beside which the machine was not slow."""
        most = NEAR * self.usual(effort)
        return [take for take in takes if max(take.before, take.after) <= most]


@dataclass(slots=True)
class Mode:
    """One way to probe, in one boot.  take: run it once; (ns of a call in each round, hits seen).

    hits: in one call.  enough: good takes that are wanted."""

    name: str
    effort: Effort
    hits: int
    take: Callable[[Effort], tuple[list[float], int]]
    note: str = ""
    enough: int = LAPS
    takes: list[Take] = field(default_factory=list)

    def run(self, bare: Bare) -> None:
        """Take it once, between untraced takes.  Raises KinstError when hits are missing, or there
        are more than the guest's other programs explain."""
        before = bare.before(self.effort)
        rounds, hits = self.take(self.effort)
        wanted = self.effort.total * self.hits
        if not wanted <= hits <= wanted + OTHERS * max(self.hits, 1):
            raise KinstError(f"{self.name}: {hits} hits were counted, and there were {wanted}")
        least = min(rounds[-self.effort.bare.rounds :])
        self.takes.append(Take(least, before, bare.take(self.effort)))

    def good(self, bare: Bare) -> list[Take]:
        return bare.good(self.effort, self.takes)


@dataclass(slots=True)
class Boots:
    """What modes cost in each boot that had a figure of them, ns of a hit, by their names."""

    budget: Budget
    count: int = 0
    costs: dict[str, list[float]] = field(default_factory=dict)
    calls: dict[str, list[float]] = field(default_factory=dict)
    modes: dict[str, Mode] = field(default_factory=dict)  # of the last boot
    untraced: dict[str, list[float]] = field(default_factory=dict)  # by call, ns
    failed: set[str] = field(default_factory=set)  # modes, which are left out from then on
    callers: Callers = field(default_factory=Callers)

    def measure(self, guest: Guest, groups: Sequence[Sequence[Mode]]) -> None:
        """One boot: the modes of a group by turns, until each has takes enough; then the next
        group.  Where the guest hangs, the boot is over, and has figures of what was before."""
        self.count += 1
        self.callers.begin(guest)
        bare = Bare(guest)
        try:
            self._take(groups, bare)
        except GuestHangsError as error:
            self.budget.say(f"boot {self.count} ends early: {error}")
        for modes in groups:
            for mode in modes:
                if mode.name not in self.failed:
                    self._settle(mode, bare)
        for call in {effort.call for effort in bare.takes}:
            least = min(bare.usual(effort) for effort in bare.takes if effort.call == call)
            self.untraced.setdefault(call or "read", []).append(least)

    def _take(self, groups: Sequence[Sequence[Mode]], bare: Bare) -> None:
        for modes in groups:
            for lap in range(LAPS):
                left = [
                    mode
                    for mode in modes
                    if mode.name not in self.failed
                    and (not mode.takes or len(mode.good(bare)) < mode.enough)
                ]
                if left:
                    self.budget.say(f"boot {self.count}, lap {lap + 1}: {len(left)} ways to probe")
                    self._lap(left, bare)

    def _lap(self, modes: Iterable[Mode], bare: Bare) -> None:
        for mode in modes:
            try:
                mode.run(bare)
            except GuestHangsError:
                raise
            except KinstError as error:
                self.failed.add(mode.name)
                self.budget.failed(f"{mode.name}: {error}")

    def _settle(self, mode: Mode, bare: Bare) -> None:
        self.modes[mode.name] = mode
        if not mode.takes:  # the guest hung before
            return
        good = mode.good(bare)
        if not good:
            self.budget.say(f"boot {self.count}: the machine was slow around {mode.name}")
            return
        added = statistics.median(take.added for take in good)
        self.costs.setdefault(mode.name, []).append(added / max(mode.hits, 1))
        self.calls.setdefault(mode.name, []).append(statistics.median(t.least for t in good))

    def untraced_call(self, call: str = "read") -> float:
        """ns of a call with no probe, the median over boots."""
        return statistics.median(self.untraced[call])

    def found(self) -> list[Cost]:
        """The median over boots of what each mode costs, and the range.  Those with no figure of
        any boot are told as failures."""
        found = []
        for name, mode in self.modes.items():
            each = self.costs.get(name, [])
            if each:
                call = statistics.median(self.calls[name])
                found.append(
                    Cost(name, mode.hits, call, statistics.median(each), min(each), max(each),
                         len(each), mode.note)
                )  # fmt: skip
            elif name not in self.failed:
                self.budget.failed(
                    f"{name}: in each boot the machine was slow around it, or the guest hung"
                )
        return found
