"""Facts about Linux on riscv64 (arch/riscv).

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import PerCpu, VirtualLayout
from kinst.systems.linux.guest.boot import boot
from kinst.systems.linux.isafacts import CallNames, CallSite, Dispatch, FrameChain, IsaFacts
from kinst.systems.linux.ptregs import SavedRegisters

# Addresses of the image (Documentation/arch/riscv/vm-layout.rst): the first gigabyte of the last
# 2 GB, with or without KASLR.
_IMAGE = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)
# Modules are loaded from 2 GB below the image's end upwards.  Branches reach both them and the text
# from the gigabyte in between, whose last 128 MB are for compiled BPF programs.
_SCRATCH = (0xFFFF_FFFF_0000_0000, 0xFFFF_FFFF_C000_0000)
_BPF = (0xFFFF_FFFF_7800_0000, 0xFFFF_FFFF_8000_0000)

_MEMBERS = (
    "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", *(f"a{i}" for i in range(8)),
    *(f"s{i}" for i in range(2, 12)), *(f"t{i}" for i in range(3, 7)),
)  # fmt: skip
_NOP = bytes.fromhex("13000000")
_AUIPC_T0 = 0x297


def _upper_half(distance: int) -> bytes:
    """Return the `auipc t0` instruction that boot writes at a call site of ftrace. A nop follows
    it, which ftrace replaces by a `jalr` that uses t0.

    Args:
        distance: bytes from the call site to the function that it calls.
    """
    return (distance + 0x800 & 0xFFFF_F000 | _AUIPC_T0).to_bytes(4, "little")


def _label_jump(address: int, target: int, size: int) -> bytes:
    """Return the jump (jal with x0) that Linux writes at a jump label
    (arch/riscv/kernel/jump_label.c). Raises OverflowError if the jump does not reach."""
    distance = target - address
    if not -(1 << 20) <= distance < 1 << 20:
        raise OverflowError
    code = (
        0x6F
        | (distance & 0xFF000)
        | (distance >> 11 & 1) << 20
        | (distance >> 1 & 0x3FF) << 21
        | (distance >> 20 & 1) << 31
    )
    return code.to_bytes(size, "little")


_NAMES = ("zero", *_MEMBERS)  # of x0 to x31
_EXC_SYSCALL = 8
_ALL = (1 << 32) - 1


def _stored_result(code: bytes) -> tuple[str, int] | None:
    """Return where an instruction stores the result of a system call: (D name of the base register,
    offset). Return None if the instruction is not `sd a0, offset(base)`.

    Source: The RISC-V Instruction Set Manual, "sd" and "c.sd".
    """
    word = int.from_bytes(code, "little")
    if len(code) == 2 and word & 0xE01F == 0xE008:  # c.sd a0
        offset = (word >> 10 & 7) << 3 | (word >> 5 & 3) << 6
        return f"R_{_NAMES[8 + (word >> 7 & 7)].upper()}", offset
    if len(code) == 4 and word & 0x01F0_707F == 0x00A0_3023:
        offset = word >> 25 << 5 | word >> 7 & 31
        return f"R_{_NAMES[word >> 15 & 31].upper()}", offset - (offset >> 11 << 12)
    return None


LINUX = IsaFacts(
    virtual_layout=VirtualLayout(_IMAGE, _SCRATCH, (_BPF,)),
    saved=SavedRegisters(
        {
            **{f"R_{name.upper()}": (name, 0) for name in _MEMBERS},
            "R_FP": ("s0", 0), "R_PC": ("epc", 0), "R_SSTATUS": ("status", 0),
            "R_PS": ("status", 0),
        },
        "R_PC", "R_SP", "R_S0", "R_RA", -16, -8,
    ),
    unwound=("R_S0", "R_SP", "R_RA"),
    trap_hooks=("do_trap_break",),
    pc="epc",
    pc_delta=0,
    clocksources=("riscv_clocksource",),
    per_cpu=PerCpu(None, "", "%tp"),
    page_tables="swapper_pg_dir",
    # A call site is two nops, for auipc and jalr; since Linux 6.16 boot writes the auipc, and
    # ftrace's records have the address of the jalr.
    call_sites=(CallSite((_NOP * 2,)), CallSite((_NOP,), head=_upper_half)),
    # In kernel mode tp holds the thread's address and sscratch is 0; in user mode sscratch holds
    # the thread's address.
    thread_registers=("sscratch", "tp"),
    chain=FrameChain("R_SP", "R_S0", -16, -8, "R_RA", 0),
    label_nops=(_NOP,),
    label_jump=_label_jump,
    link="R_RA",
    frame_registers={1: "R_RA", 2: "R_SP", 8: "R_S0"},
    # Since Linux 6.6 the functions of system calls get pt_regs; before, they got the arguments
    # themselves.
    system_calls=(
        CallNames("__riscv_sys_", tuple((n, 0) for n in ("orig_a0", "a1", "a2", "a3", "a4", "a5"))),
        CallNames("sys_", ()),
    ),
    # rt_sigreturn restores a7, and sets cause to -1 (arch/riscv/kernel/signal.c).
    dispatch=Dispatch(
        ("do_trap_ecall_u",), "sys_call_table", "a7", "a0", _stored_result,
        ("cause", _ALL, _EXC_SYSCALL),
    ),
    boot=boot(
        image="arch/riscv/boot/Image", console="ttyS0", ports=("ttyS1", "ttyS2"),
        limit="mem={size}",
        # Page tables never show that the kernel is about to start init: they map its text read-only
        # from early on (arch/riscv/mm/init.c).
    ),
)  # fmt: skip
