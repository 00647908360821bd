"""Tables of functions and regions of Linux that are special by name: code that is never planted,
with the reason, and functions that never return.

kinst ignores names that a kernel does not have, so one table serves all ISAs.
"""

from __future__ import annotations

REGION_REASONS = {
    "noinstr": "the kernel marks it noinstr: it runs where no probe may",
    "entry": "it is entry and exception code",
    "irqentry": "it is entry and exception code",
    "kprobes": "it is on the kernel's own do-not-probe list",
    "static call trampolines": "it is a static call trampoline, which the kernel rewrites",
    "thunks": "it is a branch thunk: whatever a probe calls returns through it",
    "idmap": "a CPU runs it without the kernel's page tables",
    "hypervisor": "it runs above the kernel, with page tables of its own",
    "not mapped": "the kernel runs it, or a copy of it, without its own page tables",
    "init": "it is init code, which is freed at the end of boot: --boot traces it",
}

HOOKED = "kinst's own hook is there"
_CLAUSE = "every probe's clause runs through it"
_FTRACE = "it is ftrace's own code, which the kernel copies and rewrites"
_COPIED = "the kernel runs a copy of it, or runs it without its own page tables"
_BRINGUP = "a CPU runs it before it can take a breakpoint"
_ON_THE_WAY = "every breakpoint runs through it, on its way to kinst's hook or back"

NAME_REASONS = {
    "find_bug": HOOKED,
    "search_exception_tables": HOOKED,
    "copy_from_kernel_nofault": _CLAUSE,
    "copy_from_kernel_nofault_allowed": _CLAUSE,
    "copy_to_kernel_nofault": _CLAUSE,
    "ftrace_caller": _FTRACE,
    "ftrace_regs_caller": _FTRACE,
    "ftrace_caller_op_ptr": _FTRACE,
    "ftrace_regs_caller_op_ptr": _FTRACE,
    "ftrace_call": _FTRACE,
    "ftrace_regs_call": _FTRACE,
    "ftrace_epilogue": _FTRACE,
    "ftrace_stub": _FTRACE,
    "ftrace_stub_graph": _FTRACE,
    "ftrace_graph_call": _FTRACE,
    "return_to_handler": _FTRACE,
    "__fentry__": _FTRACE,
    "relocate_kernel": _COPIED,
    "identity_mapped": _COPIED,
    "virtual_mapped": _COPIED,
    "swap_pages": _COPIED,
    "sme_encrypt_execute": _COPIED,
    "__enc_copy": _COPIED,
    "core_restore_code": _COPIED,
    "restore_image": _COPIED,
    "hypercall_page": _COPIED,
    "startup_64": _COPIED,
    "__startup_64": _COPIED,
    "startup_64_setup_env": _COPIED,
    "pvh_start_xen": _COPIED,
    "secondary_startup_64": _BRINGUP,
    "secondary_startup_64_no_verify": _BRINGUP,
    "__startup_secondary_64": _BRINGUP,
    "verify_cpu": _BRINGUP,
    "sev_verify_cbit": _BRINGUP,
    "start_cpu0": _BRINGUP,
    "vc_boot_ghcb": _BRINGUP,
    "do_vc_no_ghcb": _BRINGUP,
    "early_setup_idt": _BRINGUP,
    "start_secondary": _BRINGUP,
    "cr4_init": _BRINGUP,
    "cpu_init_exception_handling": _BRINGUP,
    "load_current_idt": _BRINGUP,
    "wakeup_long64": _BRINGUP,
    "restore_processor_state": _BRINGUP,
    "__restore_processor_state": _BRINGUP,
    "ftrace_common": _FTRACE,
    "_mcount": _FTRACE,
    "secondary_start_kernel": _BRINGUP,
    "_cpu_resume": _BRINGUP,
    "__cpu_suspend_exit": _BRINGUP,
    "__sdei_asm_handler": "the firmware calls it, whatever the CPU is doing",
    "__sdei_handler_abort": "the firmware calls it, whatever the CPU is doing",
    "_start": _BRINGUP,
    "relocate_enable_mmu": _BRINGUP,
    "secondary_start_sbi": _BRINGUP,
    "_start_kernel": _BRINGUP,
    "smp_callin": _BRINGUP,
    "__cpu_resume_enter": _BRINGUP,
    "suspend_restore_csrs": _BRINGUP,
    "__hibernate_cpu_resume": _BRINGUP,
    "hibernate_restore_image": _COPIED,
    "hibernate_core_restore_code": _COPIED,
    "riscv_kexec_norelocate": _COPIED,
    "riscv_v_context_nesting_start": _ON_THE_WAY,
    "riscv_v_context_nesting_end": _ON_THE_WAY,
}

# Functions that a breakpoint runs through on its way to kinst's die notifier and that the kernel's
# do-not-probe list lacks (kernel/notifier.c, kernel/rcu/tree_plugin.h), with the notifiers that the
# kernel calls earlier.
_NOTIFIED = "every breakpoint runs through it on its way to kinst"
NOTIFIED_REASONS = {
    "__rcu_read_lock": _NOTIFIED,
    "__rcu_read_unlock": _NOTIFIED,
    "rcu_read_unlock_special": _NOTIFIED,
    "kgdb_ll_trap": _NOTIFIED,
    "hw_breakpoint_exceptions_notify": _NOTIFIED,
}

# Functions that never return to their caller (tools/objtool/noreturns.h of Linux 5.10 to 7.3, those
# that traced code may call). nmi_panic() is not among them: it returns if its CPU is in panic().
NEVER_RETURN = (
    "panic", "nmi_panic_self_stop", "do_exit", "do_group_exit", "do_task_dead", "make_task_dead",
    "kthread_exit", "kthread_complete_and_exit", "complete_and_exit",
    "__module_put_and_kthread_exit", "__module_put_and_exit", "rewind_stack_and_make_dead",
    "rewind_stack_do_exit", "__stack_chk_fail", "__fortify_panic", "fortify_panic",
    "__ubsan_handle_builtin_unreachable", "usercopy_abort", "stop_this_cpu", "cpu_startup_entry",
    "machine_real_restart", "snp_abort", "sev_es_terminate", "__invalid_creds",
)  # fmt: skip
