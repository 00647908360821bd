"""Results that were kept with --json, read back (docs/json.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Key, KeyPart, Stack
from kinst.views.buckets import Snapshot

_HINT = "kinst --json -o FILE makes one"


def saved_aggregations(lines: Iterable[str], name: str) -> tuple[Aggregation, ...]:
    """The aggregations of the last trace in a file of JSON lines, as they were at its end, or as
    printa() printed them last.

    name: of the file.  Raises KinstError where it is not what --json prints."""
    found = {one.table.name: one.table for one in saved_snapshots(lines, name)}
    return tuple(found.values())


def saved_snapshots(lines: Iterable[str], name: str) -> list[Snapshot]:
    """The same with each of printa()'s, in order, at the time of the record before it."""
    found: list[Snapshot] = []
    time: int | None = None
    over = False
    for number, line in enumerate(lines, 1):
        try:
            one = json.loads(line)
            if over:
                found, time, over = [], None, False
            if one["type"] == "record":
                time = one.get("time")
            if one["type"] == "aggregation":
                found.append(Snapshot(time, _aggregation(one)))
            over = one["type"] == "end"
        except (ValueError, LookupError, TypeError, AttributeError):
            raise KinstError(
                f"{name}:{number}: not a line that kinst --json prints", _HINT
            ) from None
    if not over:
        raise KinstError(f"{name}: not a whole trace: it has no line of type end", _HINT)
    return found


def _aggregation(line: Mapping[str, Any]) -> Aggregation:
    rows = {_key(row["key"]): _value(row["value"]) for row in line["rows"]}
    return Aggregation(line["name"], line["function"], tuple(line["keys"]), rows)


def _key(parts: Iterable[Any]) -> Key:
    return tuple(map(_part, parts))


def _part(part: Any) -> KeyPart:
    if isinstance(part, int | str):
        return part
    if "bytes" in part:
        return bytes.fromhex(part["bytes"])
    if "stack" in part:
        return Stack(part["stack"], tuple(map(_frame, part["frames"])), part.get("pid", 0))
    return _frame(part)


def _frame(frame: Mapping[str, Any]) -> Frame:
    known = {name: frame[name] for name in Frame.__slots__ if name in frame}
    return Frame(**{**known, "address": int(frame["address"], 16)})


def _value(value: Any) -> int | tuple[Bucket, ...]:
    if isinstance(value, int):
        return value
    return tuple(Bucket(one["low"], one["high"], one["count"]) for one in value)
