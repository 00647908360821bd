"""The figures of bench/hit_cost.py as a table: ns of a hit, and ratios to named peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Cost:
    """ns of one hit (bench/boots.py).

    Attributes:
        name: of the mode.
        hits: hits of one call; 0 for an untraced call.
        call_ns: ns of a call with its hits, the median over boots.
        hit_ns: the median over boots.
        low: the least of any boot.
        high: the most of any boot.
        boots: how many had a figure.
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
    """Return how many times cheaper than the peer it is; 0.25 is four times dearer."""
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
