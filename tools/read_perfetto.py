"""Reader of Perfetto traces, by Perfetto's own protobuf classes."""

from __future__ import annotations

from typing import NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent


class Slice(NamedTuple):
    """A slice of a track: something with a begin and an end.

    Attributes:
        end: time of its end; None if the trace does not have its end.
    """

    track: str
    name: str
    start: int
    end: int | None


def tracks(trace: Trace) -> dict[int, TrackDescriptor]:
    """Return the descriptors of all tracks, by their uuid."""
    return {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }


def _events(trace: Trace, cpus: bool) -> list[tuple[str, int, TrackEvent]]:
    """Return (name of the track, time, event) for each track event.

    Args:
        trace: the trace.
        cpus: include events of the CPUs' tracks.
    """
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
    """Return the slices of all tracks in the order in which they begin.

    Args:
        trace: the trace.
        cpus: include slices of the CPUs' tracks.
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
    """Return (track, name, time) for each instant event of the threads' tracks."""
    return [
        (track, event.name, time)
        for track, time, event in _events(trace, False)
        if event.type == TrackEvent.TYPE_INSTANT
    ]
