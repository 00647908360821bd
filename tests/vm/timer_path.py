"""A program whose probes leave a machine no time.

It plants all instructions of the timer interrupt's path, or of other functions, with a clause that
takes far longer at each of them than the time between two ticks.
"""

from __future__ import annotations

PATH = (
    "hrtimer_interrupt", "__hrtimer_run_queues", "tick_sched_handle*", "tick_sched_timer",
    "update_process_times", "scheduler_tick", "task_tick_fair", "update_curr", "update_load_avg",
    "run_posix_cpu_timers", "timekeeping_advance", "rcu_sched_clock_irq", "account_*",
    "__update_load_avg_*",
)  # fmt: skip
SEARCHES = 60  # of a string of 150 characters, in each firing


def endless(path: tuple[str, ...] = PATH) -> str:
    """Return a clause that is expensive but raises no error.

    Args:
        path: functions to plant.
    """
    searches = [f'this->n{k} = index(this->text, "zz{k}");' for k in range(SEARCHES)]
    found = " + ".join(f"this->n{k}" for k in range(SEARCHES))
    text = f'this->text = strjoin("{"0123456789" * 14}", execname);'
    sites = ", ".join(f"kinst::{name}:" for name in path)
    return f"{sites} {{ {text} {' '.join(searches)} @[stack(30), {found}] = count(); }}"
