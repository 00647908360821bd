"""The live table of an aggregation: its values at each moment, sorted and cut to the screen.

Everything except the terminal: values come in as snapshots, keys as names, and cells go out as
text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kinst.events import Aggregation, Bucket, Key
from kinst.views.buckets import key_text

HISTORY = 24  # intervals in a sparkline
_BLOCKS = "▁▂▃▄▅▆▇█"
# Aggregating functions whose values only grow: their change per second has a meaning.
_GROWING = ("count", "sum", "quantize", "lquantize", "llquantize")


def sparkline(values: Iterable[float]) -> str:
    """Return a character for each value, as high as its share of the highest; a blank for 0."""
    shown = list(values)
    most = max(shown, default=0)
    if most <= 0:
        return " " * len(shown)
    last = len(_BLOCKS) - 1
    return "".join(
        " " if value <= 0 else _BLOCKS[min(int(value / most * last + 0.5), last)] for value in shown
    )


def number(value: float) -> str:
    """Return a number for a column: whole numbers in full."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def quantile(row: Sequence[Bucket], part: float) -> float:
    """Return the lower bound of the bucket in which this part of the values ends; -inf below
    all."""
    remaining = part * sum(one.count for one in row)
    for one in row:
        remaining -= one.count
        if remaining <= 0:
            return float("-inf") if one.low is None else one.low
    return 0.0


@dataclass(slots=True)
class _TopRow:
    """A row of the table.

    Attributes:
        key: of the aggregation.
        value: of the aggregation; for a distribution how many values it has.
        rate: change per second.
        buckets: of a distribution.
        rates: of the last intervals.
    """

    key: Key
    value: float = 0.0
    rate: float = 0.0
    buckets: tuple[Bucket, ...] = ()
    rates: deque[float] = field(default_factory=lambda: deque([0.0] * HISTORY, HISTORY))


class TopTable:
    """The table of one aggregation.

    Attributes:
        name: of the aggregation.
        function: that aggregates.
        sorted_by: index of a column.
        reverse: smallest first.
        first: index of the first row on the screen.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self.name = aggregation.name
        self.function = aggregation.function
        self._keys = len(aggregation.keys)
        self._rows: dict[Key, _TopRow] = {}
        self._when: float | None = None
        self.reverse = False
        self.first = 0
        self.sorted_by = self.columns.index("per s") if self._grows else 1

    @property
    def _grows(self) -> bool:
        return self.function in _GROWING

    @property
    def _distributed(self) -> bool:
        return self.function.endswith("quantize")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; the first is the key, the last has sparklines."""
        rate = ("per s",) if self._grows else ()
        share = ("%",) if self.function in ("count", "sum") else ()
        spread = ("p50", "p99") if self._distributed else ()
        value = "values" if self._distributed else self.function
        return ("key", value, *rate, *share, *spread, "")

    def take(self, aggregation: Aggregation, now: float) -> None:
        """Take the values at a moment (seconds on any clock)."""
        passed = now - self._when if self._when is not None else 0.0
        self._when = now
        rows: Mapping[Key, int | tuple[Bucket, ...]] = aggregation.rows
        for key in [key for key in self._rows if key not in rows]:
            del self._rows[key]  # removed by clear() or trunc()
        for key, given in rows.items():
            row = self._rows.setdefault(key, _TopRow(key))
            row.buckets = given if isinstance(given, tuple) else ()
            value = given if isinstance(given, int) else sum(one.count for one in given)
            # After clear() values start from 0 again.
            change = value - row.value if value >= row.value else value
            row.value = value
            row.rate = change / passed if passed > 0 else 0.0
            row.rates.append(row.rate if self._grows else value)

    def press(self, key: str, height: int) -> None:
        """Handle a key.

        Left, right or a digit chooses the column that is sorted by; r reverses; up, down, page up,
        page down and home scroll.

        Args:
            key: its name.
            height: rows on the screen.
        """
        columns = len(self.columns) - 1
        if key in ("left", "right"):
            self.sorted_by = (self.sorted_by + (1 if key == "right" else -1)) % columns
        elif key.isdigit() and 1 <= int(key) <= columns:
            self.sorted_by = int(key) - 1
        elif key == "r":
            self.reverse = not self.reverse
        steps = {"up": -1, "down": 1, "page up": -height, "page down": height, "home": -(1 << 60)}
        most = max(len(self._rows) - height, 0)
        self.first = min(max(self.first + steps.get(key, 0), 0), most)

    def __len__(self) -> int:
        return len(self._rows)

    def cells(self, height: int) -> list[tuple[str, ...]]:
        """Return the rows on the screen."""
        total = sum(row.value for row in self._rows.values()) or 1.0
        by = self.columns[self.sorted_by]

        def measure(row: _TopRow) -> float:
            return {
                "per s": row.rate, "p50": quantile(row.buckets, 0.5),
                "p99": quantile(row.buckets, 0.99),
            }.get(by, row.value)  # fmt: skip

        rows = sorted(self._rows.values(), key=lambda row: key_text(row.key))
        if by == "key":
            rows = rows[::-1] if self.reverse else rows
        else:
            rows.sort(key=lambda row: (measure(row), row.value), reverse=not self.reverse)
        shown = rows[self.first : self.first + height]
        return [self._cells(row, total) for row in shown]

    def _cells(self, row: _TopRow, total: float) -> tuple[str, ...]:
        texts = {
            "per s": number(row.rate),
            "%": f"{100 * row.value / total:.1f}",
            "p50": number(quantile(row.buckets, 0.5)) if row.buckets else "",
            "p99": number(quantile(row.buckets, 0.99)) if row.buckets else "",
        }
        middle = [texts[name] for name in self.columns[2:-1]]
        key = key_text(row.key) if self._keys else "(no key)"
        return (key, number(row.value), *middle, sparkline(row.rates))
