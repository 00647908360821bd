"""Axes of pictures: round numbers for ticks, numbers with their units, and positions of values on
an axis of buckets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.units import UNITS, binary_text, value_text
from kinst.views.buckets import Bounds

_STEPS = (1, 2, 5)  # between ticks, times a power of ten
# Ticks are left out that are nearer to another tick than the length of the axis divided by this and
# by the number of ticks for which there is room.
_CROWDED = 1.6
_DIGITS = 1e-9  # tolerance for rounded floating-point numbers


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers from low to high, ascending: multiples of 1, 2 or 5 times
    a power of ten."""
    if high <= low:
        return [low]
    step = next(step for step in _round_steps((high - low) / max(most, 1))
                if _multiples(low, high, step) <= most)  # fmt: skip
    first = math.ceil(low / step - _DIGITS)
    return [float((first + k) * step) for k in range(_multiples(low, high, step))]


def _round_steps(least: float) -> Iterator[float]:
    power = 10.0 ** math.floor(math.log10(least))
    while True:
        yield from (power * step for step in _STEPS)
        power *= 10


def _multiples(low: float, high: float, step: float) -> int:
    return math.floor(high / step + _DIGITS) - math.ceil(low / step - _DIGITS) + 1


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis.

    Attributes:
        at: distance from the start of the axis (the low bound of the first bucket), in widths of a
            bucket.
        text: label of the mark.
    """

    at: float
    text: str


def _apart(kept: Sequence[Tick], others: Sequence[Tick], least: float) -> list[Tick]:
    """Return ticks whose labels do not overlap, ascending: all of `kept`, and as many of `others`
    as have room. The tick labelled "0" is tried first, then the others from left to right.

    Args:
        least: least distance between two ticks, in widths of a bucket.
    """
    found = list(kept)
    for tick in sorted(others, key=lambda one: (one.text != "0", one.at)):
        if all(abs(tick.at - one.at) >= least for one in found):
            found.append(tick)
    return sorted(found, key=lambda one: one.at)


@dataclass(frozen=True, slots=True)
class BucketScale:
    """An axis on which all buckets have the same width, whatever their bounds.

    Attributes:
        bounds: bounds of the buckets, ascending.
        function: aggregating function: "quantize", "lquantize" or "llquantize".
        unit: unit of the values; "" if it is not known.
    """

    bounds: Sequence[Bounds]
    function: str
    unit: str = ""

    @property
    def _binary(self) -> bool:
        return self.function == "quantize" and self.unit not in UNITS

    def text(self, value: float) -> str:
        """Return a value as a short text for a label of the axis."""
        if self._binary and value == int(value) and abs(value) >= 1024:
            return binary_text(value)
        return value_text(value, self.unit)

    def ticks(self, most: int) -> list[Tick]:
        """Return the ticks of the axis, ascending: one for each open bucket (a bucket without a low
        or high bound), and about as many round values as fit.

        Args:
            most: number of ticks for which there is room.
        """
        opened = list(self._opened())
        inner = [one for one in self.bounds if None not in one]
        if not inner:
            return opened
        low, high = inner[0][0], inner[-1][1]
        assert low is not None and high is not None
        room = max(most - len(opened), 1)
        values = self._values(low, high, room)
        # An open bucket's label contains the bound.
        taken = {bound for one in self.bounds if None in one for bound in one}
        plain = [Tick(self.position(value), self.text(value)) for value in values
                 if value not in taken]  # fmt: skip
        return _apart(opened, plain, len(self.bounds) / (_CROWDED * most))

    def _opened(self) -> Iterator[Tick]:
        for k, (low, high) in enumerate(self.bounds):
            if low is None and high is not None:
                yield Tick(k + 0.5, f"< {self.text(high)}")
            elif high is None and low is not None:
                yield Tick(k + 0.5, f"≥ {self.text(low)}")

    def _values(self, low: int, high: int, most: int) -> list[float]:
        if self.function == "lquantize":
            return round_ticks(low, high, min(most, len(self.bounds) + 1))
        finest: list[float] = []
        for candidates in self._candidates(low, high):
            if len(candidates) <= most:
                return candidates
            finest = candidates
        return finest[:: math.ceil(len(finest) / most)]

    def _candidates(self, low: int, high: int) -> Iterator[list[float]]:
        """Yield sets of round values from `low` to `high` for the ticks of a logarithmic axis, the
        largest set first."""
        base, sets = (2, ((1,),)) if self._binary else (10, ((1, 2, 5), (1,)))
        top = max(abs(low), abs(high), 1)
        powers = range(math.ceil(math.log(top, base)) + 1)
        for multiples in sets:
            yield self._within(low, high, (m * base**power for power in powers for m in multiples))
        for step in (2, 5, 10) if self._binary else (3, 6):
            yield self._within(low, high, (base**power for power in powers if power % step == 0))

    def _within(self, low: int, high: int, values: Iterator[int]) -> list[float]:
        both = sorted({0, *(sign * value for value in values for sign in (1, -1))})
        return [float(value) for value in both if low <= value <= high]

    def position(self, value: float) -> float:
        """Return the distance of a value from the start of the axis (the low bound of the first
        bucket), in widths of a bucket.
        """
        for k, (low, high) in enumerate(self.bounds):
            if low is None or high is None or not low <= value <= high:
                continue
            if low > 0 and self.function != "lquantize":
                return k + math.log(value / low) / math.log(high / low)
            return k + (value - low) / (high - low)
        return float(len(self.bounds)) if self.bounds else 0.0

    def range_text(self, bounds: Bounds) -> str:
        """Return the range of values of a bucket as text for people."""
        low, high = bounds
        if low is None:
            return f"less than {self.text(high)}" if high is not None else "any"
        if high is None:
            return f"{self.text(low)} or more"
        if self.unit in UNITS:
            return f"{value_text(low, self.unit)} to {value_text(high, self.unit)}"
        return f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
