"""Distributions prepared for drawing: which aggregation and which buckets to draw, and the text of
keys.

Tested by tests/views/test_distributions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Key, KeyPart, Stack

FUNCTIONS = ("quantize", "lquantize", "llquantize")
_MOST_FILLED = 200  # most consecutive empty buckets; more are joined into one bucket

Bounds = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class DistributionSnapshot:
    """A distribution at one moment of a trace.

    Attributes:
        time_ns: D's timestamp of that moment; None if it is not known.
        table: the aggregation with its values at that moment.
    """

    time_ns: int | None
    table: Aggregation


def chosen(names: Iterable[tuple[str, str]], by: str) -> str:
    """Return the name of the distribution to draw.

    Args:
        names: (name, aggregating function) of each aggregation of a trace. Aggregations that are
            not distributions are ignored.
        by: name that the user asked for, with or without "@"; "" to choose the only distribution.

    Raises:
        KinstError: no distribution has the name `by`. For `by` "": the trace does not have exactly
            one distribution.
    """
    names_found = list(dict.fromkeys(name for name, function in names if function in FUNCTIONS))
    wanted = by.removeprefix("@")
    if by and wanted in names_found:
        return wanted
    shown = ", ".join(f"@{name}" for name in names_found)
    if by:
        raise KinstError(f"there is no distribution @{wanted}", shown and f"there is {shown}")
    if not names_found:
        raise KinstError(
            "nothing to draw: no distribution", "quantize(), lquantize() and llquantize() make some"
        )
    if len(names_found) > 1:
        raise KinstError(
            f"there are {len(names_found)} distributions", f"choose one with --by: {shown}"
        )
    return names_found[0]


def distribution(value: int | tuple[Bucket, ...]) -> tuple[Bucket, ...]:
    """Return the buckets of an aggregation's value; an empty tuple if the value is a number."""
    return value if isinstance(value, tuple) else ()


def grid(buckets: Iterable[Bucket], function: str) -> tuple[Bounds, ...]:
    """Return the bounds of the buckets to draw, ascending: the buckets that have values, and empty
    buckets for the ranges between them.

    The aggregating function decides how a range without values is divided: at powers of two for
    quantize(), into equal widths for lquantize(). For any other function, the range is one bucket.

    Args:
        buckets: the buckets of all keys that share the grid, in any order.
        function: the aggregating function.
    """
    have = sorted({(one.low, one.high) for one in buckets if one.count}, key=_order)
    rows: list[Bounds] = []
    for low, high in have:
        before = rows[-1][1] if rows else low
        if before is not None and low is not None and before < low:
            rows += _between(before, low, function, have)
        rows.append((low, high))
    return tuple(rows)


def _order(bounds: Bounds) -> float:
    low, high = bounds
    return float("-inf") if low is None else low + (0.5 if high is None else 0.0)


def _between(start: int, end: int, function: str, have: Sequence[Bounds]) -> list[Bounds]:
    """Return the bounds of the empty buckets from start to end. If there are more than
    _MOST_FILLED, return one bucket from start to end.

    Args:
        have: bounds of the buckets with values, which give the width for lquantize().
    """
    widths = [high - low for low, high in have if low is not None and high is not None]
    empty: list[Bounds] = []
    while start < end and len(empty) < _MOST_FILLED:
        if function == "quantize":
            # 0, 1, 2, 4, ...; below 0: -7, -3, -1, 0
            step = max(start, 1) if start >= 0 else (1 - start) // 2
        elif function == "lquantize" and widths:
            step = min(widths)
        else:
            step = end - start
        empty.append((start, min(start + step, end)))
        start += step
    if start < end:
        return [(empty[0][0], end)]
    return empty


def key_text(key: Key) -> str:
    """Return an aggregation's key as text for people, its parts separated by commas."""
    return ", ".join(map(_part_text, key))


def _part_text(part: KeyPart) -> str:
    if isinstance(part, Frame):
        named = f"{part.function}+{part.offset:#x}" if part.offset else part.function
        return named or f"{part.address:#x}"
    if isinstance(part, Stack):
        return " < ".join(map(_part_text, part.frames[:3]))
    return part.hex() if isinstance(part, bytes) else str(part)
