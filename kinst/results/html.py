"""Results of a trace as HTML for notebooks: tables of values, and bars for distributions.

Text has the notebook's colours. Only bars and lines have colours of their own, visible on light and
dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from kinst.core.units import UNITS, counted, value_text
from kinst.events import Aggregation, Bucket, Frame, Record, Stack

MOST_ROWS = 60  # rows shown of a table
MOST_LINES = 40  # lines shown of the command's output
STYLE = """\
<style>
table.kinst { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 1em; }
table.kinst caption { text-align: left; font-weight: 600; padding: 4px 0; }
table.kinst th, table.kinst td { padding: 2px 10px; text-align: left; vertical-align: top; }
table.kinst th { border-bottom: 1px solid rgba(128, 128, 128, .6); }
table.kinst td { border-bottom: 1px solid rgba(128, 128, 128, .2); white-space: pre; }
table.kinst .number { text-align: right; }
table.kinst .bar { min-width: 160px; }
table.kinst .bar i { display: block; height: 11px; margin-top: 4px; background: #4c86cf;
  border-radius: 1px; }
</style>
"""


def aggregation_html(table: Aggregation) -> str:
    """Return an aggregation as an HTML table with a row for each key or, for a distribution, for
    each bucket of each key."""
    names = table.key_names or tuple(f"key{k}" for k in range(1, len(table.keys) + 1))
    distributed = any(isinstance(value, tuple) for value in table.rows.values())
    heads = [_head(name) for name in names]
    value = table.expression or "value"
    if distributed:
        heads += [_head(value, "number"), _head("count", "number"), _head("", "bar")]
        rows = [row for key, one in table.rows.items() if isinstance(one, tuple)
                for row in _buckets([_text(part) for part in key], one, table.unit)]  # fmt: skip
    else:
        heads.append(_head(f"{table.function}({table.expression})", "number"))
        rows = [
            _row([*(_cell(_text(part)) for part in key), _cell(_number(one, table.unit), "number")])
            for key, one in table.rows.items()
        ]
    keys = len(table.rows)
    what = f"@{table.name}" if table.name else "@"
    caption = f"{what}: {counted(keys, 'key')}" if table.keys else what
    return STYLE + _table(caption, heads, rows)


def _buckets(key: Sequence[str], row: Sequence[Bucket], unit: str) -> Iterator[str]:
    """Yield an HTML row for each bucket of a distribution. Only the first row shows the key."""
    most = max((one.count for one in row), default=1)
    for number, one in enumerate(row):
        cells = [_cell(text if number == 0 else "") for text in key]
        bar = f'<td class="bar"><i style="width:{100 * one.count / max(most, 1):.1f}%"></i></td>'
        bounds = _cell(_range(one, unit), "number")
        yield _row([*cells, bounds, _cell(f"{one.count:,}", "number"), bar])


def records_html(records: Sequence[Record]) -> str:
    """Return the first MOST_ROWS records as an HTML table, with a column for each traced
    expression."""
    shown = records[:MOST_ROWS]
    names = list(dict.fromkeys(value.name for record in shown for value in record.values))
    heads = [_head("time", "number"), _head("cpu", "number"), _head("probe"), *map(_head, names)]
    start = shown[0].time_ns if shown else 0
    rows = []
    for record in shown:
        values = {value.name: value.value for value in record.values}
        cells = [
            _cell(value_text(record.time_ns - start, UNITS[0]), "number"),
            _cell(f"{record.cpu}", "number"), _cell(str(record.probe.name)),
        ]  # fmt: skip
        rows.append(_row([*cells, *(_cell(_text(values.get(name, ""))) for name in names)]))
    count = len(records)
    return STYLE + _table(
        f"{counted(count, 'record', spec=',')}; times since the first", heads, rows,
        left=count - len(shown),
    )  # fmt: skip


def result_html(
    ending: str, aggregations: Iterable[Aggregation], records: Sequence[Record], output: bytes,
    messages: Sequence[str],
) -> str:  # fmt: skip
    """Return the results of a trace as HTML: how it ended, its aggregations and records, and the
    command's output.

    Args:
        ending: how the trace ended, a sentence.
        messages: sentences about lost data and faults, and other messages.
    """
    parts = [f"<p>{escape(ending)}</p>", *(f"<p>{escape(one)}</p>" for one in messages)]
    parts += [aggregation_html(one) for one in aggregations]
    if records:
        parts.append(records_html(records))
    lines = output.decode("utf-8", "replace").splitlines()
    if lines:
        more = [f"... {len(lines) - MOST_LINES:,} more lines"] * (len(lines) > MOST_LINES)
        parts.append(f"<pre>{escape(chr(10).join([*lines[:MOST_LINES], *more]))}</pre>")
    return "".join(parts)


def _table(caption: str, heads: Sequence[str], rows: Sequence[str], left: int = 0) -> str:
    left += max(0, len(rows) - MOST_ROWS)
    shown = list(rows[:MOST_ROWS])
    if left:
        shown.append(f'<tr><td colspan="{len(heads)}">... {left:,} more</td></tr>')
    return (
        f'<table class="kinst"><caption>{escape(caption)}</caption>'
        f"<tr>{''.join(heads)}</tr>{''.join(shown)}</table>"
    )


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _head(text: str, kind: str = "") -> str:
    return f'<th class="{kind}">{escape(text)}</th>' if kind else f"<th>{escape(text)}</th>"


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _number(value: object, unit: str) -> str:
    if isinstance(value, int):
        return value_text(value, unit) if unit else f"{value:,}"
    return str(value)


def _range(one: Bucket, unit: str) -> str:
    low, high = (_number(bound, unit) if bound is not None else "" for bound in (one.low, one.high))
    if one.low is None:
        return f"< {high}"
    if one.high is None:
        return f"≥ {low}"
    return low if not unit and one.high == one.low + 1 else f"{low} to {high}"


def _text(part: object) -> str:
    if isinstance(part, Stack):
        return "\n".join(map(_text, part.frames))
    if isinstance(part, Frame):
        name = f"{part.module}`{part.function}" if part.function else part.module
        offset = f"+{part.offset:#x}" if part.function and part.offset else ""
        return f"{name}{offset}" if name else f"{part.address:#x}"
    return part.hex() if isinstance(part, bytes) else str(part)
