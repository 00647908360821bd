"""Runs of the kinst command itself, as a user starts it, and what they leave behind.

Every run's environment carries a mark of its own, by which its QEMU is found again in /proc.
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
# Each site as it is planted by itself.
ALONE = ("-x", "plant=no-chain")
# The machine may be shared: a run that hangs is one that takes this long.
SECONDS = 600.0
TAKEN_DOWN = 10.0  # seconds
# QEMU leaves one of some hundred guests standing in its boot: what kinst says then is of no test's
# concern (tests/machines/vm/test_machine.py has one of its own).
_AGAIN = re.compile(r"^kinst: the guest hung during boot; restarting it\n", re.M)
# dmesg -r puts <priority> before each line: facility * 8 + level, 4 is warning, 0 the worst.
_LOGGED = re.compile(r"^<(\d+)>(.*)$", re.M)
# Bytes, disassembly, the way or reason, and the source line where it is known.
_BITS = re.compile(r"^([0-9a-f]{2}(?: [0-9a-f]{2})*) +(.*?) {2,}(\S.*?)(?: {2,}\S+:\d+)?$")


@dataclass(frozen=True)
class Result:
    """status: exit status.  out: what kinst wrote with -o.  guest: what the guest's command
    printed.  err: the messages on stderr."""

    status: int
    out: str
    guest: str
    err: str

    def good(self) -> Result:
        assert self.status == 0, self
        return self


class Running:
    """A kinst that was started and not waited for."""

    def __init__(
        self,
        *arguments: str,
        append: str = "",
        copy: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        boots: bool = True,
    ) -> None:
        """boots: it starts a guest, so the arguments about it are added."""
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
        """Wait until what it has written so far fulfils a condition."""
        end = time.monotonic() + seconds
        while True:
            over = self.process.poll() is not None
            if true(found := self.so_far()):
                return found
            assert not over, (self.process.returncode, found)
            assert time.monotonic() < end, found
            time.sleep(0.02)

    def result(self, seconds: float = SECONDS) -> Result:
        """Wait for its end.  There is no QEMU of it any more then; where a signal has ended it, the
        kernel, which kills QEMU with it, may be taking it down."""
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


def marked(mark: str) -> list[int]:
    """QEMUs with this mark in their environment or command line."""
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
    """The rows of printed aggregations with plain numbers, by their keys."""
    rows = [line.split() for line in out.splitlines()]
    return {tuple(row[:-1]): int(row[-1]) for row in rows if row and row[-1].lstrip("-").isdigit()}


@dataclass(frozen=True)
class Row:
    """One instruction as -l -v shows it.  way: jump, trap, stop, or refused: and why."""

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
    """The instructions of kinst probes in the output of -l -v."""
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
    """Every instruction of some functions, in order of address, with the way in which each would be
    planted by itself (boots a guest)."""
    words = [word for f in functions for word in ("-n", f"kinst::{f}:")]
    found: dict[str, list[Row]] = {f: [] for f in functions}
    for row in listed(kinst("-l", "-v", *ALONE, *words).good().out):
        found[row.function].append(row)
    return found


def guest_script(folder: Path, name: str, text: str) -> Path:
    """A shell script to be put into the guest with --copy."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# What a guest says when its host is too busy to run it in time: that is not about tracing.
_LATE = re.compile(r"hrtimer: interrupt took \d+ ns|clocksource: .*watchdog.*")


def warnings(log: str) -> list[str]:
    """The lines of level warning or worse, without their times."""
    return [
        re.sub(r"^\[ *[\d.]+\] ", "", text)
        for priority, text in _LOGGED.findall(log)
        if int(priority) % 8 <= 4 and not _LATE.search(text)
    ]
