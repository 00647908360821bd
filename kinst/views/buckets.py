"""Distributions made ready to be drawn: buckets as rows of one grid, and the names of keys.

Tested by tests/views/test_distributions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Key, KeyPart, Stack

FUNCTIONS = ("quantize", "lquantize", "llquantize")
_MOST_FILLED = 200  # empty buckets in a row that are drawn as such

Bounds = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class DistributionSnapshot:
    """A distribution as it was at one moment.  time_ns: D's timestamp then, None where it is not
    known."""

    time_ns: int | None
    table: Aggregation


def chosen(names: Iterable[tuple[str, str]], by: str) -> str:
    """The name of the aggregation to draw, of those with these (name, function).  by: the one that
    was asked for, "" for the only one.  Raises KinstError where there is none, or several."""
    found = list(dict.fromkeys(name for name, function in names if function in FUNCTIONS))
    wanted = by.removeprefix("@")
    if by and wanted in found:
        return wanted
    shown = ", ".join(f"@{name}" for name in found)
    if by:
        raise KinstError(f"there is no distribution @{wanted}", shown and f"there is {shown}")
    if not found:
        raise KinstError(
            "nothing to draw: no distribution", "quantize(), lquantize() and llquantize() make some"
        )
    if len(found) > 1:
        raise KinstError(f"there are {len(found)} distributions", f"--by names one: {shown}")
    return found[0]


def distribution(value: int | tuple[Bucket, ...]) -> tuple[Bucket, ...]:
    """A row's buckets."""
    return value if isinstance(value, tuple) else ()


def grid(buckets: Iterable[Bucket], function: str) -> tuple[Bounds, ...]:
    """The bounds of all buckets from the lowest to the highest, also of those between them that
    nobody has: doubling for quantize(), of one width for lquantize(); else as one bucket."""
    have = sorted({(one.low, one.high) for one in buckets if one.count}, key=_order)
    found: list[Bounds] = []
    for low, high in have:
        before = found[-1][1] if found else low
        if before is not None and low is not None and before < low:
            found += _between(before, low, function, have)
        found.append((low, high))
    return tuple(found)


def _order(bounds: Bounds) -> float:
    low, high = bounds
    return float("-inf") if low is None else low + (0.5 if high is None else 0.0)


def _between(start: int, end: int, function: str, have: Sequence[Bounds]) -> list[Bounds]:
    """The empty buckets from start to end."""
    widths = [high - low for low, high in have if low is not None and high is not None]
    made: list[Bounds] = []
    while start < end and len(made) < _MOST_FILLED:
        if function == "quantize" and start >= 0:
            step = max(start, 1)
        elif function == "lquantize" and widths:
            step = min(widths)
        else:
            step = end - start
        made.append((start, min(start + step, end)))
        start += step
    if start < end:
        return [(made[0][0], end)]
    return made


def key_text(key: Key) -> str:
    """A row's keys, for people."""
    return ", ".join(map(_part_text, key))


def _part_text(part: KeyPart) -> str:
    if isinstance(part, Frame):
        named = f"{part.function}+{part.offset:#x}" if part.offset else part.function
        return named or f"{part.address:#x}"
    if isinstance(part, Stack):
        return " < ".join(map(_part_text, part.frames[:3]))
    return part.hex() if isinstance(part, bytes) else str(part)
