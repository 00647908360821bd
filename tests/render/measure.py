"""Time for a million records: run it by hand, it asserts nothing.

.venv/bin/python -m tests.render.measure
"""

from __future__ import annotations

import struct
import threading
import time

import numpy as np

from kinst.consumer.rings import Chunk, RingReader, Rings
from kinst.core import dtypes
from kinst.core.errors import Span
from kinst.core.layout import RECORD_HEADER, STATE_DROPS, STATE_HEAD, STATE_TAIL
from kinst.dlang.typed import PrintfAction
from kinst.dlang.vocabulary.d_options import Options
from tests.consumer.world import World, const, fields, format_, part, put64, scratch

MILLION = 1_000_000


def records(n: int, clauses: int) -> tuple[bytes, int]:
    """n records of printf("%d %x %x\\n", timestamp, r, r); clauses alternate."""
    size = RECORD_HEADER + 24
    dtype = np.dtype("<u4,<u4,<u4,<u4,<u8,<u8,<u8,<u8")
    rows = np.zeros(n, dtype)
    rows["f0"], rows["f1"], rows["f2"] = size, np.arange(n) % clauses, 12
    rows["f4"] = rows["f5"] = np.arange(n) + 10**12
    rows["f6"], rows["f7"] = 0xFFFF888003A2B000, np.arange(n)
    return rows.tobytes(), size


def world(quiet: bool, clauses: int, format_name: str = "dtrace") -> World:
    made, size = fields(dtypes.UINT64, dtypes.UINT64, dtypes.UINT64)
    row = format_(part("", "d"), part(" ", "x"), part(" ", "x"), part("\n"))
    action = PrintfAction(Span("t.d", 1, 1), row, (const(), const(), const()))
    clause = ([action], [made], size)
    return World([clause] * clauses, options=Options(quiet=quiet), format=format_name)


def printing() -> None:
    for quiet in (True, False):
        for clauses in (1, 2):
            data, _ = records(MILLION, clauses)
            w = world(quiet, clauses)
            start = time.perf_counter()
            w.take([Chunk(0, np.frombuffer(data, np.uint8))])
            took = time.perf_counter() - start
            print(f"1M records, {clauses} clause(s), quiet {quiet}: {took:.2f} s")


def formats() -> None:
    """Return CPU seconds of the text and of JSON, by turns."""
    for clauses in (1, 2):
        data, _ = records(MILLION, clauses)
        took = {"dtrace": 0.0, "json": 0.0}
        for _ in range(3):
            for name in took:
                w = world(False, clauses, name)
                start = time.process_time()
                w.take([Chunk(0, np.frombuffer(data, np.uint8))])
                took[name] += (time.process_time() - start) / 3
        rate = took["dtrace"] / took["json"]
        print(f"1M records, {clauses} clause(s): text {took['dtrace']:.2f} s, JSON"
              f" {took['json']:.2f} s: {rate:.0%} of the text's rate")  # fmt: skip


def live() -> None:
    """Produce at full speed into a 4 MB ring, which is drained and printed at the same time."""
    s, _ = scratch(cpus=1)
    ring = 4 << 20
    s = type(s)(*[getattr(s, f) for f in s.__slots__])
    object.__setattr__(s, "ring_size", ring)
    object.__setattr__(s, "ring", 1 << 20)
    memory = bytearray((1 << 20) + 2 * ring)
    data, size = records(MILLION, 1)
    w = world(True, 1)
    reader = RingReader(Rings(memoryview(memory), s), 1 << 30)
    drops = 0

    def produce() -> None:
        nonlocal drops
        head, block = 0, 1000
        start = time.perf_counter()
        for i in range(0, MILLION, block):
            while time.perf_counter() - start < i / MILLION:  # a million in a second
                time.sleep(0.0002)
            tail = struct.unpack_from("<Q", memory, s.state_of(0) + STATE_TAIL)[0]
            if head + block * size - tail > ring:
                drops += block
                continue
            piece = data[i * size : (i + block) * size]
            at = head % ring
            first = min(len(piece), ring - at) // 8 * 8
            memory[s.ring + at : s.ring + at + first] = piece[:first]
            memory[s.ring : s.ring + len(piece) - first] = piece[first:]
            head += len(piece)
            put64(memory, s.state_of(0) + STATE_HEAD, head)

    producer = threading.Thread(target=produce)
    start = time.perf_counter()
    reader.start()
    producer.start()
    printed, peak = 0, 0
    while producer.is_alive():
        peak = max(peak, reader.pending)
        printed += w.take(reader.batch(timeout=0.05))
        w.out.clear()
    for chunks in reader.stop():
        printed += w.take(chunks)
    took = time.perf_counter() - start
    print(
        f"live: {printed} printed, {drops} dropped, in {took:.2f} s; at most {peak >> 20} MB waited"
    )
    assert STATE_DROPS


if __name__ == "__main__":
    printing()
    formats()
    live()
