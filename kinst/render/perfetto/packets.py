"""Encoder of Perfetto's trace format, for the six protocol buffer messages that a timeline needs.

Sources: protos/perfetto/trace/ in Perfetto's source: trace_packet.proto, track_event/*.proto; for
the encoding, https://protobuf.dev/programming-guides/encoding.

Tested by tests/render/perfetto/test_timeline.py."""

from __future__ import annotations

from collections.abc import Iterator

from kinst.core.words import MASK
from kinst.events import Value
from kinst.render.json import structured
from kinst.render.perfetto.timeline import Cpu, Thread, Timeline, Track

_VARINT, _BYTES = 0, 2  # wire types
_SEQUENCE = 1  # any number: one writer writes all packets
_CLEARED = 1  # SEQ_INCREMENTAL_STATE_CLEARED
# High bits of the uuids of tracks: threads, processes, CPUs' records, CPUs' threads, CPUs.
_THREAD, _PROCESS, _CPU, _ON_CPU, _CPUS = (k << 32 for k in range(1, 6))


def varint(value: int) -> bytes:
    """Encode a number as a varint: seven bits a byte, lowest bits first. Negative numbers are
    encoded as 64-bit numbers."""
    value &= MASK
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    """Encode a protocol buffer field that holds a number.

    Args:
        field: number of the field.
    """
    return varint(field << 3 | _VARINT) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """Encode a protocol buffer field that holds a string or an encoded message.

    Args:
        field: number of the field.
    """
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def encode(timeline: Timeline) -> bytes:
    """Return a timeline as a Perfetto trace: descriptors of the tracks, then the events."""
    tracks = dict.fromkeys(mark.track for mark in timeline.marks)
    packets = [*_descriptors(list(tracks), timeline.names)]
    for mark in timeline.marks:
        event = number(9, mark.kind) + number(11, track_number(mark.track))
        if mark.name:
            event += text(23, mark.name)
        event += b"".join(text(4, _annotation(k, one)) for k, one in enumerate(mark.values, 1))
        packets.append(number(8, mark.time_ns) + text(11, event))
    flags = number(13, _CLEARED)  # the first packet's
    return b"".join(
        text(1, packet + number(10, _SEQUENCE) + (b"" if k else flags))
        for k, packet in enumerate(packets)
    )


def track_number(track: Track) -> int:
    """Return the uuid of a track, which Perfetto needs to be unique."""
    if isinstance(track, Thread):
        return _THREAD | track.tid
    return (_ON_CPU if track.threads else _CPU) | track.number


def _descriptors(tracks: list[Track], names: dict[int, str]) -> Iterator[bytes]:
    """Yield an encoded TrackDescriptor for each process, each thread and each CPU that has a track.

    Args:
        names: name of each thread, by tid.
    """
    processes = {one.pid for one in tracks if isinstance(one, Thread) and one.pid is not None}
    for pid in sorted(processes):
        process = number(1, pid) + text(6, names.get(pid, str(pid)))
        yield text(60, number(1, _PROCESS | pid) + text(3, process))
    if any(isinstance(one, Cpu) for one in tracks):
        yield text(60, number(1, _CPUS) + text(2, "CPUs"))
    for one in tracks:
        uuid = number(1, track_number(one))
        if isinstance(one, Cpu):
            name = f"CPU {one.number}" + (" threads" if one.threads else "")
            yield text(60, uuid + text(2, name) + number(5, _CPUS))
            continue
        name = names.get(one.tid, "thread")
        if one.pid is None:
            yield text(60, uuid + text(2, f"{name} {one.tid}"))
            continue
        thread = number(1, one.pid) + number(2, one.tid) + text(5, name)
        yield text(60, uuid + text(4, thread))


def _annotation(position: int, value: Value) -> bytes:
    """Encode a traced value as a DebugAnnotation.

    Args:
        position: number of the value in the record. A value without an expression gets it as its
            name: "value 1".
    """
    fields = text(10, value.name or f"value {position}")
    plain = value.value
    if isinstance(plain, int):
        return fields + number(4, plain)
    if isinstance(plain, str):
        return fields + text(6, plain)
    return fields + text(6, str(structured(plain)))
