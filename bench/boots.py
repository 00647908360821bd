"""How costs are compared on a machine that is not quiet: many short takes in turns, several boots.

Two things disturb such figures here, and each has its answer:
- CPUs change their speed, by 2 to 4 and for seconds at a time, and other programs want them.  That
  only ever adds time.  So benchmark and guests have a real-time priority where the host allows it
  (go_first()), and a mode is measured in several short takes (tens of ms), modes by turns, with
  untraced rounds directly around each; the least of a boot's rounds counts.  A take whose untraced
  rounds, before or behind it, are not near the least of the boot fell into a slow stretch and is
  not used; a mode that has no other take has no figure of this boot.
- QEMU finds translated code and the host's addresses of memory in small direct-mapped tables.
  Where code lies decides what meets what there, and that can cost one mode tens of ns for as long
  as the guest lives.  Each boot has its own addresses: the kernel's (KASLR) and kinst's.  So the
  figure is the median over boots, each of which has its least, and the range over boots is told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.budget import Budget
from bench.guest import Guest, GuestHangsError
from bench.hit_table import Cost
from bench.hit_tools import Effort, rounds_of
from kinst import KinstError

LAPS = 4  # of a boot, at most
NEAR = 1.1  # times the least of a boot's untraced rounds: as fast as the machine gets
OTHERS = 200  # hits of the guest's other programs while a mode is measured, at most


@dataclass(slots=True)
class Bare:
    """Untraced rounds of a guest: the ns of a call."""

    guest: Guest
    least: dict[Effort, float] = field(default_factory=dict)

    def take(self, effort: Effort) -> float:
        """The least of a few rounds of as many calls as `effort` has."""
        bare = effort.bare
        found = min(rounds_of(self.guest.run(bare.command)))
        self.least[bare] = min(found, self.least.get(bare, math.inf))
        return found

    def of(self, effort: Effort) -> float:
        """The least so far."""
        return self.least[effort.bare]


@dataclass(frozen=True, slots=True)
class Take:
    """least: ns of a call, in a take's fastest round.  around: untraced, before it or behind it,
    whichever was slower."""

    least: float
    around: float

    def is_good(self, bare: float) -> bool:
        return self.around <= NEAR * bare


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

    def run(self, bare: Bare, before: float) -> float:
        """Take it once, between untraced rounds; the least of those behind it.  Raises KinstError
        when hits are missing, or there are more than the guest's other programs explain."""
        rounds, hits = self.take(self.effort)
        wanted = self.effort.total * self.hits
        if not wanted <= hits <= wanted + OTHERS * max(self.hits, 1):
            raise KinstError(f"{self.name}: {hits} hits were counted, and there were {wanted}")
        after = bare.take(self.effort)
        self.takes.append(Take(min(rounds), max(before, after)))
        return after

    def good(self, bare: Bare) -> list[Take]:
        return [take for take in self.takes if take.is_good(bare.of(self.effort))]


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

    def measure(self, guest: Guest, groups: Sequence[Sequence[Mode]]) -> None:
        """One boot: the modes of a group by turns, until each has takes enough; then the next
        group.  Where the guest hangs, the boot is over, and has figures of what was before."""
        self.count += 1
        bare = Bare(guest)
        try:
            self._take(groups, bare)
        except GuestHangsError as error:
            self.budget.say(f"boot {self.count} ends early: {error}")
        for modes in groups:
            for mode in modes:
                if mode.name not in self.failed:
                    self._settle(mode, bare)
        for effort, ns in bare.least.items():
            self.untraced.setdefault(effort.call or "read", []).append(ns)

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
        before, of = 0.0, None
        for mode in modes:
            try:
                if of != mode.effort.bare:
                    before, of = bare.take(mode.effort), mode.effort.bare
                before = mode.run(bare, before)
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
        least = min(take.least for take in good)
        cost = (least - bare.of(mode.effort)) / max(mode.hits, 1)
        self.costs.setdefault(mode.name, []).append(cost)
        self.calls.setdefault(mode.name, []).append(least)

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
