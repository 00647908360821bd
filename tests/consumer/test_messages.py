"""The sentences that dtrace(1) prints around the data."""

from __future__ import annotations

from dataclasses import replace

from kinst.consumer.messages import (
    LIST_HEADER,
    description_matched,
    fault_event,
    list_row,
    lost_events,
    script_matched,
)
from kinst.consumer.rings import FaultEntry, SlotLosses
from kinst.core.probe import Probe, ProbeName


def test_matched() -> None:
    assert description_matched("syscall:::entry", 233) == (
        "dtrace: description 'syscall:::entry' matched 233 probes"
    )
    assert description_matched("BEGIN { exit(0); }", 1) == (
        "dtrace: description 'BEGIN ' matched 1 probe"
    )
    assert description_matched("read:entry/pid == 1/{}", 0) == (
        "dtrace: description 'read:entry' matched 0 probes"
    )
    for written in (
        "kinst:fs/read_write.c:vfs_read:467", "vfs_read+0x13/0x350", "fs/read_write.c:451",
        "kinst:fs/read_write.c::451", "::fs/read_write.c:*:451",
    ):  # fmt: skip
        message = f"dtrace: description '{written}' matched 8 probes"
        assert description_matched(f"{written}/pid == 1/{{ }}", 8) == message
    assert script_matched("wrquantize.d", 2) == "dtrace: script 'wrquantize.d' matched 2 probes"


def test_listing() -> None:
    assert LIST_HEADER == (
        "   ID   PROVIDER            MODULE                          FUNCTION NAME"
    )
    row = list_row(Probe(1, ProbeName("dtrace", "", "", "BEGIN")))
    assert row == "    1     dtrace                                                     BEGIN"
    row = list_row(Probe(70124, ProbeName("kinst", "vmlinux", "vfs_read", "19")))
    assert row == "70124      kinst           vmlinux                          vfs_read 19"


def test_faults() -> None:
    probe = Probe(2, ProbeName("kinst", "vmlinux", "vfs_read", "19"))
    event = fault_event(FaultEntry(4, 1, 1, 0x10, 77), probe, 0, 2)
    assert event.text == (
        "dtrace: error on enabled probe ID 4 (ID 2: kinst:vmlinux:vfs_read:19): "
        "invalid address (0x10) in action #1"
    )
    assert (event.kind, event.value, event.cpu, event.time_ns) == ("badaddr", 0x10, 0, 77)
    event = fault_event(FaultEntry(4, 0, 4, 0), probe, 2, 2)
    assert event.text == (
        "dtrace: error on enabled probe ID 4 (ID 2: kinst:vmlinux:vfs_read:19): "
        "divide-by-zero in predicate"
    )
    assert (event.kind, event.cpu) == ("divzero", None)
    event = fault_event(FaultEntry(4, 1, 3, 0), probe, 0, 2, "arg1 is not known")
    assert event.text.endswith(": illegal operation in action #1 (arg1 is not known)")
    event = fault_event(FaultEntry(4, 1, 4, 0), probe, 0, 2)
    assert event.text.endswith(": divide-by-zero in action #1")


def test_a_fault_of_no_known_kind() -> None:
    probe = Probe(2, ProbeName("kinst", "vmlinux", "vfs_read", "19"))
    assert fault_event(FaultEntry(4, 1, 99, 0), probe, 0, 2).kind == "unknown"


def test_the_slot_behind_the_last_cpu_is_the_host() -> None:
    on_cpu, on_host = lost_events([SlotLosses(1, 2, 0, 0, 0), SlotLosses(2, 1, 0, 0, 0)], 2)
    assert (on_cpu.cpu, on_cpu.text) == (1, "dtrace: 2 drops on CPU 1")
    assert (on_host.cpu, on_host.text) == (None, "dtrace: 1 drop on the host")
    assert on_cpu.kind == on_host.kind == "record"


def test_what_is_lost_is_told_by_its_kind() -> None:
    """The sentences are dtrace(1)'s (dt_handle.c, dt_aggregate.c); readers of events tell the
    kinds apart."""
    nothing = SlotLosses(0, 0, 0, 0, 0)
    names = ("double", "dynamic", "dirty", "rinsing", "speculative", "unavailable")
    told = {}
    for name in names:
        losses = [nothing, replace(nothing, slot=1, **{name: 3})]
        told[name] = [(e.kind, e.count, e.cpu, e.text) for e in lost_events(losses, 2)]
    assert told["double"] == [("error", 3, None, "dtrace: 3 errors in ERROR probe enabling")]
    drops = "dtrace: 3 dynamic variable drops"
    assert told["dynamic"] == [
        ("dynamic", 3, None, f"{drops} (a larger -x dynvarsize= loses fewer)")
    ]
    assert told["dirty"] == [("dirty", 3, None, f"{drops} with non-empty dirty list")]
    assert told["rinsing"] == [("rinsing", 3, None, f"{drops} with non-empty rinsing list")]
    drops = "dtrace: 3 speculative drops on CPU 1"
    assert told["speculative"] == [("speculative", 3, 1, drops)]
    ((kind, count, _, said),) = told["unavailable"]
    assert (kind, count) == ("speculation", 3) and said.startswith("dtrace: 3 failed speculations")
