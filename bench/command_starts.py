"""Measure how long commands take that should answer at once, against bars: help, a wrong command
line, errors in a program, BEGIN, and the first record of a guest that starts from a saved state.

Wall time is by this benchmark's clock, from before the process is made. CPU time is kinst's own and
QEMU's, until the process has ended, or until the first byte of the first record has arrived. The
commands take turns, so that other work on the host disturbs all of them alike. Bytecode of kinst is
there, as after an installation.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kinst import KinstError

KINST = Path(sys.executable).with_name("kinst")
SECONDS = 120
_FIRST = 'kinst::vfs_read:0 { printf("%d\\n", timestamp); }'


@dataclass(frozen=True, slots=True)
class Command:
    """A command whose start is measured.

    Attributes:
        name: what the table calls it.
        words: its command line, without the program's name.
        bar: the most wall seconds, and CPU seconds, that it may take; 0 for no bar.
        status: its exit status.
        first: whether it is measured until the first byte of its output, instead of its end.
    """

    name: str
    words: tuple[str, ...]
    bar: float
    status: int = 0
    first: bool = False


COMMANDS = (
    Command("--help", ("--help",), 0.15),
    Command("wrong option", ("--nosuch",), 0.15, status=2),
    Command("no argument", ("-n",), 0.15, status=2),
    Command("D syntax error", ("-n", "BEGIN { x = ; }"), 0.4, status=1),
    Command("D unknown name", ("-n", "kinst::vfs_read:0 { x = nosuch; }"), 0.4, status=1),
    Command("no such function", ("-n", "kinst::vfs_reed:0", "-c", "true"), 0, status=1),
    Command("BEGIN", ("-n", "BEGIN { exit(0); }"), 0.5),
    Command("first record", ("-q", "-n", _FIRST, "-c", "wc -l /etc/passwd >/dev/null"), 0.8,
            first=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds that one run of a command took.

    Attributes:
        wall: wall time.
        own: CPU time of kinst's process.
        qemu: CPU time of QEMU.
    """

    wall: float
    own: float
    qemu: float

    @property
    def cpu(self) -> float:
        return self.own + self.qemu


def _cpu_time(process: int) -> float:
    """Return the CPU seconds of another process. Source: clock_getcpuclockid(3), whose clock in
    Linux is ~process << 3 | CPUCLOCK_SCHED (include/linux/posix-timers.h)."""
    return time.clock_gettime(~process << 3 | 2)


def _children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def run_once(command: Command) -> Took:
    """Run a command, and return how long it took. Raises KinstError if its exit status is wrong, or
    if it prints nothing and its first output is to be measured."""
    began = time.monotonic()
    with subprocess.Popen(
        [str(KINST), *command.words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        took = None
        if command.first:
            if not process.stdout.read(1):
                raise KinstError(f"{command.name}: {process.stderr.read().decode()}")
            wall, own = time.monotonic() - began, _cpu_time(process.pid)
            took = Took(wall, own, sum(map(_cpu_time, _children(process.pid))))
        process.stdout.read()
        said = process.stderr.read().decode()
        # wait4(2) tells the CPU time of this process and of the QEMU that it has waited for.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != command.status:
            raise KinstError(f"{command.name} ended with {process.returncode}: {said}")
        if took is None:
            took = Took(time.monotonic() - began, used.ru_utime + used.ru_stime, 0)
    return took


def run_commands(runs: int) -> dict[Command, list[Took]]:
    """Return the times of several runs of each command, after a run that is not counted."""
    found: dict[Command, list[Took]] = {command: [] for command in COMMANDS}
    for turn in range(runs + 1):
        for command, times in found.items():
            took = run_once(command)
            if turn:
                times.append(took)
    return found


def show_commands(console: Console, found: Mapping[Command, Sequence[Took]]) -> None:
    """Print the medians of each command, and a line for each bar."""
    runs = len(next(iter(found.values())))
    table = Table(title=f"seconds of commands, medians of {runs}")
    for column in ("", "wall", "CPU of kinst", "CPU of QEMU", "CPU", "least CPU", "bar"):
        table.add_column(column, justify="right" if column else "left")
    verdicts = []
    for command, times in found.items():
        rows = [(one.wall, one.own, one.qemu, one.cpu) for one in times]
        wall, own, qemu, cpu = map(statistics.median, zip(*rows, strict=True))
        least = min(one.cpu for one in times)
        bar = f"{command.bar:g}" if command.bar else ""
        figures = [f"{value:.2f}" for value in (wall, own, qemu, cpu, least)]
        table.add_row(command.name, *figures, bar)
        for what, seconds in (("wall", wall), ("CPU", cpu)) if command.bar else ():
            verdict = "met   " if seconds <= command.bar else "MISSED"
            verdicts.append(f"{verdict} {command.name} in {bar} s, {what}: {seconds:.2f} s")
    console.print(table)
    print("\n".join(verdicts))
