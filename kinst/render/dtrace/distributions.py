"""Text drawings of quantize(), lquantize() and llquantize(), and the bars of agghist and aggpack.

Sources: the Dynamic Tracing Guide, "Aggregations", and for the widths libdtrace
(dt_print_quantize(), dt_print_quantline(), dt_print_packed()).

Tested by tests/render/dtrace/test_aggregations.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from kinst.consumer.aggregations import (
    Data,
    divide,
    llquantize_bounds,
    lquantize_step,
    quantize_bound,
)
from kinst.core.records import QUANTIZE_BUCKETS, QUANTIZE_ZERO
from kinst.dlang.typed import AggFunction

BAR = 40  # columns of a full bar
ZOOM = 0.95  # part of a full bar that the highest bucket fills with aggzoom
DISTRIBUTIONS = frozenset(("quantize", "lquantize", "llquantize"))
TOTALLED = frozenset(("count", "sum", "avg", "stddev"))  # functions that agghist draws
PACKED = frozenset(("quantize", "lquantize"))  # functions that aggpack draws
# Terminals that cannot show Unicode's block elements.
PLAIN_TERMINALS = frozenset(("sun", "sun-color", "dumb"))
FULL_BLOCK = 0x2588
LEFT_BLOCK = 0x258F  # an eighth of a block; larger parts are at lower code points
LOWER_BLOCK = 0x2581  # an eighth of a block; larger parts are at higher code points
EIGHTHS = 8
LINEAR_WIDTH = 8  # columns of the bounds of a packed lquantize()
BOUND_WIDTH = 4  # minimum columns of the bounds of a packed quantize()


def total_of(values: Iterable[int], zoom: bool) -> float:
    """Return the value that a full bar stands for. It is the sum of all absolute values; with
    aggzoom, it is a little more than the largest absolute value.
    """
    if zoom:
        return max((abs(v) for v in values), default=0) / ZOOM
    return float(sum(abs(v) for v in values))


def head(width: int = 0) -> str:
    """Return the line above a drawing.

    Args:
        width: with agghist, columns of the keys, which are on the left of the bars. 0 for a
            distribution, which has bucket values there.
    """
    title = f"{'key':>{width}}" if width else f"{'value':>16}"
    return f"\n{title} {'------------- Distribution -------------':>41} {'count':<9}\n"


def _blocks(count: int, total: float) -> str:
    """Return a bar of Unicode's block elements, exact to an eighth of a column.

    Args:
        count: value of the bar.
        total: value of a full bar.
    """
    length = abs(count) * BAR / total
    whole = int(length)
    eighths = int((length - whole) * EIGHTHS)
    drawn = chr(FULL_BLOCK) * whole + (chr(LEFT_BLOCK + 1 - eighths) if eighths else "")
    return drawn.ljust(BAR)


def bar(
    count: int, shown: int, total: float, positives: bool, negatives: bool, utf8: bool = False
) -> str:
    """Return a bar, and the number on its right.

    Args:
        count: value of the bar.
        shown: the number on the right: the value after normalize().
        total: value of a full bar.
        positives: whether the drawing has bars of positive values.
        negatives: whether the drawing has bars of negative values. If it has both, each sign gets
            half of the columns.
        utf8: whether to use Unicode's block elements.
    """
    length = BAR // 2 if positives and negatives else BAR
    depth = int(abs(count) * length / total + 0.5) if total else 0
    ats, spaces = "@" * depth, " " * (length - depth)
    if not negatives:
        drawn = f"|{_blocks(count, total) if utf8 and positives else ats + spaces}"
    elif not positives:
        drawn = f"{spaces}{ats}|"
    elif count <= 0:
        drawn = f"{spaces}{ats}|{'':{length}}"
    else:
        drawn = f"{'':{length}}|{ats}{spaces}"
    return f"{drawn} {shown:<9d}\n"


def _labels(function: AggFunction, buckets: int) -> list[str]:
    if function.name == "quantize":
        return [str(quantize_bound(i)) for i in range(buckets)]
    if function.name == "lquantize":
        base, step = function.params[0], lquantize_step(function)
        levels = buckets - 2
        inner = [str(base + i * step) for i in range(levels)]
        return [f"< {base}", *inner, f">= {base + levels * step}"]
    bounds = llquantize_bounds(function)
    inner = [str(bound) for bound in bounds[: buckets - 2]]
    return [f"< {bounds[0]}", *inner, f">= {bounds[buckets - 2]}"]


def _shown_range(function: AggFunction, counts: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last bucket to show: the buckets with data, and an empty one on
    either side. If no bucket has data, return a fixed range."""
    last = len(counts) - 1
    used = [i for i, count in enumerate(counts) if count]
    if not used:
        return {"quantize": (62, 64), "lquantize": (0, 2)}.get(function.name, (0, 1))
    return max(used[0] - 1, 0), min(used[-1] + 1, last)


def distribution(
    function: AggFunction, data: Data, normal: int = 1, zoom: bool = False, utf8: bool = False
) -> str:
    """Return the drawing of a distribution: a header, and a bar for each bucket.

    Args:
        function: quantize(), lquantize() or llquantize().
        data: counts of all buckets.
        normal: divisor of the numbers, from normalize().
        zoom: the option aggzoom.
        utf8: whether to use Unicode's block elements.
    """
    counts = data.tolist()
    first, last = _shown_range(function, counts)
    shown = counts[first : last + 1]
    positives = any(c > 0 for c in shown)
    negatives = any(c < 0 for c in shown)
    total = total_of(shown, zoom)
    out = [head()]
    labels = _labels(function, len(counts))
    for label, count in zip(labels[first : last + 1], shown, strict=True):
        out.append(f"{label:>16} ")
        out.append(bar(count, divide(count, normal), total, positives, negatives, utf8))
    return "".join(out)


# --- aggpack -------------------------------------------------------------------------------


def used_range(function: AggFunction, rows: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the first and the last bucket that aggpack shows in all rows of an aggregation.

    For lquantize(), all buckets are shown. For quantize(), they are the buckets that have data in
    any row, and an empty bucket on either side. But there is no empty bucket on the left if the
    first bucket with data is that of the value 0. A row without data counts as data in that bucket.
    """
    if function.name == "lquantize":
        return 0, len(rows[0]) - 1
    used = [i for counts in rows for i, count in enumerate(counts) if count]
    empty = not all(any(counts) for counts in rows)
    used += [QUANTIZE_ZERO] if empty else []
    first, last = min(used), max(used)
    first -= first not in (0, QUANTIZE_ZERO)
    return first, min(last + 1, QUANTIZE_BUCKETS - 1)


def _digits(bound: int) -> int:
    return max(BOUND_WIDTH, len(str(bound)))


def _bounds(function: AggFunction, buckets: int, first: int, last: int) -> tuple[str, str]:
    """Return the texts on the left and on the right of a packed drawing: the bounds of its
    buckets."""
    labels = _labels(function, buckets)
    if function.name == "lquantize":
        return f"{labels[first]:>{LINEAR_WIDTH}} :", f": {labels[last]:<{LINEAR_WIDTH}}"
    low, high = labels[first], labels[last]
    return f" {low:>{_digits(int(low))}} :", f": {high:<{_digits(int(high))}}"


def packed_head(function: AggFunction, first: int, last: int, width: int) -> str:
    """Return the line above packed drawings.

    Args:
        first: the first bucket shown.
        last: the last bucket shown.
        width: columns of the keys on the left, 0 if there are none.
    """
    low, high = LINEAR_WIDTH - 1, LINEAR_WIDTH
    if function.name == "quantize":
        low, high = _digits(quantize_bound(first)), _digits(quantize_bound(last))
    key = "key" if width else ""
    return f"\n{key:>{width}} {'min':>{low}} .{'-' * (last - first + 1)}. {'max':<{high}} | count\n"


def _element(count: int, total: float, utf8: bool) -> str:
    """Return a character whose height stands for the count of one bucket."""
    if not count:
        return " "
    if count < 0:
        return "vvvvVV"[int(abs(count) * 5 / total + 0.5)]
    height = int(count * (EIGHTHS - 1) / total + 0.5)
    return chr(LOWER_BLOCK + height) if utf8 else "__xxxxXX"[height]


def packed(
    function: AggFunction, data: Data, first: int, last: int, zoom: bool, encoding: str
) -> str:
    """Return the drawing of a distribution in one line, a character for each bucket (aggpack).

    Args:
        function: quantize() or lquantize().
        data: counts of all buckets.
        first: the first bucket shown.
        last: the last bucket shown.
        zoom: the option aggzoom.
        encoding: "ascii" or "utf8"; "" to choose by the terminal ($TERM).
    """
    utf8 = encoding == "utf8" if encoding else os.environ.get("TERM") not in PLAIN_TERMINALS
    counts = data.tolist()
    shown = counts[first : last + 1]
    total = total_of(shown, zoom)
    before, behind = _bounds(function, len(counts), first, last)
    drawn = "".join(_element(count, total, utf8) for count in shown)
    return f"{before}{drawn}{behind} | {sum(shown)}\n"
