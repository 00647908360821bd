"""Probes that leave the kernel no time: all instructions of the timer interrupt's path, with a
clause that takes far longer than a tick lasts when it runs at each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import kinst

pytestmark = [pytest.mark.vm, pytest.mark.slow]

PATH = (
    "hrtimer_interrupt", "__hrtimer_run_queues", "tick_sched_handle*", "tick_sched_timer",
    "update_process_times", "scheduler_tick", "task_tick_fair", "update_curr", "update_load_avg",
    "run_posix_cpu_timers", "timekeeping_advance", "rcu_sched_clock_irq", "account_*",
    "__update_load_avg_*",
)  # fmt: skip
SEARCHES = 60  # of a string of 150 characters, in each firing


def program() -> str:
    """Expensive, and without any error."""
    searches = [f'this->n{k} = index(this->text, "zz{k}");' for k in range(SEARCHES)]
    found = " + ".join(f"this->n{k}" for k in range(SEARCHES))
    text = f'this->text = strjoin("{"0123456789" * 14}", execname);'
    sites = ", ".join(f"kinst::{name}:" for name in PATH)
    return f"{sites} {{ {text} {' '.join(searches)} @[stack(30), {found}] = count(); }}"


def test_a_guest_without_time_gets_it_back(tmp_path: Path) -> None:
    """The kernel complains after some twenty seconds; `--timeout` is for when it does not."""
    done = kinst(
        "-q", "-x", "aggsize=1m", "--cpus=1", "--timeout=400", "-n", program(),
        "-c", "while :; do :; done", seconds=900.0,
    )  # fmt: skip
    assert "processing aborted: Abort due to systemic unresponsiveness" in done.err, done.err
    assert "into probes; all are unplanted" in done.err
    assert done.status == 1
    assert "defect" not in done.err and "gone" not in done.err
    assert "vmlinux`" in done.out  # what was found is shown
