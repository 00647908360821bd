"""Facts that kinst reads from a running Linux kernel: how to find D's built-in variables, its CPUs,
its clock.

Source: the kernel's include/linux/sched.h, include/linux/timekeeper_internal.h and
arch/x86/kernel/tsc.c. The offsets of members come from the kernel's own BTF.

Tested by tests/systems/linux/test_clock.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from kinst.core.errors import KinstError
from kinst.core.layout import RAISE_SIZE
from kinst.core.system import Access, Clock, Facts, Signals, UserMemory
from kinst.core.words import MASK
from kinst.image.btf import Btf
from kinst.systems.linux.command_span import command_span
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.paths import paths
from kinst.systems.linux.thread_time import thread_time
from kinst.systems.linux.unwind import unwinder
from kinst.systems.linux.user_state import stack_size, user_state

NANOSECONDS = 1_000_000_000
_READINGS = 20  # most readings of the clock until two are equal


def _current(kernel: LinuxMemory, btf: Btf) -> tuple[Access, Access]:
    """Return how in-target code finds two values: the address of the current thread, and the number
    of the CPU."""
    if kernel.has("pcpu_hot"):  # Linux 6.2 to 6.14
        hot = kernel.per_cpu("pcpu_hot")
        task = hot + btf.offset("pcpu_hot", "current_task")
        number = hot + btf.offset("pcpu_hot", "cpu_number")
        return Access(task, (), 8), Access(number, (), 4, True)
    # arm64's entry from user mode loads the current thread from __entry_task.
    for name in ("current_task", "__entry_task"):
        if kernel.has(name):
            thread = Access(kernel.per_cpu(name), (), 8)
            if kernel.has("cpu_number"):
                return thread, Access(kernel.per_cpu("cpu_number"), (), 4, True)
            inside = btf.offset("task_struct", "thread_info.cpu")  # arm64 in 6.12
            return thread, replace(thread, offsets=(inside,), size=4, signed=True)
    inside = btf.offset("task_struct", "thread_info.cpu")
    return Access(None, (), 8, thread=True), Access(None, (inside,), 4, True, thread=True)


def builtins(kernel: LinuxMemory, btf: Btf) -> dict[str, Access]:
    """Return how in-target code finds each of D's built-in variables, by the variable's name.

    Raises KinstError, which names a structure member or symbol that this kernel lacks.
    """
    thread, number = _current(kernel, btf)

    def in_task(*path: str, size: int = 4, signed: bool = True) -> Access:
        structs = ("task_struct", "cred") if path[0] == "cred" else ("task_struct",) * len(path)
        offsets = tuple(btf.offset(s, p) for s, p in zip(structs, path, strict=True))
        return replace(thread, offsets=offsets, size=size, signed=signed)

    comm = btf.member("task_struct", "comm")
    counts = preemption_count(kernel, btf, thread)
    return {
        **({} if counts is None else {"interrupt": counts}),
        "curthread": thread,
        "cpu": number,
        "pid": in_task("tgid"),
        "tid": in_task("pid"),
        "ppid": in_task("real_parent", "tgid"),
        "uid": in_task("cred", "uid.val", signed=False),
        "gid": in_task("cred", "gid.val", signed=False),
        "execname": replace(thread, offsets=(comm.offset,), size=comm.size, string=True),
    }


# Masks of bits of the preemption count (include/linux/preempt.h) that are set while a CPU runs the
# handler of a soft interrupt, and while it runs the handler of a hard interrupt or an NMI.
_SOFT_INTERRUPT = 1 << 8
_HARD_INTERRUPT = 0xFF0000


def preemption_count(kernel: LinuxMemory, btf: Btf, thread: Access) -> Access | None:
    """Return how in-target code finds the preemption count; None if it cannot find it.

    The count tells whether a CPU handles an interrupt: thread-local variables of D need to know
    this. If code increments the count, its thread stays on its CPU.

    Args:
        thread: how the current thread's address is found.
    """
    if kernel.has("pcpu_hot") and btf.has("pcpu_hot", "preempt_count"):
        return Access(kernel.per_cpu("pcpu_hot") + btf.offset("pcpu_hot", "preempt_count"), (), 4)
    if kernel.has("__preempt_count"):
        return Access(kernel.per_cpu("__preempt_count"), (), 4)
    if btf.has("task_struct", "thread_info") and btf.has("thread_info", "preempt_count"):
        inside = btf.offset("task_struct", "thread_info")
        offset = inside + btf.offset("thread_info", "preempt_count")
        return replace(thread, offsets=(offset,), size=4)
    return None


_FULL = 2  # preempt_dynamic_full (kernel/sched/core.c); none and voluntary are smaller


def preemption(kernel: LinuxMemory) -> int | None:
    """Return when the kernel may take the CPU from a thread that runs in it (Facts.preemption).

    0: never. None: at any time. Any other number is the address of a word: not while the word is 0
    or 1.

    Kernels with PREEMPT_DYNAMIC have such a word, preempt_dynamic_mode. Any other kernel that
    preempts threads has preempt_schedule_irq, which the end of an interrupt calls.
    """
    if kernel.has("preempt_dynamic_mode"):
        mode = kernel.symbol("preempt_dynamic_mode")
        return mode if kernel.number(mode, 4) < _FULL else None
    return None if kernel.has("preempt_schedule_irq") else 0


def possible_cpus(kernel: LinuxMemory) -> int:
    """Return the highest possible CPU number plus one. CPUs that are offline count, since they may
    come online during a trace."""
    return max(1, _cpu_mask(kernel, "__cpu_possible_mask").bit_length())


def online_cpus(kernel: LinuxMemory) -> tuple[int, ...]:
    """Return the numbers of the CPUs that are online now, ascending."""
    mask = _cpu_mask(kernel, "__cpu_online_mask")
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def _cpu_mask(kernel: LinuxMemory, name: str) -> int:
    most = kernel.number(kernel.symbol("nr_cpu_ids"), 4) if kernel.has("nr_cpu_ids") else 64
    if not 0 < most <= 8192:
        raise KinstError(f"the running kernel says it has {most} CPUs: not a Linux kernel?")
    mask = kernel.number(kernel.symbol(name), (most + 63) // 64 * 8)
    return mask & (1 << most) - 1


def per_cpu_bases(kernel: LinuxMemory, cpus: int) -> tuple[int, ...]:
    """Return the value of the per-CPU base register on each of the first `cpus` CPUs, in CPU
    order."""
    table = kernel.symbol("__per_cpu_offset")
    raw = kernel.read(table, 8 * cpus)
    return tuple(int.from_bytes(raw[i : i + 8], "little") for i in range(0, 8 * cpus, 8))


def _steady_timekeeper(kernel: LinuxMemory, btf: Btf) -> int:
    """Return the address of a copy of the kernel's timekeeper that is not being written now.

    The kernel computes a new state in shadow_timekeeper (since Linux 6.13 a member of struct
    tk_data), and then copies it to the timekeeper. During the copy, the sequence count is odd. If
    it stays odd, the machine was stopped during the copy. shadow_timekeeper is complete then, so
    return its address.
    """
    # Since Linux 6.17 the core timekeeper is the first of several (kernel/time/timekeeping.c).
    core = kernel.symbol("timekeeper_data" if kernel.has("timekeeper_data") else "tk_core")
    if btf.has("tk_data", "timekeeper"):
        inside = btf.offset("tk_data", "timekeeper")
    else:
        inside = btf.size("seqcount_raw_spinlock") + 7 & -8
    for _ in range(4):
        if not kernel.number(core, 4) & 1:
            return core + inside
    if btf.has("tk_data", "shadow_timekeeper"):
        return core + btf.offset("tk_data", "shadow_timekeeper")
    return kernel.symbol("shadow_timekeeper") if kernel.has("shadow_timekeeper") else core + inside


def clock(kernel: LinuxMemory, btf: Btf, names: IsaFacts, per_cpu_base: int) -> Clock | None:
    """Return the conversion of cycles to nanoseconds that the kernel itself uses now. Return None
    if the kernel has calibrated no clock that counts cycles.

    A running kernel may change its clock while kinst reads it. So kinst reads until two readings
    are equal. This ends soon, since the kernel changes its clock only every few milliseconds.

    Args:
        per_cpu_base: the per-CPU base of any CPU.
    """
    before = _clock(kernel, btf, names, per_cpu_base)
    for _ in range(_READINGS):
        now = _clock(kernel, btf, names, per_cpu_base)
        if now == before:
            break
        before = now
    return before


def _clock(kernel: LinuxMemory, btf: Btf, names: IsaFacts, per_cpu_base: int) -> Clock | None:
    """Return the conversion of cycles to CLOCK_MONOTONIC nanoseconds that the kernel itself uses,
    from one reading of its structures. Return None if the kernel has calibrated no clock that
    counts cycles.

    If the kernel keeps time by the cycle counter, the conversion is the timekeeper's.

    Otherwise (hpet, kvm-clock) the conversion is the scheduler's conversion of the TSC, plus the
    difference between CLOCK_MONOTONIC and the scheduler's clock. The kernel stores a reading of
    both clocks in struct sched_clock_data. If the scheduler does not trust the TSC, the reading is
    from the last tick, and the result is exact to a tick. If the scheduler trusts the TSC, the
    reading is from the boot, and the result is off by the drift between the two clocks since then.
    NTP's corrections are left out.

    Code that applies the conversion must multiply to 128 bits before the shift.
    """
    keeper = _steady_timekeeper(kernel, btf)

    def field(path: str, size: int = 8) -> int:
        return kernel.number(keeper + btf.offset("timekeeper", path), size)

    def signed(value: int) -> int:
        return value - (1 << 64) if value >> 63 else value

    wall = signed(field("offs_real"))
    source = field("tkr_mono.clock")
    name_at = kernel.number(source + btf.offset("clocksource", "name"))
    shift = field("tkr_mono.shift", 4)
    now = field("tkr_mono.base") + (field("tkr_mono.xtime_nsec") >> shift)
    if kernel.text(name_at, 32) in names.clocksources:
        cycles, mult = field("tkr_mono.cycle_last"), field("tkr_mono.mult", 4)
        return Clock(cycles, now, mult, shift, wall, now)
    if not kernel.has("cyc2ns") or not btf.has("cyc2ns_data", "cyc2ns_mul"):
        return None
    data = per_cpu_base + kernel.per_cpu("cyc2ns") & MASK

    def cyc2ns(member: str, size: int) -> int:
        return kernel.number(data + btf.offset("cyc2ns_data", member), size)

    mult, shift = cyc2ns("cyc2ns_mul", 4), cyc2ns("cyc2ns_shift", 4)
    if not mult:
        return None
    base = signed(cyc2ns("cyc2ns_offset", 8))
    if kernel.has("sched_clock_data") and btf.has("sched_clock_data", "tick_gtod"):
        tick = per_cpu_base + kernel.per_cpu("sched_clock_data") & MASK
        raw, monotonic = (
            kernel.number(tick + btf.offset("sched_clock_data", member))
            for member in ("tick_raw", "tick_gtod")
        )
        base += monotonic - raw
    return Clock(0, base, mult, shift, wall, now)


def release(kernel: LinuxMemory) -> str:
    """Return the kernel's release (uname -r), from its version line in memory; "" if that has
    none."""
    banner = re.match(r"Linux version (\S+)", kernel.text(kernel.symbol("linux_banner"), 128))
    return banner[1] if banner else ""


def user_memory(kernel: LinuxMemory, btf: Btf, thread: Access) -> UserMemory | None:
    """Return how clauses read and write the memory of the current process: by kernel functions that
    neither fault nor sleep (mm/maccess.c). Return None if this kernel lacks those functions.

    Args:
        thread: how the current thread's address is found.
    """
    read = "copy_from_user_nofault"
    if not kernel.has(read) or not btf.has("task_struct", "mm"):
        return None
    has_arguments = btf.has("mm_struct", "arg_start") and btf.has("mm_struct", "arg_end")
    write = "copy_to_user_nofault"
    return UserMemory(
        kernel.symbol(read),
        kernel.symbol(write) if kernel.has(write) else 0,
        replace(thread, offsets=(btf.offset("task_struct", "mm"),)),
        btf.offset("mm_struct", "arg_start") if has_arguments else 0,
        btf.offset("mm_struct", "arg_end") if has_arguments else 0,
    )


_SIGSTOP = 19  # of all instruction sets but alpha, mips, parisc and sparc


def signals(kernel: LinuxMemory, btf: Btf) -> Signals | None:
    """Return how clauses send signals: by irq_work (kernel/irq_work.c), as bpf_send_signal() does.
    Return None if this kernel lacks a function or type for it."""
    if not all(map(kernel.has, ("irq_work_queue", "send_sig"))) or not btf.has("irq_work", "func"):
        return None
    offset = btf.offset("irq_work", "func")
    if offset > RAISE_SIZE - 16:  # only a pointer follows
        return None
    return Signals(kernel.symbol("irq_work_queue"), offset, kernel.symbol("send_sig"), _SIGSTOP)


class BootingBases(Sequence[int]):
    """Values of the per-CPU base register of a kernel that boots, read anew at each use.

    Until the kernel has set up its per-CPU data, this value is the same on all CPUs: it leads to
    the per-CPU variables in the kernel's image.
    """

    def __init__(self, kernel: LinuxMemory, cpus: int) -> None:
        self._kernel, self._cpus = kernel, cpus

    def __len__(self) -> int:
        return self._cpus

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        return per_cpu_bases(self._kernel, self._cpus)[at]


def gather(
    kernel: LinuxMemory, btf: Btf, names: IsaFacts, booting: int = 0, ahead: int = 0
) -> Facts:
    """Return all facts about a running kernel whose slide has been verified.

    Args:
        booting: number of CPUs of a machine whose kernel is at the beginning of its boot; 0 for a
            kernel that is up.
        ahead: how many ns D's timestamp is ahead of the kernel's clock.

    Raises KinstError, which names the type or symbol that is missing.
    """
    cpus = booting or possible_cpus(kernel)
    bases = BootingBases(kernel, cpus) if booting else per_cpu_bases(kernel, cpus)

    def optional(symbol: str) -> int:
        return kernel.symbol(symbol) if kernel.has(symbol) else 0

    variables = builtins(kernel, btf)
    ticks = None if booting else clock(kernel, btf, names, bases[0])
    ticks = ticks and ticks.ahead(ahead)
    state = user_state(kernel, btf, names)
    return Facts(
        os="Linux",
        release=release(kernel),
        slide=kernel.slide,
        cpus=cpus,
        builtins=variables,
        nofault_read=optional("copy_from_kernel_nofault"),
        nofault_write=optional("copy_to_kernel_nofault"),
        panic=optional("panic"),
        signals=signals(kernel, btf),
        trap_hook=kernel.symbol(next(filter(kernel.has, names.trap_hooks), names.trap_hooks[0])),
        trap_pc_offset=btf.offset("pt_regs", names.pc),
        trap_pc_delta=names.pc_delta,
        fault_hook=optional("search_exception_tables"),
        tracer="ftrace",
        per_cpu=names.per_cpu,
        per_cpu_bases=bases,
        first_thread=optional("init_task") if booting else 0,
        # Not report_bug(), which first reads the instruction at the address that it gets.
        bug_hook=optional("find_bug"),
        clock=ticks,
        thread_time=thread_time(kernel, btf, variables["curthread"], bases[0], ticks),
        unwinder=unwinder(kernel, btf, names),
        thread_registers=names.thread_registers,
        user=user_memory(kernel, btf, variables["curthread"]),
        paths=paths(btf),
        user_state=state,
        interrupt_masks=(_SOFT_INTERRUPT, _HARD_INTERRUPT) if "interrupt" in variables else (),
        pin=variables.get("interrupt"),
        preemption=preemption(kernel),
        command_span=command_span(kernel, btf, names, state),
        saved_registers=tuple((name, names.saved.offset(btf, name)) for name in names.saved.places),
        stack_size=stack_size(kernel),
    )
