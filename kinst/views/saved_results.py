"""Reader of results that were saved with --json (docs/json.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Key, KeyPart, Stack
from kinst.views.buckets import DistributionSnapshot

_HINT = "kinst --json -o FILE makes one"


@dataclass(frozen=True, slots=True)
class SavedTrace:
    """The last trace in a file of JSON lines.

    Attributes:
        snapshots: each printed aggregation, in the order of printing. Its time is that of the last
            record printed before.
        program: D text of the trace; "" if the file does not have it.
        command: the traced command; "" if there was no command.
        kernel: release of the kernel; "" if the file does not have it.
    """

    snapshots: Sequence[DistributionSnapshot]
    program: str = ""
    command: str = ""
    kernel: str = ""

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:
        """The aggregations of the trace, each with the values that were printed last."""
        return tuple({one.table.name: one.table for one in self.snapshots}.values())


def saved_trace(lines: Iterable[str], name: str) -> SavedTrace:
    """Return the last trace of a file that --json has made.

    Args:
        lines: text of the file.
        name: name of the file, for error messages.

    Raises:
        KinstError: the text is not the output of --json, or its last trace has no end.
    """
    snapshots: list[DistributionSnapshot] = []
    time: int | None = None
    end: Mapping[str, Any] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if end:
                snapshots, time, end = [], None, {}
            if record["type"] == "record":
                time = record.get("time")
            if record["type"] == "aggregation":
                snapshots.append(DistributionSnapshot(time, _aggregation(record)))
            if record["type"] == "end":
                end = record
        except (ValueError, LookupError, TypeError, AttributeError):
            raise KinstError(
                f"{name}:{number}: not a line that kinst --json prints", _HINT
            ) from None
    if not end:
        raise KinstError(f"{name}: not a whole trace: it has no line of type end", _HINT)
    traced = (end.get(member, "") for member in ("program", "command", "kernel"))
    return SavedTrace(snapshots, *map(str, traced))


def _aggregation(line: Mapping[str, Any]) -> Aggregation:
    rows = {_key(row["key"]): _value(row["value"]) for row in line["rows"]}
    return Aggregation(
        line["name"], line["function"], tuple(line["keys"]), rows, line.get("expression", ""),
        line.get("unit", ""), tuple(line.get("key_names", ())),
    )  # fmt: skip


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
