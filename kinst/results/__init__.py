"""Results of a trace as plain Python values; with pandas installed, also as DataFrames.

Tested by tests/test_api_docs.py and tests/views/test_verdicts.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket, Fault, Key, Lost, Record, Value


def _html() -> Any:
    """Import and return the module kinst.results.html. It is imported only if a notebook shows
    results.
    """
    return importlib.import_module("kinst.results.html")


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise KinstError("to_pandas() needs pandas", "pip install pandas") from None


class Table(dict[Key, int | tuple[Bucket, ...]]):
    """An aggregation's results: a dict from key tuples to values, in the order in which dtrace(1)
    shows them. A value is a number; for quantize() and the like, it is the tuple of buckets with
    data, lowest first. The key is () if the aggregation has no keys.

    Attributes:
        name: the aggregation's name, without the @.
        function: count, sum, ... quantize.
        key_types: D types of the keys.
        expression: the aggregated expression, as the D program has it; "" if not known.
        unit: unit of the values: "ns", "us", "ms" or "s"; "" if not known.
        key_names: the expressions of the keys, () if not known.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation.rows)
        self.name = aggregation.name
        self.function = aggregation.function
        self.key_types = aggregation.keys
        self.expression = aggregation.expression
        self.unit = aggregation.unit
        self.key_names = aggregation.key_names

    @property
    def aggregation(self) -> Aggregation:
        """The event (events.Aggregation) with the values of this table."""
        return Aggregation(
            self.name, self.function, self.key_types, self, self.expression, self.unit,
            self.key_names,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook, with bars for distributions."""
        return str(_html().aggregation_html(self.aggregation))

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each key or, for a distribution, for each bucket of
        each key.

        Columns: key1, key2, ...; then value, or low, high and count (low inclusive, high exclusive,
        NaN if a bucket has no bound). Raises KinstError if pandas is not installed."""
        pandas = _pandas()
        names = [f"key{k}" for k in range(1, len(self.key_types) + 1)]
        rows: list[dict[str, object]] = []
        for key, value in self.items():
            named: dict[str, object] = dict(zip(names, key, strict=True))
            if isinstance(value, tuple):
                rows += [{**named, "low": b.low, "high": b.high, "count": b.count} for b in value]
            else:
                rows.append({**named, "value": value})
        distribution = any(isinstance(value, tuple) for value in self.values())
        columns = [*names, *(("low", "high", "count") if distribution else ("value",))]
        return pandas.DataFrame(rows, columns=columns)


def tables_of(aggregations: Iterable[Aggregation]) -> dict[str, Table]:
    """Return a Table for each aggregation, by the aggregation's name."""
    return {one.name: Table(one) for one in aggregations}


class Records(list[Record]):
    """Records of a trace, in the order in which they happened."""

    def _repr_html_(self) -> str:
        """Return the records as an HTML table for a notebook."""
        return str(_html().records_html(self))

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each record. Its columns are time_ns, cpu, probe,
        clause, and one for each traced expression. Raises KinstError if pandas is not installed."""
        pandas = _pandas()
        columns = ["time_ns", "cpu", "probe", "clause"]
        rows = []
        for record in self:
            row: dict[str, object] = {
                "time_ns": record.time_ns,
                "cpu": record.cpu,
                "probe": str(record.probe.name),
                "clause": record.clause,
            }
            row |= {name: value.value for name, value in _named(record)}
            columns += [name for name in row if name not in columns]
            rows.append(row)
        return pandas.DataFrame(rows, columns=columns)


def _named(record: Record) -> Iterator[tuple[str, Value]]:
    """Yield (name, value) for each of a record's values.

    The name is the traced expression. If the expression occurs more than once in the record, the
    value's position in the record (from 1) is appended. The name of a value without an expression
    is "value" with its position.
    """
    names = [value.name for value in record.values]
    for k, value in enumerate(record.values, 1):
        alone = value.name and names.count(value.name) == 1
        yield (value.name if alone else f"{value.name or 'value'}{k}"), value


@dataclass(frozen=True, slots=True)
class Result:
    """Results of a trace that has ended."""

    # The aggregations by name, as they were at the end of the trace.
    aggregations: Mapping[str, Table]
    # Records of all clauses that trace something.
    records: Records
    # Output of the traced command.
    output: bytes
    # Status of exit(); without it, of the command; without a command, 0.
    status: int
    # Why the trace ended: events.End.reason.
    reason: str
    # Data that was dropped, clauses that failed, and messages for the user.
    lost: tuple[Lost, ...] = ()
    faults: tuple[Fault, ...] = ()
    messages: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return the results as HTML for a notebook: tables, distributions, records, output."""
        ending = f"ended: {self.reason}, status {self.status}"
        told = [
            *(one.text for one in self.lost),
            *(one.text for one in self.faults),
            *self.messages,
        ]
        tables = [table.aggregation for table in self.aggregations.values()]
        return str(_html().result_html(ending, tables, self.records, self.output, told))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command that ran in the guest without a trace."""

    output: bytes
    status: int
