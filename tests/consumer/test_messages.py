"""The sentences that dtrace(1) prints around the data."""

from __future__ import annotations

from kinst.consumer.messages import (
    LIST_HEADER,
    description_matched,
    fault_message,
    list_row,
    script_matched,
)
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
    assert fault_message(4, probe, 1, 1, 0x10) == (
        "dtrace: error on enabled probe ID 4 (ID 2: kinst:vmlinux:vfs_read:19): "
        "invalid address (0x10) in action #1"
    )
    assert fault_message(4, probe, 0, 4, 0) == (
        "dtrace: error on enabled probe ID 4 (ID 2: kinst:vmlinux:vfs_read:19): "
        "divide-by-zero in predicate"
    )
