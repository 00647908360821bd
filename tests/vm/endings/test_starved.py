"""kinst without enough memory, file descriptors, processes or disk space.

One line reports it, no process or file remains, and the next run works.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm.command import KINST, MARK, marked

pytestmark = [pytest.mark.vm, pytest.mark.slow]
SIZES = 50
SECONDS = 180.0
USER = 54321  # a user who has no other processes
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinst"
TRACE = ("-qn", "kinst::vfs_read: { @ = count(); }", "-c", "ls")
# Messages about a shortage, or about its consequences: each is one line.
NOTE = re.compile(r"kinst: the saved state of the guest is replaced: .*\n")
LINE = re.compile(r"kinst: (?!a defect).*\n|bash: .*\n")


@dataclass(frozen=True)
class Starved:
    """Outcome of a run.

    Attributes:
        status: exit status.
        out, err: its output.
    """

    status: int
    out: str
    err: str

    @property
    def trouble(self) -> str:
        """Return what is wrong with how it ended; "" for nothing."""
        err = NOTE.sub("", self.err)
        if self.status == 0:
            return "" if self.out.strip()[-1:].isdigit() and not err else f"wrong: {self}"
        return "" if self.status > 0 and LINE.fullmatch(err) else f"not one line: {self}"


def run(prefix: Sequence[str], words: Sequence[str] = TRACE) -> Starved:
    """Run kinst under a command that limits a resource."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [*prefix, str(KINST), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        env={**os.environ, MARK: mark},
        check=False,
    )
    end = time.monotonic() + 10
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert not marked(mark), "QEMU outlived kinst"
    out, err = (data.decode(errors="replace") for data in (done.stdout, done.stderr))
    return Starved(done.returncode, out, err)


def spread(low: float, high: float) -> list[int]:
    """Return SIZES limits, each larger than the one before by the same factor."""
    return [round(low * (high / low) ** (k / (SIZES - 1))) for k in range(SIZES)]


def check(prefixes: Sequence[Sequence[str]], words: Sequence[str] = TRACE) -> list[Starved]:
    found = [(prefix, run(prefix, words)) for prefix in prefixes]
    wrong = [f"{shlex.join(prefix)}: {one.trouble}" for prefix, one in found if one.trouble]
    assert not wrong, "\n".join(wrong)
    assert not run(()).trouble
    statuses = [one.status for _, one in found]
    assert any(statuses), "nothing was too little"
    return [one for _, one in found]


def test_address_space() -> None:
    check([("prlimit", f"--as={size}") for size in spread(40e6, 5e9)])


def test_file_descriptors() -> None:
    # Below 5 Python itself does not start.
    check([("prlimit", f"--nofile={size}") for size in range(5, 5 + SIZES)])


@pytest.mark.skipif(os.getuid() != 0, reason="limits of another user are for root to set")
def test_processes() -> None:
    # A user that may read root's files, but not exceed the limit of processes.
    may = "+dac_override,+dac_read_search"
    who = ("setpriv", f"--reuid={USER}", f"--inh-caps={may}", f"--ambient-caps={may}")
    check([("prlimit", f"--nproc={size}", *who) for size in range(1, 1 + SIZES)])


@pytest.mark.skipif(os.getuid() != 0, reason="root mounts")
def test_disk(tmp_path: Path) -> None:
    """The cache and the folder for temporary files are on a disk of so many kB: kinst works
    without files that do not fit."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    sizes = spread(8, 300_000)
    for size in sizes:
        script = f"""
            mount -t tmpfs -o size={size}k none {disk} && mkdir {disk}/kinst &&
            ln -s {shlex.quote(str(CACHE))}/kernels {disk}/kinst/ || exit 99
            XDG_CACHE_HOME={disk} TMPDIR={disk} "$@"; status=$?
            find {disk} -name '*.guest' | wc -l >>{kept}
            exit $status
        """
        done = run(("unshare", "-m", "bash", "-c", script, "-"))
        assert not done.trouble, (size, done)
    # States of guests were saved if there was room, and not otherwise.
    guests = list(map(int, kept.read_text().split()))
    assert len(guests) == len(sizes) and guests == sorted(guests) and {*guests} == {0, 1}


@pytest.mark.skipif(os.getuid() != 0, reason="root mounts")
def test_no_shared_memory_folder() -> None:
    gone = "mount -t tmpfs -o size=4k,ro none /dev/shm && mount -t tmpfs -o size=4k,ro none /tmp"
    done = run(("unshare", "-m", "bash", "-c", f'{gone} && exec "$@"', "-"))
    assert done.status == 0 and not done.trouble, done
