"""Changes of a machine while --live traces it, run as root in a guest (live_in_guest.py).

CPUs are turned off and on, the machine is suspended, probes are on the very path that writes them,
and some probes leave the machine no time.
"""

from __future__ import annotations

import subprocess

import kinst
from kinst.errors import KinstError
from kinst.machines.live import machine as live
from tests.vm.timer_path import endless

OWN = '/execname == "reads"/'
CPU1 = "/sys/devices/system/cpu/cpu1/online"
# Functions that run while sites are written, and that a breakpoint and a timer execute.
OWN_PATH = (
    "text_poke*", "__text_poke", "on_each_cpu*", "smp_call_function*", "do_sync_core",
    "notify_die", "atomic_notifier_call_chain", "notifier_call_chain", "mutex_lock",
    "mutex_unlock", "copy_from_kernel_nofault", "hrtimer_*", "__hrtimer_*", "perf_event_text_poke",
    "exc_int3", "asm_exc_int3", "poke_int3_handler", "kprobe_int3_handler", "schedule",
    "__x64_sys_ioctl",
)  # fmt: skip

# Functions that each timer interrupt and each system call executes: probes there leave no time.
EVERYWHERE = (
    "hrtimer_interrupt", "__hrtimer_run_queues", "tick_sched_timer", "update_process_times",
    "scheduler_tick", "do_syscall_64", "syscall_enter_from_user_mode*",
    "syscall_exit_to_user_mode*", "__x64_sys_ioctl", "ksys_read", "do_nanosleep",
)  # fmt: skip
PATIENCE = 5  # seconds


def turned_off(machine: kinst.Machine, place: int, reads: str, count: int) -> object:
    """Turn a CPU off and on.

    Returns:
        Counted reads, how many had the CPU's number, and seconds from its last sample to the end,
            of both.
    """
    clauses = f"""
        kinst::vfs_read:{place} {OWN} {{ @reads = count(); }}
        profile-97 {{ @last[cpu] = max(timestamp); @all = max(timestamp); }}
    """
    again = f"{reads} {count}"
    command = f"{again}; echo 0 >{CPU1}; {again}; nproc; echo 1 >{CPU1}; {again}; sleep 3; nproc"
    run = machine.run(clauses, command)
    last = {key[0]: at for key, at in run.aggregations["last"].items()}
    end = run.aggregations["all"][()]
    ages = {cpu: (end - at) / 1e9 for cpu, at in last.items()}
    return [run.aggregations["reads"][()], run.output.decode().split(), ages]


def slept(machine: kinst.Machine, place: int, reads: str, count: int) -> object:
    """Suspend the machine (suspend to idle, for 3 s): its processes are frozen, its devices asked.

    virtiofs, which has the guest's files, cannot suspend: if it refuses, all processes are thawed.
    """
    clauses = f"kinst::vfs_read:{place} {OWN} {{ @reads = count(); }}"
    again = f"{reads} {count}"
    command = f"{again}; rtcwake -m freeze -s 3 >/dev/null 2>&1; {again}; nproc"
    run = machine.run(clauses, command)
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return [
        run.aggregations["reads"][()],
        run.output.decode().split(),
        [line for line in log.splitlines() if "PM:" in line][-9:],
    ]


def on_its_own_path(machine: kinst.Machine, place: int, reads: str, count: int) -> object:
    """Plant the functions that write and take probes, by each way.

    Returns:
        Sites, reads that were counted besides, whether the rest was hit, and the messages about
            the module's own functions and about some others.
    """
    found: dict[str, object] = {}
    path = ", ".join(f"kinst::{name}:" for name in OWN_PATH)
    clauses = f"{path} {{ @all = count(); }} kinst::vfs_read:{place} {OWN} {{ @reads = count(); }}"
    for way in ("auto", "trap"):
        trace = machine.trace(machine.compile(clauses, {"plant": way}))
        sites = len(trace.sites)
        trace.close()
        run = machine.run(clauses, f"{reads} {count}", {"plant": way})
        found[way] = [sites, run.aggregations["reads"][()], run.aggregations["all"][()] > count]
    for name in ("kinst:kinst:on_die:0", "kinst::exc_int3:0", "kinst::poke_int3_handler:0"):
        try:
            machine.run(f"{name} {{ @ = count(); }}", "true")
            found[name] = "planted"
        except KinstError as error:
            found[name] = str(error)
    return found


def overloaded(debug: str) -> str:
    """Plant probes that leave the machine no time.

    Returns the messages when they are unplanted, and whether the machine runs on.  A timer
    interrupt that takes too long still leaves half of all time to others (hrtimer_interrupt() sees
    to it), so each system call is slow as well.
    """
    live.PATIENCE = PATIENCE
    with kinst.live(debug=debug) as machine:
        try:
            run = machine.run(endless(EVERYWHERE), "while :; do :; done", {"aggsize": "1m"})
            return f"it went on: {run.reason}"
        except KinstError as error:
            return str(error)
