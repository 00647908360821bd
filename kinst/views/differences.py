"""Differences between the results of two traces, A and B, aggregation by aggregation and key by
key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.units import counted
from kinst.events import Aggregation, Frame, KeyPart, Stack
from kinst.views.line_pairs import NUMBERS, LineNames

LEVELS = ("instruction", "line", "function")
_ADD_UP = ("count", "sum", "quantize", "lquantize", "llquantize")

Value = int | float


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of an aggregation with different values in A and B.

    Attributes:
        key: texts of the parts of the key.
        a: value in A; None if A does not have the key.
        b: value in B; None if B does not have the key.
    """

    key: tuple[str, ...]
    a: Value | None
    b: Value | None

    @property
    def ratio(self) -> float:
        """B's value divided by A's value: 0 if B does not have the key; infinite if A does not have
        the key, or if A's value is 0.
        """
        if self.a is None or self.b is None:
            return inf if self.a is None else 0.0
        return self.b / self.a if self.a else inf


@dataclass(frozen=True, slots=True)
class Comparison:
    """An aggregation compared between A and B.

    Attributes:
        name: name of the aggregation.
        function: its aggregating function.
        differences: keys with different values, in the order of compare().
        same: number of keys with equal values.
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
    """Return a comparison of each aggregation of two results: first B's aggregations in B's order,
    then aggregations that only A has.

    A comparison lists the keys that only B has, then the keys that only A has, then the keys that
    have different values in both, greatest difference first. Stacks and symbols in keys are never
    compared by address, because addresses change with every boot. The value of a distribution is
    the sum of its buckets.

    Args:
        a: aggregations of the first result.
        b: aggregations of the second result.
        level: how code in keys is compared: "instruction" (function and offset), "line" or
            "function".
        normalised: whether to scale B's values so that their sum equals the sum of A's values, in
            each aggregation whose values add up (such as count() and sum()).
        lines: names of the source lines of A and of B, for the level "line".

    Raises:
        KinstError: an aggregation has different aggregating functions in A and B.
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
    aggregation: Aggregation | None, level: str, lines: LineNames
) -> Mapping[tuple[str, ...], Value]:
    """Return the values of an aggregation by the text of the key.

    If several keys have the same text at this level, their values are combined: for min() the least
    value is taken, for max(), avg() and stddev() the greatest, for other functions the sum.

    Args:
        aggregation: the aggregation; None gives no values.
        level: how code in keys is compared: "instruction", "line" or "function".
        lines: names of source lines, for the level "line".
    """
    totals: dict[tuple[str, ...], Value] = {}
    for key, value in aggregation.rows.items() if aggregation else ():
        text = tuple(_text(part, level, lines) for part in key)
        number = value if isinstance(value, int) else sum(bucket.count for bucket in value)
        if aggregation and aggregation.function not in _ADD_UP and text in totals:
            number = (min if aggregation.function == "min" else max)(number, int(totals[text]))
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
    """Return a table of the differences for each aggregation that has any; "" if no aggregation
    differs."""
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
    lines.append(f"{counted(one.same, 'key has', 'keys have')} the same value\n")
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
