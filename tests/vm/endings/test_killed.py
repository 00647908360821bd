"""kill -9 of kinst at random moments: no process or file remains, and the next run works.

kinst is started with its own empty /tmp and /dev/shm, in a mount namespace (unshare(1)): files in
them after it was killed are files that it left, whatever else runs on this machine.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.host_processes import fields
from tests.vm.command import KINST, MARK, SECONDS, counts, kinst, marked

pytestmark = pytest.mark.vm

FOLDERS = ("/tmp", "/dev/shm")
NEW_MOUNTS = " && ".join(f"mount -t tmpfs e2e {folder}" for folder in FOLDERS)
HIDDEN = ROOT.is_relative_to("/tmp")
if HIDDEN:
    # A checkout below /tmp is mounted back at its place.
    place = shlex.quote(str(ROOT))
    NEW_MOUNTS = (
        f"mount --bind {place} /mnt && {NEW_MOUNTS} && mkdir -p {place} &&"
        f" mount --bind /mnt {place}"
    )
KNOWN = {ROOT.relative_to("/tmp").parts[0]} if HIDDEN else set()
# Without root: a user namespace, in which mounting is allowed.
UNSHARE = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-r", "-m"]
SEED = 20261128
DYING = 120.0  # seconds that a busy machine may take to end killed processes


def children(pid: int) -> list[int]:
    """Return direct children of every thread of a process; none when it is gone."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return found


def runs(pid: int, began: str) -> bool:
    """Return whether the process with this start time still runs; one that waits to be reaped does
    not."""
    found = fields(pid)
    return bool(found) and found[0] not in "ZX" and found[19] == began


@dataclass
class Isolated:
    """A running kinst with its own folders.

    Attributes:
        mark: in its QEMU's command line.
    """

    process: subprocess.Popen[bytes]
    mark: str
    folders: list[int]

    def left(self) -> list[str]:
        return [n for folder in self.folders for n in os.listdir(folder) if n not in KNOWN]

    def close(self) -> None:
        for folder in self.folders:
            os.close(folder)


def start(arguments: list[str]) -> Isolated:
    mark = uuid.uuid4().hex
    words = shlex.join([str(KINST), *arguments])
    process = subprocess.Popen(
        [*UNSHARE, "sh", "-c", f"{NEW_MOUNTS} && echo mounted && exec {words}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, MARK: mark},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"mounted\n"
    # These open descriptors keep the mounts after the process has ended.
    folders = [os.open(f"/proc/{process.pid}/root{f}", os.O_RDONLY) for f in FOLDERS]
    return Isolated(process, mark, folders)


def hold(one: Isolated) -> None:
    """Stop it, so that it neither starts nor ends a QEMU while its children are listed.

    It may have ended before.
    """
    one.process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + DYING
    while (state := fields(one.process.pid)) and state[0] not in "TZX":
        assert time.monotonic() < end, state
        time.sleep(0.001)


def wait_until_gone(began: dict[int, str]) -> list[int]:
    end = time.monotonic() + DYING
    while (left := [p for p, b in began.items() if runs(p, b)]) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def wait_for_guest(one: Isolated) -> None:
    end = time.monotonic() + SECONDS
    while not marked(one.mark):
        assert time.monotonic() < end
        if one.process.poll() is not None:
            pytest.fail(f"it ended: {one.process.communicate()[0]!r}")
        time.sleep(0.02)


@pytest.mark.parametrize("times", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_moments(read_function: str, reads: Path, times: int) -> None:
    """Kill half of the runs at any moment, and half when there is a guest, whose command would run
    for hours."""
    program = f"kinst::{read_function}:, kinst::vfs_read: {{ @[probename] = count(); }}"
    arguments = ["-q", "-n", program, "--copy", str(reads), "-c"]
    whole = start([*arguments, "reads 10000"])
    began = time.monotonic()
    text, _ = whole.process.communicate(timeout=SECONDS)
    span = time.monotonic() - began
    assert whole.process.returncode == 0, text
    assert whole.left() == []
    whole.close()

    seed = random.SystemRandom().randrange(1 << 32) if os.environ.get("KINST_RANDOM") else SEED
    seed = int(os.environ.get("KINST_SEED") or seed)
    print(f"seed {seed}, one run takes {span:.2f} s")
    chance = random.Random(seed)
    for turn in range(times):
        booted = turn % 2
        one = start([*arguments, "reads 100000000000" if booted else "reads 10000"])
        if booted:
            wait_for_guest(one)
        # One moment in each part of the run, so that the moments cover all of it.
        moment = span * (turn + chance.random()) / times
        time.sleep(moment)
        hold(one)
        offspring = {p: fields(p)[19] for p in children(one.process.pid) if fields(p)}
        guests = marked(one.mark)
        assert guests or not booted, (seed, moment)
        assert set(guests) <= set(offspring), "QEMU is a child of kinst"
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()
        assert wait_until_gone(offspring) == [], (seed, moment)
        assert marked(one.mark) == [], (seed, moment)
        assert one.left() == [], (seed, moment)
        one.close()

    program = f"kinst::{read_function}:0 {{ @ = count(); }}"
    done = kinst("-q", "-n", program, "-c", "reads 1234", copy=[reads]).good()
    assert counts(done.out) == {(): 1234}
