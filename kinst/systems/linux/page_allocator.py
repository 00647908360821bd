"""Facts by which kinst allocates and frees memory of a running Linux kernel: addresses of the
functions of its page allocator, and where the stacks of all threads are. Before kinst frees memory,
it searches these stacks to see that the memory is unused.

Sources: include/linux/gfp.h and gfp_types.h, mm/page_alloc.c (free_pages), mm/vmalloc.c
(vunmap_range); include/linux/sched.h and sched/signal.h for the lists of threads.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import Facts, PageAllocator, Threads, TrapPath
from kinst.core.words import PAGE
from kinst.image.btf import Btf
from kinst.systems.linux.ftrace import no_users
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.user_state import stack_size

# Functions at whose entry a thread may sleep, holds no lock and takes interrupts.  System calls
# enter them, the first of them most often; vmstat_shepherd runs every second.
_ENTRIES = (
    "ksys_read", "ksys_write", "do_sys_openat2", "do_sys_poll", "core_sys_select", "do_epoll_wait",
    "do_futex", "hrtimer_nanosleep", "kernel_wait4", "vmstat_shepherd",
)  # fmt: skip
# A function that is never executed unless the kernel panics: control reaches its address only if
# kinst makes a call return there.
_LANDING = "panic"
# The function for system calls with an unknown number, which returns the error ENOSYS.
_RETURNING = "sys_ni_syscall"
# Since Linux 6.10 these names are macros around functions with other names
# (CONFIG_MEM_ALLOC_PROFILING).
_ALLOCATE = ("__get_free_pages", "get_free_pages_noprof")
_RELEASE = "free_pages"
# Functions of (start, end) that make all CPUs discard cached translations of these addresses.  The
# first is inline on arm64; the second and third first unmap these addresses.
_FORGET = ("flush_tlb_kernel_range", "vunmap_range", "unmap_kernel_range")
# GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN | __GFP_NORETRY.  Because the kernel itself zeroes the
# memory, QEMU discards its translations of code that was in this memory before.
_FLAGS = 0xCC0 | 0x100 | 0x2000 | 0x10000
_SAVED_STACK_POINTER = ("thread.sp", "thread.cpu_context.sp")


def allocator(kernel: LinuxMemory, btf: Btf, facts: Facts) -> PageAllocator | None:
    """Return the addresses by which kinst calls the kernel's page allocator; None if this kernel
    lacks a function that is needed."""

    def first(names: tuple[str, ...]) -> int:
        return next((kernel.symbol(name) for name in names if kernel.has(name)), 0)

    entries = tuple(kernel.symbol(name) for name in _ENTRIES if kernel.has(name))
    allocate, release = first(_ALLOCATE), first((_RELEASE,))
    return_address, returning, forget = first((_LANDING,)), first((_RETURNING,)), first(_FORGET)
    alive = threads(kernel, btf)
    if not (entries and allocate and release and return_address and forget and alive):
        return None
    hooks = (facts.trap_hook, facts.fault_hook, facts.bug_hook)
    traps = TrapPath(tuple(filter(None, hooks)), facts.trap_pc_delta)
    return PageAllocator(
        entries, return_address, returning, allocate, _FLAGS, release, forget, PAGE, alive, traps,
        no_users(kernel),
    )  # fmt: skip


def on_cpu(btf: Btf) -> int:
    """Return the offset in struct task_struct of a byte that is not 0 while the thread runs on a
    CPU; -1 if there is no such byte."""
    # An int of 0 or 1; a byte since Linux 7.2, where the next bytes are other flags.
    return btf.offset("task_struct", "on_cpu") if btf.has("task_struct", "on_cpu") else -1


def threads(kernel: LinuxMemory, btf: Btf) -> Threads | None:
    """Return how to find all threads and their stacks in memory; None if the kernel's symbols or
    types do not tell."""
    task = "task_struct"
    saved = next((path for path in _SAVED_STACK_POINTER if btf.has(task, path)), "")
    wanted = [
        (task, "tasks"), (task, "signal"), ("signal_struct", "thread_head"), (task, "thread_node"),
        (task, "stack"),
    ]  # fmt: skip
    size = stack_size(kernel)
    if not (saved and size and kernel.has("init_task")):
        return None
    if not all(btf.has(*member) for member in wanted):
        return None
    following, group, head, node, stack = (btf.offset(*member) for member in wanted)
    return Threads(
        kernel.symbol("init_task"), following, group, head, node, stack, btf.offset(task, saved),
        on_cpu(btf), size,
    )  # fmt: skip
