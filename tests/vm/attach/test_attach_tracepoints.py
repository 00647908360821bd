"""sdt probes in an attached machine: counts are the guest's own, and a killed kinst leaves
tracepoints that the guest can use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.attach.attach_guest import AttachGuest, attach_guest, wait_undone
from tests.vm.command import Running, counts

pytestmark = [pytest.mark.vm, pytest.mark.slow]
EVENT = "/sys/kernel/tracing/events/sched/sched_process_exec/enable"
PROGRAM = """
sdt:sched::sched_process_exec /stringof(args[0]->comm) == "reads"/ { @["reads"] = count(); }
tick-100ms { printf("begun\\n"); }
"""
RUNS = 20


@pytest.fixture(scope="module")
def vm(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AttachGuest]:
    with attach_guest("pc", prepared, reads, tmp_path_factory.mktemp("attach")) as found:
        found.run(
            "mkdir -p /sys; mount -t sysfs none /sys; mount -t tracefs none /sys/kernel/tracing"
        )
        found.run("dmesg -c > /dev/null")
        yield found


def traced(vm: AttachGuest) -> Running:
    """Start a trace and wait until its probes are planted."""
    run = Running(
        "--attach", str(vm.pid), "--kernel", str(vm.debug), "-q", "-n", PROGRAM, boots=False
    )
    run.until(lambda r: "begun" in r.out)
    return run


def work(vm: AttachGuest) -> None:
    vm.run(f"for n in $(seq {RUNS}); do reads 1; done")


def own_count(vm: AttachGuest) -> int:
    """Return how many of the runs of work() the guest's own event counts."""
    vm.run(f"echo > /sys/kernel/tracing/trace; echo 1 > {EVENT}")
    work(vm)
    vm.run(f"echo 0 > {EVENT}")
    return int(vm.run("grep -c 'sched_process_exec: filename=.*reads' /sys/kernel/tracing/trace"))


def complaints(vm: AttachGuest) -> str:
    return vm.run("dmesg | grep -iE 'bug|warn|oops|jump' | head")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("on", [False, True])
def test_the_guest_uses_the_same_tracepoint(vm: AttachGuest, end: int, on: bool) -> None:
    """The guest turns its event on and off, before and while kinst is there, and while it ends."""
    if on:
        vm.run(f"echo 1 > {EVENT}")
    run = traced(vm)
    work(vm)
    assert own_count(vm) == RUNS
    work(vm)
    vm.run(f"echo 1 > {EVENT}")
    run.stop(end)
    if end == signal.SIGINT:
        assert counts(run.result().good().out)["reads",] == 3 * RUNS
    wait_undone(run.mark)
    vm.run(f"echo 0 > {EVENT}")
    assert own_count(vm) == RUNS
    run = traced(vm)
    work(vm)
    run.stop()
    assert counts(run.result().good().out)["reads",] == RUNS
    assert own_count(vm) == RUNS and not complaints(vm)
