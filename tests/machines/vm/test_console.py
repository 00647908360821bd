"""Parts of the kernel's console that an error shows."""

from __future__ import annotations

import pytest

from kinst.machines.vm.console import Console
from kinst.systems.linux.guest.boot import SIGNS

QUIET = [f"[    1.{k:06}] quiet line {k}" for k in range(50)]
# Texts as die() and its callers print them: arch/x86/kernel/dumpstack.c,
# arch/arm64/kernel/traps.c, arch/riscv/kernel/traps.c, kernel/rcu/tree_stall.h.
TROUBLE = [
    "BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "Oops: 0002 [#1] PREEMPT SMP NOPTI",
    "BUG kmalloc-64 (Tainted: G    B      OE     ): Object already free",
    "int3: 0000 [#1] PREEMPT SMP NOPTI",
    "invalid opcode: 0000 [#1] SMP",
    "divide error: 0000 [#2] PREEMPT SMP",
    "PANIC: double fault, error_code: 0x0",
    "Internal error: Oops - BUG: 00000000f2000800 [#1] PREEMPT SMP",
    "Kernel BUG [#1]",
    "Oops - illegal instruction [#1]",
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "rcu: INFO: rcu_sched self-detected stall on CPU",
    "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [sh:66]",
    "watchdog: Watchdog detected hard LOCKUP on cpu 0",
    "INFO: task sh:66 blocked for more than 120 seconds.",
    "WARNING: CPU: 0 PID: 66 at mm/page_alloc.c:5534 __alloc_pages+0x1a3/0x2c0",
    "WARNING: mm/page_alloc.c:5534 at __alloc_pages+0x1a3/0x2c0, CPU#0: sh/66",
    "WARNING: possible circular locking dependency detected",
]


def console(*lines: str) -> Console:
    made = Console(SIGNS)
    data = "".join(f"{line}\r\n" for line in lines).encode()
    for at in range(0, len(data), 7):  # cut anywhere
        made.take(data[at : at + 7])
    return made


def test_a_quiet_console_shows_its_end() -> None:
    made = console(*QUIET)
    assert made.last_lines().splitlines() == QUIET[-29:]
    assert (made.panic, made.warnings, made.init_runs) == ("", [], False)


@pytest.mark.parametrize("line", TROUBLE)
def test_trouble_is_shown_from_its_first_line_on(line: str) -> None:
    made = console(*QUIET, f"[    2.000000] {line}", "[    2.1] RIP: 0010:f+0x1/0x2", *QUIET)
    assert made.last_lines().splitlines()[0] == f"[    2.000000] {line}"
    (warning,) = made.warnings
    assert warning.text.endswith(line)
    hangs = ("stall", "soft lockup", "hard LOCKUP", "blocked")
    kind = "hang" if any(word in line for word in hangs) else "oops"
    assert warning.kind == ("warn" if line.startswith("WARNING") else kind)
    assert not made.panic


def test_a_panic_and_what_led_to_it() -> None:
    made = console(
        *QUIET, "[2.0] int3: 0000 [#1] SMP", "[2.1] Kernel panic - not syncing: Fatal exception"
    )
    assert made.panic == "Kernel panic - not syncing: Fatal exception"
    assert made.last_lines().startswith("[2.0] int3: ")


def test_init() -> None:
    assert console("[1.0] Run /init as init process").init_runs


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("[    3.646656] Oops: int3: 0000 [#1] SMP NOPTI", True),
        ("[    3.646656] Oops: general protection fault: 0000 [#1] SMP NOPTI", False),
    ],
)
def test_a_breakpoint_that_was_lost(line: str, lost: bool) -> None:
    """The message is Linux 7.3's; guests that die of it during boot are started again."""
    assert console(*QUIET, line).lost_breakpoint is lost
