"""SIGINT, SIGTERM and SIGKILL at random moments of the real command.

kinst prints at most one line, no QEMU remains, and the next run is right.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence

import pytest

from tests.vm.command import KINST, MARK, marked

pytestmark = [pytest.mark.vm, pytest.mark.slow]
MOMENTS = int(os.environ.get("KINST_MOMENTS", "500"))
SECONDS = 300.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TRACE = (str(KINST), "-qn", "kinst::vfs_read:0 { @ = count(); }", "-c", "ls")
NOTE = re.compile(r"kinst: the (saved state of the guest|guest hung during boot)\b.*\n")
BEFORE = "init_import_site"
LINE = re.compile(r"(?:kinst|inlinecall): (?!a defect).*\n")


def run(words: Sequence[str], wait: float, number: int) -> tuple[int, str, float]:
    """Return (exit status, stderr, seconds) of a command that gets a signal after so many
    seconds."""
    mark = uuid.uuid4().hex
    env = {**os.environ, MARK: mark}
    began = time.monotonic()
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    try:
        _, err = process.communicate(timeout=wait)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    took = time.monotonic() - began
    end = time.monotonic() + 30
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert not marked(mark), "QEMU outlived kinst"
    return process.returncode, err.decode(errors="replace"), took


def wrong(status: int, err: str, number: int) -> str:
    """Return what is wrong with such an end; "" for nothing."""
    err = NOTE.sub("", err)
    if status in (0, -number) and (not err or LINE.fullmatch(err)):
        return ""
    if err.endswith("KeyboardInterrupt\n") and BEFORE in err:
        return ""  # no line of kinst has run yet: Python was starting
    return f"signal {number}: status {status}, said {err!r}"


def moments(words: Sequence[str], count: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30) if os.environ.get("KINST_RANDOM") else 1
    draw = random.Random(seed)
    status, err, longest = run(words, SECONDS, signal.SIGINT)
    assert status == 0 and not NOTE.sub("", err), err
    found = []
    for _ in range(count):
        number, wait = draw.choice(SIGNALS), draw.uniform(0.0, longest)
        status, err, _ = run(words, wait, number)
        if what := wrong(status, err, number):
            found.append(f"after {wait:.3f} of {longest:.1f} s, {what}")
    assert not found, f"seed {seed}, {len(found)} of {count}:\n" + "\n".join(found)
    status, err, _ = run(words, SECONDS, signal.SIGINT)
    assert status == 0 and not NOTE.sub("", err), err


def test_while_tracing() -> None:
    moments(TRACE, MOMENTS)
