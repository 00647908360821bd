"""A program whose probes leave a machine no time: all instructions of the timer interrupt's path,
with a clause that takes far longer than a tick lasts when it runs at each of them."""

from __future__ import annotations

PATH = (
    "hrtimer_interrupt", "__hrtimer_run_queues", "tick_sched_handle*", "tick_sched_timer",
    "update_process_times", "scheduler_tick", "task_tick_fair", "update_curr", "update_load_avg",
    "run_posix_cpu_timers", "timekeeping_advance", "rcu_sched_clock_irq", "account_*",
    "__update_load_avg_*",
)  # fmt: skip
SEARCHES = 60  # of a string of 150 characters, in each firing


def endless() -> str:
    """Expensive, and without any error."""
    searches = [f'this->n{k} = index(this->text, "zz{k}");' for k in range(SEARCHES)]
    found = " + ".join(f"this->n{k}" for k in range(SEARCHES))
    text = f'this->text = strjoin("{"0123456789" * 14}", execname);'
    sites = ", ".join(f"kinst::{name}:" for name in PATH)
    return f"{sites} {{ {text} {' '.join(searches)} @[stack(30), {found}] = count(); }}"
