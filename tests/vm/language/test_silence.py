"""A trace without output says why, once: the guest is idle, or the command waits."""

from __future__ import annotations

import pytest

from tests.vm.command import Running, kinst
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

PROBE = "kinst::vfs_read:19"


def test_an_idle_guest() -> None:
    trace = Running("-n", PROBE)
    seen = trace.until(lambda result: "is idle" in result.err)
    assert (
        "1 instruction is planted, and none has run for 2 s: it was planted after the guest's boot"
        in seen.err
    )
    trace.stop()
    assert trace.result().err.count("is idle") == 1


def test_counts_that_wait_for_the_end() -> None:
    trace = Running("-n", "fbt::schedule:entry { @ = count(); }")
    trace.until(lambda result: "aggregations are printed when the trace ends" in result.err)
    trace.stop()
    assert "idle" not in trace.result().err


@pytest.mark.parametrize("command", ["cat /proc/kmsg >/dev/null", "sleep 100"])
def test_a_command_that_waits(command: str) -> None:
    """The function is the one that the kernel itself names in /proc/PID/wchan."""
    asked = f"{command} & sleep 1; cat /proc/$!/wchan; kill $!"
    function = kinst("-qn", "BEGIN { }", "-c", asked).good().guest
    for words in (command, f"{command}; true"):  # the second is a child of the command's shell
        trace = Running("-n", "kinst::vfs_fallocate:0", "-c", words)
        seen = trace.until(lambda result: "waits in" in result.err)
        trace.stop()
        trace.result()
        assert f"the command waits in {function}()" in seen.err


@pytest.mark.full
def test_a_command_that_waits_on_each_isa(guest: Guest) -> None:
    arguments = ("-n", "kinst::vfs_fallocate:0", "--timeout", "10", "-c", "sleep 100")
    done = kinst(f"--vm={guest.isa}", *arguments)
    assert "nanosleep()" in done.err, done


def test_a_quiet_trace_says_nothing() -> None:
    done = kinst("-q", "-n", PROBE, "--timeout", "4")
    assert "planted" not in done.err


def test_a_command_that_does_not_come_to_the_probe() -> None:
    """busybox's cat copies by sendfile(), dd by read()."""
    probe = ("-n", "fbt::vfs_read:entry { @[execname] = quantize(arg2); }")
    said = "kinst: no probe fired: 1 instruction was planted while the command ran"
    assert said in kinst(*probe, "-c", "cat /etc/passwd").good().err
    assert "no probe fired" not in kinst(*probe, "-c", "dd if=/etc/passwd").good().err
    assert "no probe fired" not in kinst("-q", *probe, "-c", "cat /etc/passwd").good().err


def test_a_busy_command_that_does_not_come_to_the_probe() -> None:
    busy = ("--timeout", "4", "-c", "while :; do :; done")
    done = kinst("-n", "kinst::vfs_read:0 { @[execname] = count(); }", *busy)
    assert "none has run for 2 s: the command has not come to it" in done.err
