"""kinst on a virtual machine that it did not start: exact counts, and nothing left."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from kinst.machines.attach.monitor import Monitor
from tests.vm.attach.attach_guest import AttachGuest, attach_guest, guardians, wait_undone
from tests.vm.command import Running, counts, kinst, listed

pytestmark = pytest.mark.vm
READS = 'kinst::vfs_read:0 /execname == "reads"/ { @[execname] = count(); }'
BEGUN = 'tick-100ms { printf("begun\\n"); }'  # the first is after planting
CLOSING_SECONDS = 60.0


@pytest.fixture(scope="module")
def vm(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AttachGuest]:
    folder = tmp_path_factory.mktemp("attach")
    with attach_guest("pc", prepared, reads, folder) as found:
        yield found


def options(vm: AttachGuest, *more: str) -> list[str]:
    return ["--attach", str(vm.pid), "--kernel", str(vm.debug), "-q", *more]


def begun(vm: AttachGuest, way: str, program: str = READS) -> Running:
    """Start a trace that prints a line once its probes are planted."""
    forced = () if way == "auto" else ("-x", f"plant={way}")
    return Running(*options(vm, *forced, "-n", program, "-n", BEGUN), boots=False)


def traced(vm: AttachGuest, way: str, program: str = READS) -> Running:
    """Start a trace and wait until its probes are planted."""
    run = begun(vm, way, program)
    run.until(lambda r: "begun" in r.out)
    return run


def kill_with_its_guardian(run: Running) -> None:
    both = guardians(run.mark)
    assert len(both) == 2, both
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither sees that the other is gone
        for pid in both:
            os.kill(pid, number)
    run.process.wait()


def mappings(vm: AttachGuest) -> int:
    return len(Path(f"/proc/{vm.pid}/maps").read_text().splitlines())


def open_files(vm: AttachGuest) -> list[str]:
    """Return what each file descriptor of QEMU leads to."""
    found = []
    for one in Path(f"/proc/{vm.pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            found.append(os.readlink(one))
    return sorted(found)


def wait_no_more_files(vm: AttachGuest, before: list[str]) -> None:
    """Wait until QEMU has no more file descriptors than before: on a busy host it closes that of
    the stub's client some time after kinst has ended."""
    end = time.monotonic() + CLOSING_SECONDS
    while len(now := open_files(vm)) > len(before):
        more = Counter(now) - Counter(before)
        assert time.monotonic() < end, f"QEMU has more open: {more}"
        time.sleep(0.05)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "calls"),
    [("jump", 200_000), pytest.param("trap", 200_000, marks=SLOW),
     pytest.param("stop", 50, marks=SLOW)],
)  # fmt: skip
def test_counts_are_exact_and_everything_is_given_back(
    vm: AttachGuest, way: str, calls: int
) -> None:
    files = open_files(vm)
    run = traced(vm, way)
    vm.run(f"reads {calls}")
    run.stop()
    done = run.result().good()
    assert counts(done.out)["reads",] == calls
    wait_no_more_files(vm, files)
    assert not guardians(run.mark)


def test_system_calls_are_counted(vm: AttachGuest) -> None:
    """Entries and returns of one system call, among the returns of all."""
    calls = 3000
    program = """syscall::read:entry, syscall:vmlinux::return
        /execname == "reads"/ { @[probefunc, probename] = count(); }"""
    run = traced(vm, "auto", program)
    vm.run(f"reads {calls}")
    run.stop()
    done = run.result()
    # On a busy host, one of the guest's threads may not have left the probes' code in time: told.
    assert done.status == 0 or "a thread of the guest is still in a probe's code" in done.err, done
    found = counts(done.out)
    assert found["read", "entry"] == found["read", "return"] == calls
    assert found["execve", "return"] == 1


def test_the_vmlinux_is_found_by_the_build_id_in_memory(vm: AttachGuest) -> None:
    done = kinst("--attach", str(vm.pid), "-l", "-n", "kinst::vfs_read:0", boots=False).good()
    assert f"its vmlinux is {vm.debug}" in done.err
    assert "vfs_read" in done.out


@SLOW
def test_the_guest_has_its_memory_back(vm: AttachGuest) -> None:
    """Several attaches use no more memory than the first, which fills caches: guest and QEMU do
    not leak."""
    first = traced(vm, "jump")
    first.stop()
    first.result().good()
    free, maps = [], []
    for _ in range(3):
        run = traced(vm, "jump")
        during = vm.free()
        run.stop()
        run.result().good()
        free.append(vm.free())
        maps.append(mappings(vm))
        assert free[-1] - during > 32 * 1024, "scratch is the guest's own memory"
    assert max(free) - min(free) < 4 * 1024, free
    assert maps[0] == maps[-1], maps


@pytest.mark.parametrize(
    "way", [pytest.param("jump", marks=SLOW), pytest.param("trap", marks=SLOW), "stop"]
)
def test_killed_without_a_word(vm: AttachGuest, way: str) -> None:
    run = traced(vm, way)
    vm.run("reads 20")
    run.stop(signal.SIGKILL)
    vm.run("reads 20")
    wait_undone(run.mark)
    run = traced(vm, "jump")
    vm.run("reads 30")
    run.stop()
    assert counts(run.result().good().out)["reads",] == 30


@pytest.mark.parametrize("way", ["jump", pytest.param("trap", marks=SLOW)])
def test_killed_together_with_its_guardian(vm: AttachGuest, way: str) -> None:
    """The next start restores the guest, as a listing and the guest's free memory show."""
    listing = options(vm, "-l", "-v", "-n", "kinst::vfs_read:0")
    before, free = listed(kinst(*listing, boots=False).good().out), vm.free()
    kill_with_its_guardian(traced(vm, way))
    vm.run("reads 20")
    assert (now := vm.free()) < free - 32 * 1024, f"not allocated any more: {free}, {now}"
    done = kinst(*listing, boots=False).good()
    assert "an earlier kinst was killed with its guardian" in done.err
    assert "code were restored" in done.err and "MB of memory were freed" in done.err
    assert listed(done.out) == before
    assert abs((now := vm.free()) - free) < 4 * 1024, (free, now)
    run = traced(vm, "jump")
    vm.run("reads 30")
    run.stop()
    again = run.result().good()
    assert counts(again.out)["reads",] == 30 and "earlier kinst" not in again.err


@SLOW
def test_two_at_once(vm: AttachGuest) -> None:
    first = traced(vm, "jump")
    second = kinst(*options(vm, "-n", READS), boots=False)
    assert second.status == 1
    assert "another kinst" in second.err and len(second.err.strip().splitlines()) == 1
    vm.run("reads 10")
    first.stop()
    assert counts(first.result().good().out)["reads",] == 10


def test_what_is_no_machine(vm: AttachGuest) -> None:
    program = ["--kernel", str(vm.debug), "-n", READS]
    for named, said in (
        (str(os.getpid()), "not QEMU"),
        ("4194305", "no process"),
        ("/nowhere/qmp", "no QMP socket"),
    ):
        done = kinst("--attach", named, *program, boots=False)
        assert done.status == 1
        assert said in done.err and len(done.err.strip().splitlines()) == 1, done.err


@SLOW
def test_a_monitor_is_enough(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """kinst adds a stub over QMP and removes it in the end, even after kill -9; a paused guest is
    left alone."""
    folder = tmp_path_factory.mktemp("monitor")
    line = ["-qmp", f"unix:{folder}/qmp,server=on,wait=off"]
    with attach_guest("q35", prepared, reads, folder, line) as vm:
        options = ["--attach", str(vm.monitor), "--kernel", str(vm.debug), "-q", "-n", READS]
        for number in (signal.SIGINT, signal.SIGKILL, signal.SIGINT):
            run = Running(*options, "-n", BEGUN, boots=False)
            run.until(lambda r: "begun" in r.out)
            vm.run("reads 1000")
            run.stop(number)
            if number == signal.SIGINT:
                assert counts(run.result().good().out)["reads",] == 1000
            wait_undone(run.mark)
            with Monitor(str(vm.monitor)) as monitor:
                assert monitor.stub() == ("", False)
        with Monitor(str(vm.monitor)) as monitor:
            monitor.execute("stop")
        for named in (str(vm.monitor), str(vm.pid)):
            done = kinst("--attach", named, *options[2:], boots=False)
            assert done.status == 1
            assert "paused" in done.err and len(done.err.strip().splitlines()) == 1
        with Monitor(str(vm.monitor)) as monitor:
            assert monitor.status() == "paused"
            monitor.execute("cont")
        vm.run("reads 10")


@SLOW
@pytest.mark.parametrize("isa", ["arm64", "riscv64"])
def test_other_instruction_sets(
    isa: str,
    program_for: Callable[[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kernel = prepared_kernel(isa)
    if kernel is None:
        pytest.fail(f"no {isa} kernel is there: run `make setup-all`")
    folder = tmp_path_factory.mktemp("other")
    with attach_guest(isa, kernel, program_for("reads", isa), folder) as vm:
        for way, calls in (("auto", 100_000), ("trap", 100_000), ("stop", 30)):
            run = traced(vm, way)
            vm.run(f"reads {calls}")
            run.stop()
            assert counts(run.result().good().out)["reads",] == calls
        run = traced(vm, "auto")
        run.stop(signal.SIGKILL)
        vm.run("reads 20")
