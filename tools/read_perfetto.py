"""Read a Perfetto trace by Perfetto's own classes: slices put together from their ends."""

from __future__ import annotations

from typing import NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent


class Slice(NamedTuple):
    """A slice of a track.

    Attributes:
        end: None if it has none.
    """

    track: str
    name: str
    start: int
    end: int | None


def tracks(trace: Trace) -> dict[int, TrackDescriptor]:
    """Return the tracks by uuid."""
    return {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }


def _events(trace: Trace, cpus: bool) -> list[tuple[str, int, TrackEvent]]:
    """Yield (track's name, time, event)."""
    by_uuid = tracks(trace)
    events = []
    for packet in trace.packet:
        if packet.HasField("track_event"):
            track = by_uuid[packet.track_event.track_uuid]
            name = track.thread.thread_name or track.name
            if cpus or not name.startswith("CPU "):
                events.append((name, packet.timestamp, packet.track_event))
    return events


def slices(trace: Trace, *, cpus: bool = False) -> list[Slice]:
    """Return the slices in the order in which they begin.

    Args:
        cpus: include those of CPUs' tracks.
    """
    slices_found: list[Slice] = []
    open_: dict[int, list[int]] = {}
    for track, time, event in _events(trace, cpus):
        inside = open_.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            inside.append(len(slices_found))
            slices_found.append(Slice(track, event.name, time, None))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            at = inside.pop()
            slices_found[at] = slices_found[at]._replace(end=time)
    return slices_found


def instants(trace: Trace) -> list[tuple[str, str, int]]:
    """Return (track, name, time) of the threads' instants."""
    return [
        (track, event.name, time)
        for track, time, event in _events(trace, False)
        if event.type == TrackEvent.TYPE_INSTANT
    ]
