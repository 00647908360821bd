"""Live table of an aggregation, as `kinst top` shows it: values and rates at each moment, sorted,
and cut to the size of the screen.

The table has no terminal of its own: it takes snapshots of the aggregation and names of pressed
keys, and returns the texts of its cells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.events import Aggregation, Bucket, Key
from kinst.views.buckets import key_text

HISTORY = 24  # number of intervals in a sparkline
_BLOCKS = "▁▂▃▄▅▆▇█"
# Aggregating functions whose values only grow: their change per second has a meaning.
_GROWING = ("count", "sum", "quantize", "lquantize", "llquantize")


def sparkline(values: Iterable[float]) -> str:
    """Return a character for each value: a block as high as the value's share of the highest value,
    or a blank for 0."""
    shown = list(values)
    most = max(shown, default=0)
    if most <= 0:
        return " " * len(shown)
    last = len(_BLOCKS) - 1
    return "".join(
        " " if value <= 0 else _BLOCKS[min(int(value / most * last + 0.5), last)] for value in shown
    )


def number(value: float) -> str:
    """Return a number as text for a column, with commas between thousands; a number below 100 that
    is not whole gets three significant digits."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def quantile(row: Sequence[Bucket], part: float) -> float:
    """Return the low bound of the bucket that contains a quantile; -inf if the bucket has no low
    bound, 0 if there are no values.

    Args:
        row: buckets, ascending.
        part: the quantile, 0 to 1.
    """
    remaining = part * sum(one.count for one in row)
    for one in row:
        remaining -= one.count
        if remaining <= 0:
            return float("-inf") if one.low is None else one.low
    return 0.0


@dataclass(slots=True)
class _TopRow:
    """A row of the table, for one key of the aggregation.

    Attributes:
        key: the aggregation's key.
        value: the key's value; for a distribution, its number of values.
        rate: change of the value per second.
        buckets: buckets of a distribution; empty for a number.
        rates: what the sparkline shows: the last HISTORY rates or, for an aggregating function
            whose value can decrease, such as avg(), the last HISTORY values.
    """

    key: Key
    value: float = 0.0
    rate: float = 0.0
    buckets: tuple[Bucket, ...] = ()
    rates: deque[float] = field(default_factory=lambda: deque([0.0] * HISTORY, HISTORY))


class TopTable:
    """Live table of one aggregation.

    Attributes:
        name: name of the aggregation.
        function: its aggregating function.
        sorted_by: index of the column that rows are sorted by.
        reverse: whether the smallest value comes first.
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
        """Names of the columns. The first one is the key; the last one, without a name, has the
        sparklines."""
        rate = ("per s",) if self._grows else ()
        share = ("%",) if self.function in ("count", "sum") else ()
        spread = ("p50", "p99") if self._distributed else ()
        value = "values" if self._distributed else self.function
        return ("key", value, *rate, *share, *spread, "")

    def take(self, aggregation: Aggregation, now: float) -> None:
        """Update the table from a snapshot of the aggregation.

        Args:
            aggregation: the snapshot.
            now: time of the snapshot, in seconds on any clock.
        """
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
        """Update sorting and scrolling for a pressed key.

        Left, right and digits choose the column to sort by. r reverses the order. Up, down, page
        up, page down and home scroll.

        Args:
            key: name of the pressed key.
            height: number of rows on the screen.
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
        """Return the texts of the cells of the rows on the screen, sorted.

        Args:
            height: number of rows on the screen.
        """
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
