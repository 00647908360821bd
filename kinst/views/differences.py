"""Differences between two results, aggregation by aggregation and key by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from kinst.core.errors import KinstError
from kinst.events import Aggregation, Frame, KeyPart, Stack
from kinst.views.line_pairs import NUMBERS, LineNames

LEVELS = ("instruction", "line", "function")
_ADD_UP = ("count", "sum", "quantize", "lquantize", "llquantize")

Value = int | float


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that has another value in B than in A; None: the key is not there."""

    key: tuple[str, ...]
    a: Value | None
    b: Value | None

    @property
    def ratio(self) -> float:
        """B's value divided by A's, infinite if A has none."""
        if self.a is None or self.b is None:
            return inf if self.a is None else 0.0
        return self.b / self.a if self.a else inf


@dataclass(frozen=True, slots=True)
class Comparison:
    """An aggregation of both results.

    Attributes:
        name: of the aggregation.
        function: that aggregates.
        differences: keys with different values.
        same: how many keys have equal values.
    """

    name: str
    function: str
    differences: tuple[Difference, ...]
    same: int


def compare(
    a: Sequence[Aggregation],
    b: Sequence[Aggregation],
    level: str = LEVELS[0],
    *,
    normalised: bool = False,
    lines: tuple[LineNames, LineNames] = (NUMBERS, NUMBERS),
) -> tuple[Comparison, ...]:
    """Compare two results: aggregations in B's order, then those of A alone.

    Keys only in B come first, then those only in A, then those that changed most.  Code (stacks and
    symbols) is compared by function and offset, by line, or by function, never by address, which
    changes with every boot.  A distribution counts as the sum of its buckets.

    Args:
        a: aggregations of the first result.
        b: aggregations of the second result.
        level: how code is compared.
        normalised: scale B's values so that both sums are equal.
        lines: names of the lines of A and of B, for the level "line".

    Raises:
        KinstError: an aggregation has another function in B.
    """
    before, after = ({one.name: one for one in side} for side in (a, b))
    out = []
    for name in dict.fromkeys([*after, *before]):
        one, other = before.get(name), after.get(name)
        if one and other and one.function != other.function:
            raise KinstError(f"@{name} is {one.function}() in A and {other.function}() in B")
        shown = other or one
        assert shown is not None
        values, others = _values(one, level, lines[0]), _values(other, level, lines[1])
        if normalised and shown.function in _ADD_UP:
            others = _scaled(others, sum(values.values()))
        keys = dict.fromkeys([*others, *values])
        differences = [Difference(key, values.get(key), others.get(key)) for key in keys]
        differing = sorted((one for one in differences if one.a != one.b), key=_order)
        same = len(differences) - len(differing)
        out.append(Comparison(name, shown.function, tuple(differing), same))
    return tuple(out)


def _order(one: Difference) -> tuple[int, float, tuple[str, ...]]:
    if one.a is None:
        return 0, -(one.b or 0), one.key
    if one.b is None:
        return 1, -one.a, one.key
    return 2, -abs(one.b - one.a), one.key


def _values(
    one: Aggregation | None, level: str, lines: LineNames
) -> Mapping[tuple[str, ...], Value]:
    """Return values by key as text; values of keys that are equal at this level are added up, which
    is possible only for sums."""
    totals: dict[tuple[str, ...], Value] = {}
    for key, value in one.rows.items() if one else ():
        text = tuple(_text(part, level, lines) for part in key)
        number = value if isinstance(value, int) else sum(bucket.count for bucket in value)
        if one and one.function not in _ADD_UP and text in totals:
            number = (min if one.function == "min" else max)(number, int(totals[text]))
        else:
            number += int(totals.get(text, 0))
        totals[text] = number
    return totals


def _scaled(values: Mapping[tuple[str, ...], Value], wanted: Value) -> dict[tuple[str, ...], Value]:
    total = sum(values.values())
    if not total or not wanted or total == wanted:
        return dict(values)
    return {key: value * wanted / total for key, value in values.items()}


def _text(part: KeyPart, level: str, lines: LineNames) -> str:
    if isinstance(part, Stack | Frame):
        frames = part.frames if isinstance(part, Stack) else (part,)
        text = " < ".join(_frame(frame, level, lines) for frame in frames)
        innermost = frames[0] if level == "line" and frames else Frame(0)
        source = lines.source(innermost.file, innermost.line)
        return f"{text}  {source}" if source else text
    return part.hex() if isinstance(part, bytes) else str(part)


def _frame(frame: Frame, level: str, lines: LineNames) -> str:
    if not frame.function:
        return frame.module or f"{frame.address:#x}"
    if level == "line" and frame.file:
        return lines.name(frame.file, frame.line)
    if level == "function" or frame.inlined or not frame.offset:
        return frame.function
    return f"{frame.function}+{frame.offset:#x}"


def comparison_text(comparisons: Iterable[Comparison]) -> str:
    """Return a table for each aggregation that differs; "" if none does."""
    return "\n".join(_table(one) for one in comparisons if one.differences)


def _table(one: Comparison) -> str:
    rows = [("A", "B", "B/A", f"@{one.name} = {one.function}()")]
    for row in one.differences:
        rows.append((_number(row.a), _number(row.b), _ratio(row), ", ".join(row.key) or "(no key)"))
    widths = [max(map(len, column)) for column in zip(*(row[:3] for row in rows), strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row[:3], widths, strict=True))
        + f"  {row[3]}\n"
        for row in rows
    ]
    lines.append(f"{one.same} {'key has' if one.same == 1 else 'keys have'} the same value\n")
    return "".join(lines)


def _number(value: Value | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _ratio(row: Difference) -> str:
    if row.a is None:
        return "only B"
    if row.b is None:
        return "only A"
    return "-" if row.ratio == inf else f"{row.ratio:.2f}"
