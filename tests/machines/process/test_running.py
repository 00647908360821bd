"""A process that runs already: it is planted while it runs, counted, and restored."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import kinst
from kinst.cli import command
from kinst.core.errors import TargetError
from kinst.image.elf import open_elf
from tests.machines.process.stepped import COUNT, built, needs_programs

pytestmark = needs_programs
SECONDS = 60.0
SHARED = 3  # ET_DYN: kind of a position-independent program's file


def answer(rounds: int) -> int:
    """Return what the program answers."""
    value = 1
    for _ in range(rounds):
        value = (value * 2654435761 & 0xFFFFFFFF) ^ value >> 7
    return value


@dataclass
class Running:
    """The program of tests/programs/answers.c, which runs."""

    process: subprocess.Popen[str]
    pid: int
    path: Path

    def ask(self, rounds: int) -> None:
        """Let the program do rounds, and check its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{answer(rounds)}\n"

    def wait_for_read(self) -> None:
        """Wait until the program waits for its next line in read(2)."""
        deadline = time.monotonic() + SECONDS
        while not Path(f"/proc/{self.pid}/syscall").read_text().startswith("0 0x0 "):
            assert time.monotonic() < deadline, "the program does not read"
            time.sleep(0.001)

    def spin(self, rounds: int) -> None:
        """Wait until the program's spinning thread has done this many more rounds, which it counts
        itself, 20,000 at a time."""
        steps, deadline = self.address("steps"), time.monotonic() + SECONDS
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:

            def done() -> int:
                memory.seek(steps)
                return int.from_bytes(memory.read(8), "little")

            begun = done()
            while done() - begun < rounds:
                assert time.monotonic() < deadline, "the thread does not spin"
                time.sleep(0.001)

    def end(self) -> None:
        """Let the program end, and check its own check of what its thread has computed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.read() == "status 5\n"

    @property
    def state(self) -> str:
        """The state of the program's first thread in /proc/PID/stat: "t" if kinst has stopped it,
        "T" if it is a stopped job."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    @property
    def base(self) -> int:
        """Running address minus linked address."""
        if open_elf(self.path).kind != SHARED:
            return 0
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return min(int(line.split("-")[0], 16) for line in maps if line.endswith(str(self.path)))

    def text(self) -> tuple[bytes, bytes]:
        """Return the program's code in its memory, and in its file."""
        elf = open_elf(self.path)
        section = next(s for s in elf.sections if s.name == ".text")
        with open(f"/proc/{self.pid}/mem", "rb") as memory:
            memory.seek(self.base + section.address)
            return memory.read(section.size), elf.data(section)

    def address(self, name: str) -> int:
        """Return the running address of a symbol."""
        names = subprocess.run(["nm", self.path], capture_output=True, text=True, check=True).stdout
        (row,) = (row for row in names.splitlines() if row.endswith(f" {name}"))
        return self.base + int(row.split()[0], 16)

    def codes_of_traces(self) -> set[int]:
        """Return the address of some code in the trampolines of each trace that is still mapped."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        rows = [line.split() for line in maps if "/memfd:scratch" in line]
        found = set()
        for low, high in (row[0].split("-") for row in rows if "x" in row[1]):
            start = int(low, 16)
            with open(f"/proc/{self.pid}/mem", "rb") as memory:
                memory.seek(start)
                code = memory.read(int(high, 16) - start)
            found.add(start + next(k for k, byte in enumerate(code) if byte))
        return found

    def write(self, address: int, data: bytes) -> None:
        """Write into the program's memory, read-only memory too."""
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(data)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Running]:
    path = built(folder, "answers.c", "-pthread", *options)
    # A shell is its parent: no waitpid(2) of this process, which traces it, may take its stops.
    process = subprocess.Popen(
        ["sh", "-c", f"{path}; echo status $?"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        encoding="ascii",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield Running(process, pid, path)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def traced(
    one: Running,
    during: Callable[[], None],
    program: str = COUNT,
    *,
    stops: bool = True,
    runs: bool = True,
) -> dict[tuple[str, int], int]:
    """Trace the program while during() runs in another thread. Return the hits of each planted
    instruction, by function and offset.

    Args:
        stops: whether the trace ends after during(); if not, it ends with the program.
        runs: whether the program runs, rather than being a stopped job.
    """
    failed: list[BaseException] = []
    with kinst.process(pid=one.pid) as machine:
        trace = machine.trace(program)

        def work() -> None:
            try:
                wait_until_planted(one, runs=runs)
                during()
            except BaseException as error:
                failed.append(error)
            if stops or failed:
                trace.stop()

        thread = threading.Thread(target=work)
        thread.start()
        list(trace.events())
        thread.join()
        (table,) = [found.aggregation.rows for found in trace.aggregations().values()]
        planted = [site for site in trace.sites if not site.reason]
        trace.close()
    if failed:
        raise failed[0]
    keys = [(s.function.name, s.address - s.function.address) for s in planted]
    return {(f, at): int(table.get((f, str(at)), 0)) for f, at in keys}  # type: ignore[call-overload]


def command_during(
    words: list[str],
    during: Callable[[], None],
    *,
    begins: Callable[[], None],
) -> int:
    """Run a command that traces a process; Ctrl-C ends it after during(), which runs in another
    thread. Return its status.

    Args:
        begins: waits until the process is planted.
    """
    failed: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            begins()
            during()
        except BaseException as error:
            failed.append(error)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=work)
    thread.start()
    status = command.main(words)
    over.set()
    thread.join()
    if failed:
        raise failed[0]
    return status


def wait_until_planted(one: Running, *, runs: bool = True) -> None:
    """Wait until a program's code is planted, and it runs if it is no stopped job."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        there, file = one.text()
        if there != file and not (runs and one.state == "t"):
            return
        time.sleep(0.01)
    raise AssertionError("not planted")


# Functions in which threads of a static program sleep, and those that they call most.
SOME = ",".join(f"kinst::{name}:" for name in ("*_round", "main", "*read", "*nanosleep", "spin"))
SOME = f"{SOME} {{ @[probefunc, probename] = count(); }}"


@pytest.mark.parametrize(
    ("options", "program"),
    [
        (("-O2",), COUNT),
        (("-DOWN_CALLS",), COUNT),
        pytest.param(("-static",), SOME, marks=pytest.mark.full),
    ],
)
def test_rounds_of_a_running_process_are_counted(
    options: tuple[str, ...], program: str, tmp_path: Path
) -> None:
    """Three traces of one process, two of which are stopped while it runs."""
    with running(tmp_path, *options) as one:
        one.ask(10)
        for rounds in (1000, 2003):

            def during(n: int = rounds) -> None:
                one.ask(n)
                one.spin(40_000)

            hits = traced(one, during, program)
            found = {n for (function, _), n in hits.items() if function == "answer_round"}
            assert found == {rounds}
            assert sum(n for (name, _), n in hits.items() if name == "spin_round") > 20_000
            there, file = one.text()
            assert there == file
            one.ask(7)

        def last() -> None:
            one.ask(500)
            one.end()

        hits = traced(one, last, program, stops=False)
        assert {n for (name, _), n in hits.items() if name == "answer_round"} == {500}


@pytest.mark.full
def test_a_process_is_traced_again_and_again(tmp_path: Path) -> None:
    """Later traces have room for code and counters near a program at low addresses, although words
    of memory point into the code of each earlier trace, so that all of it stays mapped."""
    with running(tmp_path, "-no-pie", "-DOWN_CALLS") as one:
        words, codes = one.address("stale_words"), set[int]()
        for k, rounds in enumerate(range(100, 110)):
            hits = traced(one, lambda n=rounds: one.ask(n))  # type: ignore[misc]
            found = {n for (function, _), n in hits.items() if function == "answer_round"}
            assert found == {rounds}
            before, codes = codes, one.codes_of_traces()
            (newest,) = codes - before
            assert len(codes) == k + 1
            one.write(words + 8 * k, newest.to_bytes(8, "little"))
        one.end()


def test_a_process_without_free_low_addresses_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "-DFILLS_LOW_ADDRESSES") as one:
        with (
            kinst.process(pid=one.pid) as machine,
            pytest.raises(kinst.KinstError, match=r"no free addresses for counters below 2 GB"),
        ):
            machine.trace(COUNT)
        one.ask(20)
        there, file = one.text()
        assert there == file
        one.end()


def test_a_job_that_is_stopped_stays_stopped(tmp_path: Path) -> None:
    with running(tmp_path) as one:
        os.kill(one.pid, signal.SIGSTOP)

        def go_on() -> None:
            os.kill(one.pid, signal.SIGCONT)
            one.ask(30)

        while one.state != "T":
            time.sleep(0.01)
        with kinst.process(pid=one.pid) as machine:
            machine.start()
        # The signal that stops it again may still be on its way.
        deadline = time.monotonic() + 30
        while one.state != "T":
            assert time.monotonic() < deadline, one.state
            time.sleep(0.01)
        hits = traced(one, go_on, runs=False)
        assert {n for (name, _), n in hits.items() if name == "answer_round"} == {30}
        one.end()


def test_count_of_a_process_by_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    with running(tmp_path) as one:
        words = ["count", "-p", str(one.pid), "-o", str(table)]
        begins = partial(wait_until_planted, one)
        assert command_during(words, lambda: one.spin(40_000), begins=begins) == 0
        rows = {row.split()[-1]: row.split() for row in table.read_text().splitlines()}
        assert int(rows["spin_round"][2].replace(",", "")) > 10_000
        one.ask(20)
        one.end()
    assert not capfd.readouterr().out


def test_a_process_that_another_one_traces_is_refused(tmp_path: Path) -> None:
    script = "import sys; from tests.machines.process.test_running import hold; hold(sys.argv[1])"
    with running(tmp_path) as one:
        holder = subprocess.Popen(
            [sys.executable, "-c", script, str(one.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert holder.stdout is not None and holder.stdout.readline()
            why = "traces it"
            with kinst.process(pid=one.pid) as machine, pytest.raises(TargetError, match=why):
                machine.start()
        finally:
            holder.kill()
            holder.communicate()
        one.ask(20)
        one.end()


def hold(pid: str) -> None:
    """Trace a process until this process ends."""
    with kinst.process(pid=int(pid)) as machine:
        machine.start()
        print("traces", flush=True)
        sys.stdin.read()


def test_other_processes_are_refused(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(TargetError, match="no process"):
        kinst.process(pid=ended.pid)
    with pytest.raises(kinst.KinstError, match="both say which program"):
        kinst.process("ls", pid=1)
    source = tmp_path / "filter.c"
    source.write_text(
        "#include <linux/seccomp.h>\n#include <stdio.h>\n#include <sys/prctl.h>\n"
        "#include <unistd.h>\n"
        "int main(void) { prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);"
        ' write(1, "x", 1); for (;;) read(0, &(char){0}, 1); }\n'
    )
    subprocess.run(["gcc", "-o", tmp_path / "filter", source], check=True)
    process = subprocess.Popen([tmp_path / "filter"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        with (
            kinst.process(pid=process.pid) as machine,
            pytest.raises(TargetError, match="seccomp"),
        ):
            machine.start()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_process_without_memory_is_refused_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as one:
        used = int(Path(f"/proc/{one.pid}/statm").read_text().split()[0]) << 12
        resource.prlimit(one.pid, resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        with (
            kinst.process(pid=one.pid) as machine,
            pytest.raises(TargetError, match="Cannot allocate memory"),
        ):
            machine.trace(COUNT)
        one.ask(20)
        one.end()


def test_code_that_another_tool_has_changed_is_refused(tmp_path: Path) -> None:
    """A debugger has a breakpoint in the program, in a function that does not run."""
    with running(tmp_path) as one:
        at = one.address("never")
        one.write(at, b"\xcc")
        with (
            kinst.process(pid=one.pid) as machine,
            pytest.raises(
                kinst.KinstError, match=rf"differs from its file at {at:#x} \(a debugger"
            ),
        ):
            machine.start()
        one.ask(20)
        changed, file = one.text()
        assert sum(a != b for a, b in zip(changed, file, strict=True)) == 1
        one.end()
