"""kinst on a Debian with systemd, started by a plain QEMU command line.

Counts are exact, and memory, text and page tables are as before.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kinst.kernels.fetch import prepared as prepared_kernel
from tests.vm.attach.attach_guest import AttachGuest, attach_guest, wait_undone
from tests.vm.attach.attach_picture import Photographer
from tests.vm.attach.test_attach import begun, traced
from tests.vm.command import counts
from tests.vm.debian_root import debian_image

pytestmark = [pytest.mark.vm, pytest.mark.slow]
KINDS = {"pc": "amd64", "q35": "amd64", "arm64": "arm64", "riscv64": "riscv64"}
READS = 1_000_000
BUSY = "rounds 100 20; sleep 0.01"
# Number of attaches: the bar is 50, on an idle machine.
ATTACHES = int(os.environ.get("KINST_TEST_ATTACHES", "10"))
KILLS = int(os.environ.get("KINST_TEST_KILLS", "30"))
MOMENTS = ("attaching", "tracing", "unplanting")
EVERY = "kinst::vfs_read: { @ = count(); }"
KILLED = os.environ.get("KINST_TEST_KILLED", "auto trap stop").split()  # ways of planting
LEFT = 1 << 10  # kB by which a guest's memory may differ, because systemd works now and then


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def vm(
    kind: str, program_for: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AttachGuest]:
    isa = KINDS[kind]
    kernel = prepared_kernel(isa)
    if kernel is None:
        pytest.fail(f"no {isa} kernel is there: run `make setup-all`")
    programs = [program_for(name, isa) for name in ("reads", "rounds", "moments")]
    folder = tmp_path_factory.mktemp(kind)
    stub = ["-s"] if _is_free(1234) else []
    with attach_guest(kind, kernel, programs, folder, stub, debian_image(isa)) as found:
        yield found


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture(scope="module")
def photographer(vm: AttachGuest, kind: str) -> Photographer:
    return Photographer(vm, KINDS[kind], 1024)


def used(vm: AttachGuest) -> int:
    """Return the kilobytes in use, without caches, as the guest's kernel reports them."""
    vm.run("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; echo 3 >/proc/sys/vm/drop_caches")
    lines = vm.run("cat /proc/meminfo").splitlines()
    fields = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    # Freed pages wait in lists of each CPU, and the kernel counts those as used.
    listed = re.findall(r"^ +count: +(\d+)", vm.run("cat /proc/zoneinfo"), re.M)
    free = fields["MemFree"] + 4 * sum(map(int, listed))
    return fields["MemTotal"] - free - fields["Cached"] - fields["Buffers"]


def test_a_million_reads_by_jump_and_by_trap(vm: AttachGuest, photographer: Photographer) -> None:
    """The root file system is Debian's, and systemd runs it."""
    assert "systemd" in vm.run("cat /proc/1/comm")
    for way in ("auto", "trap"):
        run = traced(vm, way)
        vm.run(f"reads {READS}", seconds=1800.0)
        run.stop()
        assert counts(run.result().good().out)["reads",] == READS


def test_many_attaches_leave_nothing(vm: AttachGuest, photographer: Photographer) -> None:
    ways = ("auto", "trap")
    for way in ways:  # the first traces fill caches of the kernel
        run = traced(vm, way)
        run.stop()
        run.result().good()
    before, memory = photographer.take(), used(vm)
    for number in range(ATTACHES):
        run = traced(vm, ways[number % 2])
        vm.run("reads 100")
        run.stop()
        assert counts(run.result().good().out)["reads",] == 100
    after, later = photographer.take(), used(vm)
    print(f"{ATTACHES} attaches: {memory} kB in use before, {later} kB after")
    text, tables = before.differences(after)
    assert not text, [hex(at) for at in text[:10]]
    assert not tables, tables[:10]
    assert abs(later - memory) < LEFT, (memory, later)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment(
    vm: AttachGuest, photographer: Photographer, kind: str, moment: str
) -> None:
    """The guest continues within a second, its text is as before, and the next attach works.

    Two programs hit the probes all the time.
    """
    chance = random.Random(kind + moment)
    lasting = {way: _seconds_of_a_trace(vm, way) for way in KILLED}
    before = photographer.text()
    vm.run("touch /tmp/busy")
    for _ in range(2):
        vm.run(f"(setsid sh -c 'while [ -e /tmp/busy ]; do {BUSY}; done' >/dev/null 2>&1 &)")
    waits = []
    for number in range(-(-KILLS // len(MOMENTS))):
        way = KILLED[number % len(KILLED)]
        begins, ends = lasting[way]
        if moment == "attaching":
            run = begun(vm, way)
            at = chance.uniform(0.2, 1.1) * begins
        else:
            run = traced(vm, way, EVERY)
            at = chance.uniform(0.0, 1.0) * (ends if moment == "unplanting" else 0.3)
        if moment == "unplanting":
            run.stop(signal.SIGINT)
        time.sleep(at)
        run.stop(signal.SIGKILL)
        started = time.monotonic()
        vm.run("reads 1", seconds=60.0)
        waits.append((time.monotonic() - started, way, at))
        wait_undone(run.mark)
        now = np.frombuffer(photographer.text(), np.uint8)
        changed = np.flatnonzero(np.frombuffer(before, np.uint8) != now).tolist()
        assert not changed, (way, at, [hex(i) for i in changed[:10]])
    print(kind, moment, lasting, sorted(waits)[-5:], os.getloadavg())
    vm.run("rm /tmp/busy")
    run = traced(vm, "auto")
    vm.run("reads 100")
    run.stop()
    assert counts(run.result().good().out)["reads",] == 100


def _seconds_of_a_trace(vm: AttachGuest, way: str) -> tuple[float, float]:
    """Return the seconds from the start of the command until all is planted, and from its end
    until all is unplanted."""
    for _ in range(2):  # the first fills caches
        started = time.monotonic()
        run = traced(vm, way, EVERY)
        planted = time.monotonic()
        run.stop()
        run.result().good()
    return planted - started, time.monotonic() - planted
