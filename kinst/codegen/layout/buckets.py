"""How many buckets an aggregation has, and where they begin (Dynamic Tracing Guide, ch. 9)."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.records import QUANTIZE_BUCKETS
from kinst.dlang.typed_output import AggFunction

INT64_MAX = (1 << 63) - 1
_WORDS = {"count": 1, "sum": 1, "min": 1, "max": 1, "avg": 2, "stddev": 4}


@dataclass(frozen=True, slots=True)
class Magnitude:
    """One order of magnitude of llquantize(): values low <= v < high are in buckets of `width`,
    the first of which is `first`."""

    low: int
    high: int
    width: int
    first: int


def magnitudes(params: tuple[int, ...]) -> tuple[tuple[Magnitude, ...], int]:
    """The orders of llquantize(x, factor, low, high, steps), and the bucket for all above.

    Bucket 0 is for values below factor**low.  An order starts counting its buckets where the
    order below left off, since the lowest 1/factor of its range belongs to that one.
    """
    factor, low, high, steps = params
    found = []
    last = factor**low
    first = 1
    if last > INT64_MAX:
        return (), first
    for _ in range(low, high + 1):
        this = last * factor
        buckets = min(this, steps)
        found.append(Magnitude(last, min(this, INT64_MAX), max(1, this // buckets), first))
        if this > INT64_MAX:
            return tuple(found), first + (INT64_MAX - last) // max(1, this // buckets)
        first += buckets - buckets // factor
        last = this
    return tuple(found), first


def data_words(function: AggFunction) -> int:
    """u64 words of one entry's data, as core/records.py lists them.

    Raises KinstError for parameters that make no buckets (the checker refuses them before).
    """
    if function.name in _WORDS:
        return _WORDS[function.name]
    if function.name == "quantize":
        return QUANTIZE_BUCKETS
    if function.name == "lquantize":
        base, limit, step = function.params
        if step <= 0 or limit <= base:
            raise KinstError(f"lquantize({base}, {limit}, {step}) has no buckets")
        return (limit - base) // step + 2
    if function.name == "llquantize":
        return magnitudes(function.params)[1] + 1
    raise KinstError(f"unknown aggregating function {function.name}()")
