"""Linux on riscv64 (arch/riscv).

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import PerCpu, VirtualLayout
from kinst.systems.linux.guest.boot import boot
from kinst.systems.linux.isafacts import CallNames, CallSite, FrameChain, IsaFacts
from kinst.systems.linux.ptregs import SavedRegisters

# Where the image can be (Documentation/arch/riscv/vm-layout.rst): the last 2 GB, of which the
# image's own gigabyte is the first, KASLR or not.
_IMAGE = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)
# Modules lie up to 2 GB below the image's end and are filled in from there; what reaches them and
# the text both is the gigabyte between, less the last 128 MB, which are for compiled BPF programs.
_SCRATCH = (0xFFFF_FFFF_0000_0000, 0xFFFF_FFFF_C000_0000)
_BPF = (0xFFFF_FFFF_7800_0000, 0xFFFF_FFFF_8000_0000)

_MEMBERS = (
    "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", *(f"a{i}" for i in range(8)),
    *(f"s{i}" for i in range(2, 12)), *(f"t{i}" for i in range(3, 7)),
)  # fmt: skip
_NOP = bytes.fromhex("13000000")
_AUIPC_T0 = 0x297


def _upper_half(distance: int) -> bytes:
    """auipc t0, as boot writes it in front of a nop that becomes a jalr by t0."""
    return (distance + 0x800 & 0xFFFF_F000 | _AUIPC_T0).to_bytes(4, "little")


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
    # Two nops for auipc and jalr; since 6.16 boot writes the auipc, and the record is the jalr's.
    call_sites=(CallSite((_NOP * 2,)), CallSite((_NOP,), head=_upper_half)),
    # The thread is in tp; while user mode has tp for itself it is in sscratch, which is else 0.
    thread_registers=("sscratch", "tp"),
    chain=FrameChain("R_SP", "R_S0", -16, -8, "R_RA", 0),
    link="R_RA",
    frame_registers={1: "R_RA", 2: "R_SP", 8: "R_S0"},
    # Since 6.6 by way of pt_regs; before that functions of C.
    system_calls=(
        CallNames("__riscv_sys_", tuple((n, 0) for n in ("orig_a0", "a1", "a2", "a3", "a4", "a5"))),
        CallNames("sys_", ()),
    ),
    boot=boot(
        image="arch/riscv/boot/Image", console="ttyS0", ports=("ttyS1", "ttyS2"),
        limit="mem={size}",
        # Page tables never show that it is about to start init: its text is mapped read-only from
        # early on (arch/riscv/mm/init.c).
    ),
)  # fmt: skip
