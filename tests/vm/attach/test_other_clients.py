"""A guest whose stub has had another client: kinst traces the guest, and leaves it running."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.command import Running, counts

pytestmark = pytest.mark.vm
READS = 'kinst::vfs_read:0 /execname == "reads"/ { @[execname] = count(); }'
BEGUN = 'tick-100ms { printf("begun\\n"); }'
CALLS = 40
GDB_SECONDS = 200.0


@pytest.fixture(params=["7.2", pytest.param("10", marks=pytest.mark.slow)])
def vm(
    request: pytest.FixtureRequest, prepared: Prepared, reads: Path, tmp_path: Path
) -> Iterator[AttachGuest]:
    if request.param == "10":
        request.getfixturevalue("newer_qemu")
    with attach_guest("pc", prepared, reads, tmp_path) as found:
        yield found


def gdb_looks(vm: AttachGuest) -> None:
    commands = [f"target remote {vm.stub}", "info registers rip", "detach"]
    given = [word for one in commands for word in ("-ex", one)]
    command = ["gdb", "-q", "-nx", "-batch", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GDB_SECONDS)
    assert done.returncode == 0 and re.search(r"^rip +0x", done.stdout, re.M), done


def traced(vm: AttachGuest, *way: str) -> None:
    """Count exactly what the guest does, and leave it running."""
    program = ("-n", READS, "-n", BEGUN)
    run = Running(*way, "--kernel", str(vm.debug), "-q", *program, boots=False)
    run.until(lambda r: "begun" in r.out)
    vm.run(f"reads {CALLS}")
    run.stop()
    done = run.result().good()
    assert counts(done.out)["reads",] == CALLS
    vm.run("true")


def test_it_is_traced_exactly_and_runs_on(vm: AttachGuest) -> None:
    attach, stub = ("--attach", str(vm.pid)), ("--gdb", str(vm.stub))
    traced(vm, *attach)  # by a stub that has had no client
    for way in (attach, stub, attach):
        gdb_looks(vm)
        traced(vm, *way)
