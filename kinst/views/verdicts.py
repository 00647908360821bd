"""Evaluation of the assertions of TEST clauses (`kinst test`), with the values that explain each
verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kinst.core.dataclass import dataclass
from kinst.dlang.assertions import (
    COMPUTED,
    AggregationTerm,
    Assertion,
    Number,
    Operation,
    StatusTerm,
    Term,
    TestClause,
    TestFile,
    TracedTerm,
    read_test_file,
    terms,
)
from kinst.events import Bucket
from kinst.results import Table

__all__ = [
    "Assertion",
    "Given",
    "TestFile",
    "TraceResults",
    "UnknownValueError",
    "Verdict",
    "judge",
    "read_test_file",
]  # fmt: skip

Given = int | str
_WORD = 1 << 64
# Aggregating functions whose value is 0 for a key that was never seen.
_FROM_ZERO = ("count", "sum")


class UnknownValueError(Exception):
    """Error: a value in an assertion cannot be computed. The message says why."""


@dataclass(frozen=True, slots=True)
class TraceResults:
    """The results of a trace that assertions refer to.

    Attributes:
        tables: aggregations by name.
        reads: for each END clause of the test file, in order, the values that it traced; None for a
            clause that did not run.
        status: exit status of the trace, which assertions call $status.
    """

    tables: Mapping[str, Table]
    reads: Sequence[Sequence[Given] | None]
    status: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one TEST clause.

    Attributes:
        name: name of the clause.
        state: "ok", "failed" or "skipped".
        location: file:line of the assertion that failed, or of the clause.
        expression: text of the assertion that failed, or of the condition that skipped the clause.
        values: (part, value) for the parts of the failed assertion.
        why: why a value of the failed assertion is unknown; "" if all values are known.
    """

    name: str
    state: str
    location: str
    expression: str = ""
    values: tuple[tuple[str, str], ...] = ()
    why: str = ""


def judge(test: TestClause, measured: TraceResults) -> Verdict:
    """Return the verdict on a TEST clause: "skipped" if its condition is false, otherwise "failed"
    for the first assertion that is false or unknown, otherwise "ok"."""
    place = f"{test.span.file}:{test.span.line}"
    checked = (*([test.condition] if test.condition else []), *test.assertions)
    for one in checked:
        why = ""
        try:
            held = _truth(_value(one.term, one, measured))
        except UnknownValueError as error:
            held, why = False, str(error)
        if held:
            continue
        if one is test.condition and not why:
            return Verdict(test.name, "skipped", place, one.text)
        at = f"{one.span.file}:{one.span.line}"
        return Verdict(test.name, "failed", at, one.text, tuple(_parts(one, measured)), why)
    return Verdict(test.name, "ok", place)


def _parts(assertion: Assertion, measured: TraceResults) -> list[tuple[str, str]]:
    """Return (text, value) for each part of an assertion that is not a literal."""
    values: dict[str, str] = {}
    for term in terms(assertion.term):
        if isinstance(term, AggregationTerm | StatusTerm) or (
            isinstance(term, TracedTerm) and not term.is_literal
        ):
            name = "$status" if isinstance(term, StatusTerm) else term.text
            try:
                value = _value(term, assertion, measured)
                values[name] = f'"{value}"' if isinstance(value, str) else str(value)
            except UnknownValueError as error:
                values[name] = f"none: {error}"
    return list(values.items())


def _value(term: Term, assertion: Assertion, measured: TraceResults) -> Given:
    match term:
        case Number(value):
            return value
        case StatusTerm():
            return measured.status
        case TracedTerm(number, text):
            values = measured.reads[assertion.clause]
            if values is None or number >= len(values):
                raise UnknownValueError(f"{text} could not be read")
            return values[number]
        case AggregationTerm():
            return _of_rows(term, assertion, measured)
        case Operation(operator, operands):
            return _operation(operator, operands, assertion, measured)


def _of_rows(term: AggregationTerm, assertion: Assertion, measured: TraceResults) -> Given:
    table = measured.tables.get(term.name)
    if table is None:
        raise UnknownValueError(f"the program has no aggregation @{term.name}")
    rows = list(table.values())
    if term.key is not None:
        key = tuple(_comparable(_value(one, assertion, measured)) for one in term.key)
        count = len(table.key_types)
        if len(key) != count:
            raise UnknownValueError(f"@{term.name} has {count} keys, {len(key)} given")
        rows = [row for k, row in table.items() if tuple(map(_comparable, k)) == key]
    elif table.key_types and not term.fold:
        folds = f"count(@{term.name}), sum(@{term.name})"
        raise UnknownValueError(f"@{term.name} has keys: @{term.name}[key], {folds}")
    if term.fold:
        return _folded(term, table.function, rows)
    if not rows and table.function in _FROM_ZERO:
        return 0
    if not rows:
        raise UnknownValueError(f"{table.function}() has seen nothing there")
    if isinstance(rows[0], tuple):
        hint = f"count({term.text}), min({term.text}), max({term.text})"
        raise UnknownValueError(f"{table.function}() has no single value: {hint}")
    return rows[0]


def _folded(
    term: AggregationTerm, function: str, values: Sequence[int | tuple[Bucket, ...]]
) -> int:
    """Return the count, sum, min or max over the values of an aggregation.

    For distributions, the count is the number of values, and min and max are bounds of the
    outermost buckets that have values.

    Args:
        term: its field `fold` is the operation: "count", "sum", "min" or "max".
        function: the aggregating function.
        values: values of the aggregation.

    Raises:
        UnknownValueError: the values have no such result.
    """
    plain = [row for row in values if isinstance(row, int)]
    buckets = [one for row in values if isinstance(row, tuple) for one in row if one.count]
    if term.fold == "count":
        return sum(one.count for one in buckets) if buckets else len(plain)
    if term.fold == "sum":
        if buckets:
            raise UnknownValueError(f"{function}() has no sum")
        return sum(plain)
    least, most = plain[:], plain[:]
    for one in buckets:
        if one.low is None or one.high is None:
            raise UnknownValueError(f"{function}() has values beyond its last bucket")
        least.append(one.low)
        most.append(one.high - 1)
    if not least:
        raise UnknownValueError(f"{function}() has seen nothing there")
    return min(least) if term.fold == "min" else max(most)


def _comparable(value: object) -> object:
    """Return a part of a key in a form that can be compared. A number becomes its 64-bit pattern,
    so that a signed and an unsigned number with the same bits are equal.
    """
    return value % _WORD if isinstance(value, int) else value


def _truth(value: Given) -> bool:
    return value != 0 if isinstance(value, int) else True


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise UnknownValueError("a division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_INFIX: Mapping[str, Callable[[int, int], int]] = {
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
    "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63),
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": _divided, "%": lambda a, b: a - b * _divided(a, b),
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
_PREFIX: Mapping[str, Callable[[int], int]] = {
    "!": lambda a: not a, "-": lambda a: -a, "+": lambda a: a, "~": lambda a: ~a,
}  # fmt: skip


def _operation(
    operator: str, operands: Sequence[Term], assertion: Assertion, measured: TraceResults
) -> Given:
    def value(k: int) -> Given:
        return _value(operands[k], assertion, measured)

    if operator == COMPUTED:
        return value(0)
    if operator == "?:":
        return value(1) if _truth(value(0)) else value(2)
    if operator in ("&&", "||"):
        first = _truth(value(0))
        return int(first if first == (operator == "||") else _truth(value(1)))
    if operator == "^^":
        return int(_truth(value(0)) != _truth(value(1)))
    if len(operands) == 1:
        return int(_PREFIX[operator](_number(value(0), operator)))
    a, b = value(0), value(1)
    if operator in ("==", "!=") and isinstance(a, str) and isinstance(b, str):
        return int((a == b) == (operator == "=="))
    return int(_INFIX[operator](_number(a, operator), _number(b, operator)))


def _number(value: Given, operator: str) -> int:
    if not isinstance(value, int):
        raise UnknownValueError(f'{operator} takes numbers, and "{value}" is none')
    return value
