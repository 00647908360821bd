"""A timeline of a real kernel: its slices are those of the records, paired here by another rule,
and as many as the program counts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import kinst
from kinst.events import Batch, Record
from kinst.render import Destination, renderer
from tests.vm.command import ran
from tools.read_perfetto import slices

pytestmark = pytest.mark.vm

WHOSE = "trace(pid); trace(tid); trace(execname);"
PROGRAM = f"""
fbt::vfs_read:entry, fbt::vfs_read:return, fbt::ksys_read:entry, fbt::ksys_read:return
{{ {WHOSE} @[probefunc, probename] = count(); }}
"""
COMMAND = "for n in 1 2 3; do cat /proc/self/maps | wc; done >/dev/null"


def test_slices_are_the_records_and_as_many_as_are_counted() -> None:
    written: list[str] = []
    records: list[Record] = []
    with kinst.boot() as machine, machine.trace(PROGRAM, COMMAND, {"quiet": True}) as trace:
        shown = renderer("perfetto")(Destination(written.append, print), trace.schema)
        for event in trace.events():
            if isinstance(event, Batch):
                records += event
            shown.show(event)
        counts = trace.aggregations()[""]
    parsed = Trace()
    parsed.ParseFromString("".join(written).encode("utf-8", "surrogateescape"))
    found = slices(parsed)

    # By thread and function, entries and returns alternate here: neither function calls itself.
    times = defaultdict[tuple[object, str], list[tuple[str, int]]](list)
    for one in records:
        tid = next(value.value for value in one.values if value.name == "tid")
        times[tid, one.probe.name.function].append((one.probe.name.name, one.time_ns))
    expected = set()
    for (_, function), row in times.items():
        while row and row[0][0] == "return":  # it was inside when the trace began
            row.pop(0)
        names = [name for name, _ in row]
        assert names == ["entry", "return"] * (len(names) // 2) + ["entry"] * (len(names) % 2)
        starts, ends = [t for n, t in row if n == "entry"], [t for n, t in row if n == "return"]
        expected |= {
            (function, start, ends[k] if k < len(ends) else None) for k, start in enumerate(starts)
        }
    assert {one[1:] for one in found} == expected
    for function in ("vfs_read", "ksys_read"):
        assert sum(one.name == function for one in found) == counts[function, "entry"] >= 12


def test_the_command_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "out.pftrace"
    words = ["-q", "-x", "format=perfetto", "-o", path, "-n", PROGRAM, "-c", "cat /proc/1/comm"]
    assert ran(*words).stdout == "init\n"
    parsed = Trace()
    parsed.ParseFromString(path.read_bytes())
    # cat reads its file, and then finds its end; its thread may have read before it became cat.
    names = [one.name for one in slices(parsed) if one.track == "cat"]
    assert len(names) >= 4 and names == ["ksys_read", "vfs_read"] * (len(names) // 2)
