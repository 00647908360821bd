"""The command with standard files that are closed, full or gone, and signals before a trace."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

FOLDER = Path(sys.executable).parent
ONE = ["-n", "BEGIN { trace(1); exit(0); }"]


def closing(command: Sequence[str], closed: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a shell's redirections, as in ">&-"."""
    line = ["sh", "-c", f'"$@" {closed}', "sh", str(FOLDER / command[0]), *command[1:]]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("command", [["kinst", *ONE], ["kinst", "-V"], ["inlinecall", "--help"]])
@pytest.mark.parametrize(
    ("closed", "why"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
)
def test_output_that_cannot_be_written(command: list[str], closed: str, why: str) -> None:
    """Like write errors of the C library: one line, and status 1."""
    done = closing(command, closed)
    assert done.returncode == 1, done
    last = done.stderr.splitlines()[-1]
    assert last == f"{command[0]}: failed to write to standard output: {why}", done


def test_a_full_file() -> None:
    done = closing(["kinst", "-o", "/dev/full", *ONE], "")
    assert done.returncode == 1
    assert done.stderr.endswith("kinst: failed to write to /dev/full: No space left on device\n")


def test_without_stderr_messages_are_lost() -> None:
    done = closing(["kinst", *ONE], "2>&-")
    assert done.returncode == 0, done
    assert "matched" not in done.stdout
    assert ":BEGIN" in done.stdout


def test_without_stdin() -> None:
    assert closing(["kinst", *ONE], "<&-").returncode == 0
    done = closing(["kinst", "-s", "-"], "<&-")
    assert done.returncode == 1
    assert done.stderr.startswith("kinst: failed to compile: <stdin>:1:1: empty D program"), done


def test_a_program_from_stdin_behind_other_options() -> None:
    done = closing(["kinst", "-qs", "-"], "<<'E'\nBEGIN { printf(\"read\"); exit(3); }\nE\n")
    assert (done.returncode, done.stdout.strip()) == (3, "read"), done


def test_a_reader_that_has_gone() -> None:
    """kinst ends like other commands, by SIGPIPE."""
    command = [str(FOLDER / "kinst"), "-qn", 'tick-1000hz { printf("line\\n"); }']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline() == b"line\n"
        run.stdout.close()
        assert run.wait(300) == -signal.SIGPIPE
        assert run.stderr.read() == b""


def write_end(fifo: Path, run: subprocess.Popen[str]) -> int:
    """Open a FIFO's end for writing, once another process has opened the other."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:  # no process reads it yet
            assert error.errno == errno.ENXIO and run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_trace_ends_at_once(tmp_path: Path, number: int) -> None:
    """No trace has begun that could be ended in order; a shell sees the signal."""
    fifo = tmp_path / "script"
    os.mkfifo(fifo)
    command = [str(FOLDER / "kinst"), "-C", "-D", "X", "-I", str(tmp_path), "-s", "script.d"]
    (tmp_path / "script.d").write_text('#include "script"\n')
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        end = write_end(fifo, run)  # cpp has come to it: kinst waits for cpp, which waits for us
        run.send_signal(number)
        assert run.wait(300) == -number
        os.close(end)
        assert run.stderr.read() == "kinst: interrupted\n"
