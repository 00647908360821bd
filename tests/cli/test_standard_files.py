"""The commands' output is written completely, whatever environment Python was started in."""

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
