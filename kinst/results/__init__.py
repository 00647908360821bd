"""What a trace leaves behind, as plain Python values, and as pandas' where that is installed.

Tested by tests/test_api_docs.py and tests/views/test_verdicts.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket, Fault, Key, Lost, Record, Value


def _html() -> Any:
    """What notebooks need, and nothing else."""
    return importlib.import_module("kinst.results.html")


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise KinstError("to_pandas() needs pandas", "pip install pandas") from None


class Table(dict[Key, int | tuple[Bucket, ...]]):
    """One aggregation: a dict by key tuple, () where it has no keys, in the order in which
    dtrace(1) shows it.  A value is a number or, for quantize() and its like, the buckets that
    have data, lowest first.

    name: without the @.  function: count, sum, ... quantize.  key_types: D types of the keys.
    expression, unit, key_names: as of events.Aggregation.
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
        """The same as an event."""
        return Aggregation(
            self.name, self.function, self.key_types, self, self.expression, self.unit,
            self.key_names,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        """A table for notebooks, with bars for distributions."""
        return str(_html().aggregation_html(self.aggregation))

    def to_pandas(self) -> Any:
        """A DataFrame: a row for each key, or for each bucket of each key.

        Columns: key1, key2, ...; value, or low, high and count (low inclusive, high not; NaN for
        no bound).  Raises KinstError where there is no pandas."""
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
    """Aggregations by name."""
    return {one.name: Table(one) for one in aggregations}


class Records(list[Record]):
    """Records in the order in which they happened."""

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return str(_html().records_html(self))

    def to_pandas(self) -> Any:
        """A DataFrame: a row for each record, with a column for each value that a clause traces,
        by its expression.  Raises KinstError where there is no pandas."""
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
    """Its values by names that differ: where an expression comes twice, with its position."""
    names = [value.name for value in record.values]
    for k, value in enumerate(record.values, 1):
        alone = value.name and names.count(value.name) == 1
        yield (value.name if alone else f"{value.name or 'value'}{k}"), value


@dataclass(frozen=True, slots=True)
class Result:
    """A trace that is over.

    aggregations: by name, as they were at the end.  records: of all clauses that trace something.
    output: what the command wrote in the guest.  status: of the program's exit(), else 0.
    reason: as of events.End.  messages: for people.
    """

    aggregations: Mapping[str, Table]
    records: Records
    output: bytes
    status: int
    reason: str
    lost: tuple[Lost, ...] = ()
    faults: tuple[Fault, ...] = ()
    messages: tuple[str, ...] = field(default=())

    def _repr_html_(self) -> str:
        """All of it for notebooks: tables, distributions, records, output."""
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
    """A command that ran in the guest without a trace."""

    output: bytes
    status: int
