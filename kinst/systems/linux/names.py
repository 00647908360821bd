"""What Linux calls things, and how it writes them into code, on each ISA.

Sources: the kernel's arch/*/kernel/traps.c, entry*.S, ftrace.c, jump_label.c and
include/asm/ftrace.h; checked on the running kernels of Debian 12 (6.1) and 13 (6.12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst.core.errors import KinstError


@dataclass(frozen=True, slots=True)
class IsaNames:
    """One row.

    trap_hook: the first C function that a breakpoint reaches, with pt_regs as its first argument.
    pc: pt_regs' program counter.  pc_delta: saved pc minus the breakpoint instruction's address.
    clocksources: those whose cycles are the ones of the ISA's timestamp instruction.
    page_tables: the top level of the page tables that map the kernel in every context.
    call_site: the bytes of ftrace's call site while it is not in use.  before_call_site: bytes
    in front of it that boot has written for ftrace and that are final (arm64: mov x9, x30).
    label_size: bytes of a jump label; 0: 2 or 5, as its first byte tells.
    thread_registers: as in Facts; riscv64 has the thread in tp, and in sscratch, which is else 0,
    while user mode has tp for itself.
    link: D name of the register that holds the return address when a function is entered.
    frame_registers: D names, by DWARF number, of the registers from which a caller is found.
    """

    trap_hook: str
    pc: str
    pc_delta: int
    clocksources: tuple[str, ...]
    page_tables: str
    call_site: bytes
    before_call_site: int = 0
    label_size: int = 4
    thread_registers: tuple[str, ...] = ()
    link: str = ""
    frame_registers: Mapping[int, str] = field(default_factory=dict)


ISA_NAMES = {
    "amd64": IsaNames(
        "exc_int3", "ip", 1, ("tsc", "tsc-early"), "init_top_pgt",
        bytes.fromhex("0f1f440000"), label_size=0,
    ),
    "arm64": IsaNames(
        # Everything that EL1 brings upon itself comes here first; what a breakpoint is, the
        # table of planted addresses knows.
        "el1h_64_sync_handler", "pc", 0, ("arch_sys_counter",), "swapper_pg_dir",
        bytes.fromhex("1f2003d5"), before_call_site=4, link="R_LR",
        frame_registers={29: "R_FP", 30: "R_LR", 31: "R_SP"},
    ),
    "riscv64": IsaNames(
        "do_trap_break", "epc", 0, ("riscv_clocksource",), "swapper_pg_dir",
        bytes.fromhex("13000000") * 2, thread_registers=("sscratch", "tp"), link="R_RA",
        frame_registers={1: "R_RA", 2: "R_SP", 8: "R_S0"},
    ),
}  # fmt: skip


def names_of(isa: str) -> IsaNames:
    """The row of an ISA (Isa.name).  Raises KinstError where there is none."""
    names = ISA_NAMES.get(isa)
    if names is None:
        raise KinstError(f"kinst does not know Linux on {isa}", f"it knows {', '.join(ISA_NAMES)}")
    return names
