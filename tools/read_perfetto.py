"""What is in a trace of Perfetto's, by its own classes: slices put together from their ends."""

from __future__ import annotations

from typing import NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent


class Slice(NamedTuple):
    """end: None where it has none."""

    track: str
    name: str
    start: int
    end: int | None


def tracks(trace: Trace) -> dict[int, TrackDescriptor]:
    """By uuid."""
    return {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }


def _events(trace: Trace, cpus: bool) -> list[tuple[str, int, TrackEvent]]:
    """(name of its track, time, event)."""
    known = tracks(trace)
    found = []
    for packet in trace.packet:
        if packet.HasField("track_event"):
            track = known[packet.track_event.track_uuid]
            name = track.thread.thread_name or track.name
            if cpus or not name.startswith("CPU "):
                found.append((name, packet.timestamp, packet.track_event))
    return found


def slices(trace: Trace, *, cpus: bool = False) -> list[Slice]:
    """In the order in which they begin.  cpus: those of CPUs' tracks, too."""
    found: list[Slice] = []
    open_: dict[int, list[int]] = {}
    for track, time, event in _events(trace, cpus):
        inside = open_.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            inside.append(len(found))
            found.append(Slice(track, event.name, time, None))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            at = inside.pop()
            found[at] = found[at]._replace(end=time)
    return found


def instants(trace: Trace) -> list[tuple[str, str, int]]:
    """(track, name, time), of threads."""
    return [
        (track, event.name, time)
        for track, time, event in _events(trace, False)
        if event.type == TrackEvent.TYPE_INSTANT
    ]
