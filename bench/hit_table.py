"""Table of bench/hit_cost.py's figures: nanoseconds of a hit, and ratios to other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds of one hit in a mode (bench/boots.py).

    Attributes:
        name: name of the mode.
        hits: number of hits in one call; 0 for an untraced call.
        call_ns: nanoseconds of a call with its hits, the median over boots.
        hit_ns: nanoseconds of a hit, the median over boots.
        low: the least value of a boot.
        high: the greatest value of a boot.
        boots: number of boots with a figure.
        note: remark in the tables.
    """

    name: str
    hits: int
    call_ns: float
    hit_ns: float
    low: float
    high: float
    boots: int
    note: str


def ratio(ns: float, peer: float) -> str:
    """Return, as text, how many times cheaper a hit is than the peer's: 4 for a quarter of the
    cost, 0.25 for four times the cost.

    Args:
        ns: nanoseconds of a hit.
        peer: nanoseconds of a hit by the peer.
    """
    return f"{peer / ns:,.1f}" if ns > 0 and peer / ns >= 0.1 else f"{peer / max(ns, 0.1):.2g}"


def nanoseconds(ns: float) -> str:
    return f"{ns:,.1f}" if ns < 20 else f"{ns:,.0f}"


def table_of(title: str, costs: Sequence[Cost], peers: dict[str, str]) -> Table:
    by_name = {one.name: one for one in costs}
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for column in ("ns/hit", "boots'", "boots", *(f"x {peer}" for peer in peers)):
        table.add_column(column, justify="right")
    for one in costs:
        if not one.hits:
            table.add_row(f"{one.name}, a call", f"{one.call_ns:,.0f}")
            continue
        table.add_row(
            escape(one.name),
            nanoseconds(one.hit_ns),
            f"{nanoseconds(one.low)} to {nanoseconds(one.high)}",
            f"{one.boots}",
            *(ratio(one.hit_ns, by_name[peer].hit_ns) for peer in peers.values()),
        )
    return table
