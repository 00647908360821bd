"""The commands' output is written completely, whatever environment Python was started in, and a
signal ends a command as a signal, wherever it arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

LINES = 30_000
WRITER = f"""
import signal, sys
from kinst.cli.guard import standard_files, write
standard_files()
signal.signal(signal.SIGINT, lambda *_: None)
write(sys.stderr, "begun\\n")
for first in range(0, {LINES}, 10_000):
    write(sys.stdout, "".join(f"{{first + k:07}}\\n" for k in range(10_000)))
write(sys.stderr, "over\\n")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_signals_while_a_slow_reader_keeps_a_pipe_full_lose_nothing(unbuffered: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as writer:  # fmt: skip
        assert writer.stdout is not None and writer.stderr is not None
        assert writer.stderr.readline() == b"begun\n"
        taken = []
        for _ in range(20):
            taken.append(os.read(writer.stdout.fileno(), 4096))
            time.sleep(0.01)  # it fills the pipe again, and waits within a write
            writer.send_signal(signal.SIGINT)
        while piece := os.read(writer.stdout.fileno(), 1 << 16):
            taken.append(piece)
        assert writer.stderr.read() == b"over\n"
    assert writer.returncode == 0
    assert b"".join(taken) == b"".join(b"%07d\n" % k for k in range(LINES))


INTERRUPTED = """
import signal, sys
from kinst.cli.guard import Interrupted, guarded, standard_files
standard_files()

class Member:
    def __set_name__(self, owner, name):
        raise {error}

def work():
    class Owner:
        member = Member()
    return 0

{call}
"""


@pytest.mark.parametrize("call", ['sys.exit(guarded(work, "kinst", print))', "work()"])
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Interrupted(signal.SIGTERM)"])
def test_a_signal_while_a_class_is_made(call: str, error: str) -> None:
    """Python 3.11 makes it a RuntimeError; before guarded() runs, Python itself ends with 1."""
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(error=error, call=call)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    name = "kinst" if "guarded" in call else "-c"
    assert ran.stderr == f"{name}: interrupted\n"
    ending = -(signal.SIGTERM if "SIGTERM" in error else signal.SIGINT)
    assert ran.returncode == (ending if "guarded" in call else 1)
