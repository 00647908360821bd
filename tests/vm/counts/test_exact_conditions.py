"""Conditions that make chains hard to get right.

Kernel threads that may be preempted anywhere, another kernel address, instructions that fault on
purpose, signals, and code of modules.  Counts with all features, and without runs, gates and
blocks, equal those of sites planted one by one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.guest import Guest, compile_programs
from tests.tiers import ISAS
from tests.vm.counts.site_counts import compare, present

pytestmark = [pytest.mark.vm, pytest.mark.slow]

ROUNDS = 53
RULES = ("", "no-run", "no-gate", "no-block")
# Functions in which busy.c's reads and writes of bad addresses fault: each ISA has some of them.
COPIES = (
    "copy_user_enhanced_fast_string", "copy_user_generic_unrolled", "rep_movs_alternative",
    "_copy_from_iter", "_copy_to_iter", "copy_page_from_iter", "copy_page_to_iter", "_copy_to_user",
    "_copy_from_user", "__arch_copy_from_user", "__arch_copy_to_user", "__arch_clear_user",
    "__asm_copy_to_user", "__asm_copy_from_user", "__clear_user", "fallback_scalar_usercopy*",
    "clear_user_erms", "clear_user_rep_good", "read_zero", "pipe_write", "pipe_read",
)  # fmt: skip
# A signal to the process itself: sent, taken, its frame made, and returned from.
SIGNALS = (
    "do_tkill", "do_send_specific", "do_send_sig_info", "__send_signal_locked", "complete_signal",
    "get_signal", "dequeue_signal", "__dequeue_signal", "signal_setup_done", "recalc_sigpending",
    "arch_do_signal_or_restart", "do_signal", "do_notify_resume", "restore_sigcontext*",
    "setup_sigcontext*", "setup_sigframe*", "__setup_rt_frame", "setup_rt_frame",
    "*sys_rt_sigreturn", "restore_sigframe", "set_current_blocked", "__set_current_blocked",
    "__set_task_blocked", "sigprocmask", "*sys_rt_sigprocmask",
)  # fmt: skip
# Paths with locks, preemption points and computed jumps.
PATHS = ("vfs_read", "vfs_write", "do_sys_poll", "unix_stream_sendmsg", "eventfd_*", "dput")
CASES = [
    pytest.param("amd64", "preempt=full", False, id="amd64-preempt"),
    pytest.param("amd64", "nokaslr", False, id="amd64-nokaslr"),
    pytest.param("amd64", "", True, id="amd64-kaslr"),
    pytest.param("arm64", "preempt=full", False, id="arm64-preempt"),
    pytest.param("riscv64", "preempt=full", False, id="riscv64-preempt"),
]


@pytest.mark.parametrize(("isa", "append", "cold"), CASES)
def test_faults_and_signals(isa: str, append: str, cold: bool, tmp_path: Path) -> None:
    guest = Guest(compile_programs(["busy"], tmp_path, isa), isa, append, cold=cold, seconds=600.0)
    try:
        copies, signals = present(guest, COPIES), present(guest, SIGNALS)
        functions = [*copies, *signals, *present(guest, PATHS)]
        found = compare(guest, functions, f"busy {ROUNDS}", ROUNDS, RULES)
        (base,) = re.findall(r"(\w+) T _stext\n", guest.run("grep ' _stext$' /proc/kallsyms"))
        print(f"{found.told(f'{isa} {append}')}; the kernel's text is at {base}")
        assert not found.wrong, f"{len(found.wrong)}, {list(found.wrong.items())[:9]}"
        assert len(found.functions & {*copies}) >= 3 and len(found.functions & {*signals}) >= 8
        assert not guest.run("dmesg | grep -E 'BUG|WARNING|Oops|stall'; true")
    finally:
        guest.close()


@pytest.mark.parametrize("isa", ISAS)
def test_a_module(isa: str, tmp_path: Path) -> None:
    copies = compile_programs(["packets"], tmp_path, isa)
    guest = Guest(copies, isa, modules=["dummy"], seconds=600.0)
    try:
        names = sorted({p.function for p in guest.machine.probes("kinst:dummy:dummy_*:0")})
        found = compare(guest, names, f"packets {ROUNDS}", ROUNDS, RULES)
        print(found.told(f"{isa}, the module dummy"))
        assert not found.wrong, found.wrong
        assert "dummy_xmit" in found.functions and len(found.regular) >= 12
    finally:
        guest.close()
