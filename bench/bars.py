"""Bars (required limits) for the cost of hits and for the share of traps, and verdicts on measured
figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Verdict = tuple[str, bool]  # text with figure and bar, and whether the figure meets the bar


class ShortSite(Protocol):
    """A site that was planted alone: the best way to plant it, and the nanoseconds of a hit by this
    way and by a trap."""

    @property
    def way(self) -> str: ...
    @property
    def ns(self) -> float: ...
    @property
    def trap(self) -> float: ...


class TrapShares(Protocol):
    """Percentages of instructions that are planted by traps."""

    def traps(self) -> float: ...
    def traps_alone(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of one ISA.

    Attributes:
        ns: most nanoseconds that a hit may cost, by mode of bench/hit_cost.py or the end of a
            mode's name.
        cheap: (number of sites, nanoseconds): so many of 100 short sites must cost less than so
            many nanoseconds.
        traps: percentages of instructions that may be traps: planted with their whole functions,
            and planted alone.
        reached: (percentage, factor): so many short sites must be planted by a run or a gate, and
            be so many times cheaper than by a trap.
    """

    ns: Mapping[str, float]
    cheap: tuple[int, float] | None = None
    traps: tuple[float, float] | None = None
    reached: tuple[float, float] | None = None


BARS = {
    "amd64": Bars(
        {
            "all: kinst, @[probename] = count()": 8,
            "getppid: kinst, @[probename] = count()": 6,
            "kinst jump: @ = count()": 20,
            "== 77/, false": 30,
            "]] = count()": 60,
            "kinst jump: printf time and two registers": 90,
        },
        cheap=(95, 60.0),
        traps=(5.0, 8.0),
    ),
    "arm64": Bars({"all: kinst, @[probename] = count()": 10}),
    "riscv64": Bars({"all: kinst, @[probename] = count()": 60}, reached=(80.0, 10.0)),
}


def bars_of(
    isa: str, ns: Mapping[str, float], short: Sequence[ShortSite], shares: TrapShares | None
) -> list[Verdict]:
    """Return the verdicts on the costs of modes, on short sites, and on shares of traps.

    Args:
        isa: name of the instruction set.
        ns: nanoseconds of a hit by mode.
        short: measured short sites.
        shares: shares of traps; None if they were not measured.
    """
    bars, found = BARS[isa], list[Verdict]()
    for name, most in bars.ns.items():
        for mode, cost in ns.items():
            if mode == name or (not name.startswith(("all", "getppid")) and mode.endswith(name)):
                found.append(
                    (f"{mode}: {cost:.1f} ns a hit, at most {most:g} wanted", cost <= most)
                )
    if short and bars.cheap:
        wanted, limit = bars.cheap
        part = 100 * sum(one.ns < limit for one in short) / len(short)
        text = f"short sites alone: {part:.0f} of 100 under {limit:g} ns, at least {wanted} wanted"
        found.append((text, part >= wanted))
    if short and bars.reached:
        wanted_part, times = bars.reached
        reached = [one for one in short if one.way in ("run", "gate", "jump")]
        part = 100 * len(reached) / len(short)
        text = f"{part:.0f}% of sites by a run or a gate, at least {wanted_part:g}% wanted"
        found.append((text, part >= wanted_part))
        cheaper = sum(one.trap >= times * one.ns for one in reached)
        text = f"{cheaper} of {len(reached)} of them cost a {times:g}th of their trap or less"
        found.append((text, cheaper == len(reached)))
    if shares is not None and bars.traps:
        whole, alone = bars.traps
        text = f"traps with whole functions: {shares.traps():.1f}%, less than {whole:g}% wanted"
        found.append((text, shares.traps() < whole))
        text = f"traps alone: {shares.traps_alone():.1f}%, less than {alone:g}% wanted"
        found.append((text, shares.traps_alone() < alone))
    return found
