"""A reader that takes 2 KB of kinst's output every 0.3 s, while records come at full speed.

The kernel's text is restored immediately when tracing ends, kinst's memory is bounded, and all
drops are reported.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path

import pytest

from bench.guest import compile_programs
from tests.vm.command import KINST, MARK, marked

pytestmark = pytest.mark.vm

PROGRAM = (  # two clauses, because a drop loses all actions of its clause
    "kinst::vfs_read:0 { @ = count(); }"
    'kinst::vfs_read:0 { printf("%d %s %d\\n", timestamp, execname, pid); }'
)
DROPS, RESTORED = "drops? on CPU", "kernel text is as before"
PIECE, PAUSE = 2048, 0.3  # bytes, seconds
TRACED = 5.0  # seconds
SLOW_STILL = 2.0  # seconds after the text was restored
MOST_MEMORY = 300 << 20  # bytes of kinst's own
SECONDS = 240.0


def own_memory(pid: int) -> int:
    """Return the private bytes of a process: neither the guest's RAM, which is shared, nor
    files."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kilobytes,) = re.findall(r"^RssAnon:\s+(\d+) kB", status, re.M)
    return int(kilobytes) << 10


class SlowReader(threading.Thread):
    """Read pieces of a pipe slowly, until told to read the rest."""

    def __init__(self, pipe: int) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self.hurry = threading.Event()
        self.taken: list[bytes] = []

    def run(self) -> None:
        while piece := os.read(self._pipe, 1 << 20 if self.hurry.is_set() else PIECE):
            self.taken.append(piece)
            self.hurry.wait(PAUSE)


def test_a_reader_that_takes_its_time(tmp_path: Path) -> None:
    (reads,) = compile_programs(["reads"], tmp_path)
    mark, said = uuid.uuid4().hex, tmp_path / "err"
    words = ["-v", "-q", "-n", PROGRAM, "--copy", reads, "-c", "reads 1000000000"]
    with said.open("wb") as err:
        process = subprocess.Popen(
            [str(KINST), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
            env={**os.environ, MARK: mark},
        )  # fmt: skip
    assert process.stdout is not None
    reader = SlowReader(process.stdout.fileno())
    reader.start()
    most = 0

    def watch(seconds: float, until: str = "") -> float:
        """Watch kinst's memory for so long, or until kinst prints what matches `until`; return the
        seconds."""
        nonlocal most
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if until and re.search(until, said.read_text()):
                break
            assert process.poll() is None, said.read_text()
            most = max(most, own_memory(process.pid))
            time.sleep(0.01)
        return time.monotonic() - began

    try:
        watch(SECONDS, DROPS)
        assert re.search(DROPS, said.read_text()), said.read_text()
        watch(TRACED)
        process.send_signal(signal.SIGINT)
        # The reader has not read the waiting output yet: it is some megabytes.
        took = watch(SECONDS, RESTORED)
        assert re.search(RESTORED, said.read_text()), said.read_text()
        watch(SLOW_STILL)
        early = sum(map(len, reader.taken))
        reader.hurry.set()
        assert process.wait(SECONDS) == 0
        reader.join()
    finally:
        process.kill()
        process.wait()
    assert not marked(mark), "QEMU outlived kinst"
    text = b"".join(reader.taken).decode()
    records = len(re.findall(r"^\d+ \S+ \d+$", text, re.M))
    (counted,) = re.findall(r"^\s+(\d+)$", text, re.M)
    dropped = sum(map(int, re.findall(rf"(\d+) {DROPS}", said.read_text())))
    print(
        f"SIGINT to unplanted {took:.2f} s; kinst's own memory {most >> 20} MB at most;"
        f" {records} records, {dropped} dropped of {counted}; {early} of {len(text)} bytes were"
        " read before the text was restored"
    )
    assert early < len(text) / 2
    assert dropped and records + dropped == int(counted)
    assert most < MOST_MEMORY
