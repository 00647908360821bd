"""A trace without output says why, once: the guest is idle, or the command waits."""

from __future__ import annotations

import pytest

from tests.vm.command import Running, kinst
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

PROBE = "kinst::vfs_read:19"
NOT_YET = "none has run for 2 s: the command has not come to it"


def told(*words: str) -> str:
    """Trace until kinst explains why nothing is shown, and return its messages."""
    trace = Running(*words)
    seen = trace.until(lambda result: " planted, and none has run for 2 s: " in result.err)
    trace.stop()
    trace.result()
    return seen.err


def told_of_wait(*words: str) -> str:
    """Return kinst's messages about a command that waits.

    kinst looks once, after 2 s. If a busy host has not run the guest so far that the command
    waits, kinst rightly says NOT_YET, and another trace can show more.
    """
    said = told(*words)
    for _ in range(2):
        said = told(*words) if NOT_YET in said else said
    return said


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
    # It is 0 while the process has not come to wait.
    wait = "until grep -q '[^0]' /proc/$!/wchan; do sleep 1; done; cat /proc/$!/wchan; kill $!"
    function = kinst("-qn", "BEGIN { }", "-c", f"{command} & {wait}").good().guest
    for words in (command, f"{command}; true"):  # the second is a child of the command's shell
        said = told_of_wait("-n", "kinst::vfs_fallocate:0", "-c", words)
        assert f"the command waits in {function}()" in said


@pytest.mark.full
def test_a_command_that_waits_on_each_isa(guest: Guest) -> None:
    said = told_of_wait(f"--vm={guest.isa}", "-n", "kinst::vfs_fallocate:0", "-c", "sleep 100")
    assert "nanosleep()" in said


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
    program = "kinst::vfs_read:0 { @[execname] = count(); }"
    assert NOT_YET in told("-n", program, "-c", "while :; do :; done")
