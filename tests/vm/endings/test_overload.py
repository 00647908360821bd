"""Probes that leave the kernel no time (timer_path.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.command import kinst
from tests.vm.timer_path import endless

pytestmark = [pytest.mark.vm, pytest.mark.slow]


def test_a_guest_without_time_gets_it_back(tmp_path: Path) -> None:
    """The kernel complains after some twenty seconds; `--timeout` is for kernels that do not."""
    done = kinst(
        "-q", "-x", "aggsize=1m", "--cpus=1", "--timeout=400", "-n", endless(),
        "-c", "while :; do :; done", seconds=900.0,
    )  # fmt: skip
    assert "processing aborted: Abort due to systemic unresponsiveness" in done.err, done.err
    assert "into probes; all are unplanted" in done.err
    assert done.status == 1
    assert "defect" not in done.err and "gone" not in done.err
    assert "vmlinux`" in done.out  # the message shows the counts so far
