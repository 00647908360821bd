"""Facts about Linux on arm64 (arch/arm64).

Tested by tests/systems/linux/test_static_keys.py, test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import PerCpu, VirtualLayout
from kinst.systems.linux.guest.boot import boot, boot_code_is_freed
from kinst.systems.linux.isafacts import CallNames, CallSite, Dispatch, FrameChain, IsaFacts
from kinst.systems.linux.ptregs import SavedRegisters

# Addresses of modules, the image and vmalloc, with 48-bit addresses; the fixmap is above them
# (Documentation/arm64/memory.rst).
_IMAGE = (0xFFFF_8000_0000_0000, 0xFFFF_FBFF_F000_0000)


def _label_jump(address: int, target: int, size: int) -> bytes:
    """Return the jump (b) that Linux writes at a jump label (arch/arm64/kernel/jump_label.c).
    Raises OverflowError if the jump does not reach."""
    words = target - address >> 2
    if not -(1 << 25) <= words < 1 << 25:
        raise OverflowError
    return (0x1400_0000 | words & (1 << 26) - 1).to_bytes(size, "little")


_REGISTERS = tuple(("regs", 8 * n) for n in range(6))
_DISPATCHERS = ("invoke_syscall", "el0_svc_common.constprop.0", "el0_svc_common", "do_el0_svc")
_AARCH32 = 1 << 4  # PSR_MODE32_BIT of pstate


def _stored_result(code: bytes) -> tuple[str, int] | None:
    """Return where an instruction stores the result of a system call: (D name of the base register,
    offset). Return None if the instruction is not `str x0, [base, #offset]`.

    Source: Arm Architecture Reference Manual (DDI 0487), "STR (immediate)".
    """
    word = int.from_bytes(code, "little")
    if word & 0xFFC0_001F != 0xF900_0000:
        return None
    return f"R_X{word >> 5 & 31}", 8 * (word >> 10 & 0xFFF)


LINUX = IsaFacts(
    # Without KASLR vmalloc's addresses begin at the image: free addresses after it will be used.
    virtual_layout=VirtualLayout(_IMAGE, _IMAGE, grows_after_text=True),
    saved=SavedRegisters(
        {
            **{f"R_X{n}": ("regs", 8 * n) for n in range(31)},
            "R_FP": ("regs", 8 * 29), "R_LR": ("regs", 8 * 30),
            "R_SP": ("sp", 0), "R_PC": ("pc", 0), "R_PSTATE": ("pstate", 0),
        },
        # A return address may be signed, above the bits of the address.
        "R_PC", "R_SP", "R_FP", "R_LR", 0, 8, user_bits=48,
    ),
    unwound=("R_FP", "R_SP", "R_LR"),
    # All synchronous exceptions of EL1 enter these functions; the table of planted addresses tells
    # which exceptions are breakpoints of kinst.
    trap_hooks=("el1h_64_sync_handler", "el1_sync_handler"),
    pc="pc",
    pc_delta=0,
    clocksources=("arch_sys_counter",),
    per_cpu=PerCpu(None, "%tpidr_el1", "%sp_el0"),  # asm/percpu.h, asm/current.h
    page_tables="swapper_pg_dir",
    call_sites=(CallSite((bytes.fromhex("1f2003d5"),), before=4),),
    chain=FrameChain("R_SP", "R_FP", 0, 8, "", 0xFFFF << 48),
    label_nops=(bytes.fromhex("1f2003d5"),),
    label_jump=_label_jump,
    link="R_LR",
    frame_registers={29: "R_FP", 30: "R_LR", 31: "R_SP"},
    system_calls=(CallNames("__arm64_sys_", _REGISTERS),),
    dispatch=Dispatch(
        _DISPATCHERS, "sys_call_table", "syscallno", "regs", _stored_result, ("pstate", _AARCH32, 0)
    ),
    compat_calls=(CallNames("__arm64_compat_sys_", _REGISTERS),),
    compat_dispatch=Dispatch(
        _DISPATCHERS, "compat_sys_call_table", "syscallno", "regs", _stored_result,
        ("pstate", _AARCH32, _AARCH32),
    ),
    boot=boot(
        image="arch/arm64/boot/Image", console="ttyAMA0", ports=("ttyS0", "ttyS1"),
        limit="mem={size}",
        # With KASLR on QEMU's processor the kernel unmaps itself in user mode (KPTI), and each
        # system call changes address spaces twice.  QEMU then discards all translations, and a
        # read(2) takes 15 us instead of 1.5.
        parameters="kpti=off",
        # With KASLR modules may be anywhere within 2 GB of the kernel's image, and there may be no
        # address from which branches reach both.
        modules="nokaslr",
        text_is_final=boot_code_is_freed,
        # arch/arm64/kernel/head.S: `br x8`.
        leap=("__primary_switch", bytes.fromhex("00011fd6"), "x8", "__primary_switched"),
    ),
)  # fmt: skip
