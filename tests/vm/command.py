"""Runs of the kinst command as a user starts it, and the processes and files that they leave.

Every run has its own mark in its environment, by which its QEMU is found in /proc.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "KINST_TEST_MARK"
KINST = Path(sys.executable).with_name("kinst")
# Each site planted by itself, not in a run.
ALONE = ("-x", "plant=no-chain")
# Long enough for a shared machine: only a hang takes longer.
SECONDS = 600.0
TAKEN_DOWN = 60.0  # seconds, on a busy host
# About one guest in some hundred hangs or dies during boot in QEMU, on some hosts the first one
# hangs under KVM, and on a busy host a saved state may not be loaded in time.  No test checks
# kinst's messages about that, except those of tests/machines/vm.
_AGAIN = re.compile(
    r"^kinst: (?:the guest hung during boot; restarting it"
    r"|the guest died of a stale breakpoint in QEMU; restarting it"
    r"|the saved state of the guest is replaced: .*"
    r"|under KVM, .*; starting the guest again under TCG)\n",
    re.M,
)
# dmesg -r puts <priority> before each line: facility * 8 + level; 4 is warning, 0 the worst.
_LOGGED = re.compile(r"^<(\d+)>(.*)$", re.M)
# Bytes, disassembly, the way or reason, and the source line if known.
_BITS = re.compile(r"^([0-9a-f]{2}(?: [0-9a-f]{2})*) +(.*?) {2,}(\S.*?)(?: {2,}\S+:\d+)?$")


@dataclass(frozen=True)
class Result:
    """Outcome of a run.

    Attributes:
        status: exit status.
        out: text that kinst wrote with -o.
        guest: output of the guest's command.
        err: messages on stderr.
    """

    status: int
    out: str
    guest: str
    err: str

    def good(self) -> Result:
        assert self.status == 0, self
        return self


class Running:
    """A running kinst process."""

    def __init__(
        self,
        *arguments: str,
        append: str = "",
        copy: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        boots: bool = True,
    ) -> None:
        """Start kinst; `boots` adds the arguments for a guest."""
        self.mark = uuid.uuid4().hex
        self._folder = tempfile.TemporaryDirectory(prefix="kinst-e2e-")
        here = Path(self._folder.name)
        self._out, self._guest, self._err = here / "out", here / "guest", here / "err"
        command = [str(KINST), "-o", str(self._out), *arguments]
        if boots:
            command += ["--append", append] if append else []
            command += [word for path in copy for word in ("--copy", str(path))]
        with self._guest.open("wb") as guest, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=guest,
                stderr=err,
                env={**(os.environ if env is None else env), MARK: self.mark},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def so_far(self) -> Result:
        return Result(-1, _text(self._out), _text(self._guest), _text(self._err))

    def until(self, true: Callable[[Result], object], seconds: float = SECONDS) -> Result:
        """Wait until the output so far fulfils a condition."""
        end = time.monotonic() + seconds
        while True:
            over = self.process.poll() is not None
            if true(found := self.so_far()):
                return found
            assert not over, (self.process.returncode, found)
            assert time.monotonic() < end, found
            time.sleep(0.02)

    def result(self, seconds: float = SECONDS) -> Result:
        """Wait until kinst ends, and check that its QEMU has ended.

        If a signal ended kinst, the kernel kills QEMU too, which may take a moment.
        """
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"not over in {seconds} s: {self.so_far()}") from None
        end = time.monotonic() + (TAKEN_DOWN if status < 0 else 0.0)
        while left := marked(self.mark):
            assert time.monotonic() < end, f"QEMU outlived kinst: {left}"
            time.sleep(0.02)
        so_far = self.so_far()
        self._folder.cleanup()
        return Result(status, so_far.out, so_far.guest, _AGAIN.sub("", so_far.err))

    def stop(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)


def _text(path: Path) -> str:
    return path.read_text(errors="surrogateescape") if path.exists() else ""


def kinst(
    *arguments: str,
    append: str = "",
    copy: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    boots: bool = True,
    seconds: float = SECONDS,
) -> Result:
    """Run kinst to its end."""
    return Running(*arguments, append=append, copy=copy, env=env, boots=boots).result(seconds)


def ran(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of kinst to its end, and check its exit status."""
    try:
        done = subprocess.run([KINST, *words], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        said = late.stdout, late.stderr
        raise AssertionError(f"not over in {SECONDS} s: {words}: {said}") from None
    assert done.returncode == status, done
    return done


def marked(mark: str) -> list[int]:
    """Return the QEMU processes with this mark in their environment or command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                about = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended meanwhile
            if words[0].rpartition(b"/")[2].startswith(b"qemu-system") and any(
                mark.encode() in word for word in (*words, *about)
            ):
                found.append(int(folder.name))
    return found


def counts(out: str) -> dict[tuple[str, ...], int]:
    """Return the rows of printed aggregations with plain numbers, by key."""
    rows = [line.split() for line in out.splitlines()]
    return {tuple(row[:-1]): int(row[-1]) for row in rows if row and row[-1].lstrip("-").isdigit()}


@dataclass(frozen=True)
class Row:
    """One instruction in the output of -l -v.

    Attributes:
        way: jump, trap, stop, or "refused" with the reason.
    """

    function: str
    offset: int
    code: bytes
    text: str
    way: str

    @property
    def name(self) -> str:
        return f"kinst::{self.function}:{self.offset}"

    @property
    def after(self) -> int:
        return self.offset + len(self.code)


def listed(out: str) -> list[Row]:
    """Return the instructions of kinst probes in the output of -l -v."""
    rows, lines = [], out.splitlines()
    for above, below in itertools.pairwise(lines):
        if below.startswith("\t") and (found := _BITS.match(below.strip())):
            _, provider, _, function, name = above.split()
            if provider != "kinst":
                continue
            code, text, way = found.groups()
            rows.append(Row(function, int(name), bytes.fromhex(code), text.strip(), way))
    return rows


def list_functions(*functions: str) -> dict[str, list[Row]]:
    """Return every instruction of some functions by address, each with the way of planting it by
    itself.

    Boots a guest.
    """
    words = [word for f in functions for word in ("-n", f"kinst::{f}:")]
    found: dict[str, list[Row]] = {f: [] for f in functions}
    for row in listed(kinst("-l", "-v", *ALONE, *words).good().out):
        found[row.function].append(row)
    return found


def guest_script(folder: Path, name: str, text: str) -> Path:
    """Return a shell script that --copy puts into the guest."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# Messages of a guest whose host is too busy to run it in time; they have nothing to do with
# tracing.  After the kernel has found its clock too late, it says why in lines that are indented
# (kernel/time/clocksource.c), and does without the CPU's counter (kernel/sched/clock.c).
_LATE = re.compile(
    r"hrtimer: interrupt took \d+ ns|clocksource: .*watchdog.*|clocksource: {8,}\S.*"
    r"|TSC found unstable after boot|sched: RT throttling activated"
)


def warnings(log: str) -> list[str]:
    """Return the lines of level warning or worse, without times."""
    return [
        re.sub(r"^\[ *[\d.]+\] ", "", text)
        for priority, text in _LOGGED.findall(log)
        if int(priority) % 8 <= 4 and not _LATE.search(text)
    ]
