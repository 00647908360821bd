"""vtimestamp on Linux: how long the current thread has run, from its scheduling entity.

A thread's sum_exec_runtime is brought up to date when it is switched out and at ticks; what
came since is the run queue's task clock minus exec_start, and what came since the run queue's
clock was read is now minus that clock, in the scheduler's nanoseconds (kernel/sched/core.c
update_rq_clock(), kernel/sched/fair.c update_curr(); for the meaning).
"""

from __future__ import annotations

from dataclasses import replace

from kinst.core.target import Access, Clock, ThreadTime
from kinst.image.btf import Btf
from kinst.targets.linux_memory import MASK, Kernel


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def thread_time(
    kernel: Kernel, btf: Btf, thread: Access, per_cpu_base: int, clock: Clock | None
) -> ThreadTime | None:
    """The terms of vtimestamp, or None where the scheduler's clock is not the cycle counter.

    thread: of the current thread's address.  per_cpu_base: of any CPU.
    """
    needed = ("__sched_clock_stable", "__sched_clock_offset", "cyc2ns", "runqueues")
    if clock is None or not all(kernel.has(name) for name in needed):
        return None
    if kernel.number(kernel.symbol("__sched_clock_stable"), 4) != 1:
        return None
    data = per_cpu_base + kernel.per_cpu("cyc2ns") & MASK

    def cyc2ns(member: str, size: int) -> int:
        return kernel.number(data + btf.offset("cyc2ns_data", member), size)

    scaled = clock.base_cycles * cyc2ns("cyc2ns_mul", 4) >> cyc2ns("cyc2ns_shift", 4)
    scheduler = scaled + _signed(cyc2ns("cyc2ns_offset", 8))
    scheduler += _signed(kernel.number(kernel.symbol("__sched_clock_offset")))
    queue = kernel.per_cpu("runqueues")

    def entity(member: str) -> Access:
        return replace(thread, offsets=(btf.offset("task_struct", f"se.{member}"),))

    def run_queue(member: str) -> Access:
        return Access(queue + btf.offset("rq", member), (), 8)

    return ThreadTime(
        plus=(entity("sum_exec_runtime"), run_queue("clock_task")),
        minus=(entity("exec_start"), run_queue("clock")),
        offset_ns=scheduler - clock.base_ns,
    )
