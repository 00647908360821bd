"""The renderer for Perfetto traces. It writes the trace at the end, when all slices are known.

Tested by tests/render/perfetto/test_timeline.py."""

from __future__ import annotations

from kinst.consumer.schema import Schema
from kinst.events import Batch, End, Event, Fault, Lost, Message, Output, Record, Shell
from kinst.render import Destination
from kinst.render.perfetto.packets import encode
from kinst.render.perfetto.timeline import timeline


class PerfettoRenderer:
    """A renderer that writes a Perfetto trace. It keeps all records, some hundred bytes each, until
    the trace ends."""

    def __init__(self, destination: Destination, schema: Schema) -> None:
        self._to = destination
        self._records: list[Record] = []

    def show(self, event: Event) -> None:
        match event:
            case Batch():
                self._records.extend(event)
            case Output():
                self._to.console(event.data.decode("utf-8", "surrogateescape"))
            case Lost() | Fault() | Message():
                self._to.say(event.text)
            case Shell():
                self._to.console(
                    self._to.shell(event.command, True).decode("utf-8", "surrogateescape")
                )
            case End():
                # The destination takes text; surrogates carry the bytes through.
                data = encode(timeline(self._records))
                self._to.write(data.decode("utf-8", "surrogateescape"))
            case _:
                pass  # aggregations have no time

    def close(self) -> None:
        """Do nothing: no file is open."""
