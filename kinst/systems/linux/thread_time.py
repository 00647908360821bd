"""D's vtimestamp on Linux: how to compute the time that the current thread has run, from its
scheduling entity.

A thread has run for sum_exec_runtime + (clock_task - exec_start) + (now - clock):

- sum_exec_runtime and exec_start are members of the scheduling entity. At ticks, and when it
  switches to another thread, the kernel sets them to the time that the thread has run so far, and
  to the value of clock_task.
- clock_task and clock are members of the run queue, which the kernel updates together: clock is the
  scheduler's time, clock_task is that time less the time that interrupts took.
- now is the scheduler's time when the probe fires. All times are in ns.

Source: kernel/sched/core.c update_rq_clock(), kernel/sched/fair.c update_curr().

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kinst.core.system import Access, Clock, ThreadTime
from kinst.core.words import MASK
from kinst.image.btf import Btf
from kinst.systems.linux.memory import LinuxMemory


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def thread_time(
    kernel: LinuxMemory, btf: Btf, thread: Access, per_cpu_base: int, clock: Clock | None
) -> ThreadTime | None:
    """Return the terms that are added to and subtracted from D's timestamp to get vtimestamp.
    Return None if the kernel has no clock that counts cycles, or if the scheduler's clock does not
    count the same cycles.

    Args:
        thread: how the current thread's address is found.
        per_cpu_base: the per-CPU base of any CPU.
        clock: how the kernel converts cycles to nanoseconds; None if it has no clock that counts
            cycles.
    """
    if clock is None:
        return None
    queue: Callable[[str], Access]
    if kernel.has("cyc2ns"):
        scheduler = _x86_clock(kernel, btf, per_cpu_base, clock)
        queue = partial(_this_queue, kernel, btf)
    else:
        scheduler = _generic_clock(kernel, btf, clock)
        queue = partial(_queue_of, btf, thread)
    if scheduler is None or not kernel.has("runqueues"):
        return None

    def entity(member: str) -> Access:
        return replace(thread, offsets=(btf.offset("task_struct", f"se.{member}"),))

    return ThreadTime(
        plus=(entity("sum_exec_runtime"), queue("clock_task")),
        minus=(entity("exec_start"), queue("clock")),
        offset_ns=scheduler - clock.base_ns,
    )


def _this_queue(kernel: LinuxMemory, btf: Btf, member: str) -> Access:
    """Return how in-target code reads a member of this CPU's run queue, in the CPU's per-CPU
    data."""
    return Access(kernel.per_cpu("runqueues") + btf.offset("rq", member), (), 8)


def _queue_of(btf: Btf, thread: Access, member: str) -> Access:
    """Return how in-target code reads a member of the current thread's run queue, starting from the
    thread. This is for ISAs on which an Access cannot start from per-CPU data."""
    path = (("task_struct", "se.cfs_rq"), ("cfs_rq", "rq"), ("rq", member))
    return replace(thread, offsets=tuple(btf.offset(*one) for one in path))


def _x86_clock(kernel: LinuxMemory, btf: Btf, per_cpu_base: int, clock: Clock) -> int | None:
    """Return the scheduler's time in ns when the TSC was clock.base_cycles. Return None if the
    scheduler does not trust the TSC: its time then does not follow from the TSC alone."""
    if not all(kernel.has(name) for name in ("__sched_clock_stable", "__sched_clock_offset")):
        return None
    if kernel.number(kernel.symbol("__sched_clock_stable"), 4) != 1:
        return None
    data = per_cpu_base + kernel.per_cpu("cyc2ns") & MASK

    def cyc2ns(member: str, size: int) -> int:
        return kernel.number(data + btf.offset("cyc2ns_data", member), size)

    scaled = clock.base_cycles * cyc2ns("cyc2ns_mul", 4) >> cyc2ns("cyc2ns_shift", 4)
    scheduler = scaled + _signed(cyc2ns("cyc2ns_offset", 8))
    return scheduler + _signed(kernel.number(kernel.symbol("__sched_clock_offset")))


def _generic_clock(kernel: LinuxMemory, btf: Btf, clock: Clock) -> int | None:
    """Return the scheduler's time in ns when the cycle counter was clock.base_cycles. Return None
    if this kernel's scheduler does not use the generic sched_clock (kernel/time/sched_clock.c),
    which counts the same cycles as the architecture's clock source.

    The kernel has two copies of sched_clock's parameters; the low bit of a sequence count tells
    which copy is not being written.
    """
    if not kernel.has("cd") or not btf.has("clock_data", "read_data"):
        return None
    if kernel.has("sched_clock_data"):  # the scheduler corrects an unstable one by ticks
        return None
    data = kernel.symbol("cd")
    latch = kernel.number(data + btf.offset("clock_data", "seq"), 4)
    data += btf.offset("clock_data", "read_data") + (latch & 1) * btf.size("clock_read_data")

    def number(member: str, size: int = 8) -> int:
        return kernel.number(data + btf.offset("clock_read_data", member), size)

    passed = (clock.base_cycles - number("epoch_cyc")) * number("mult", 4) >> number("shift", 4)
    return number("epoch_ns") + passed
