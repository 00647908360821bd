"""Facts about Linux on amd64 (arch/x86).

Tested by tests/systems/linux/test_static_keys.py, test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import PerCpu, VirtualLayout
from kinst.systems.linux.guest.boot import boot, text_is_protected
from kinst.systems.linux.isafacts import CallNames, CallSite, Dispatch, IsaFacts
from kinst.systems.linux.ptregs import SavedRegisters

# Addresses of the kernel's text: from __START_KERNEL_map to the modules
# (Documentation/arch/x86/x86_64/mm.rst).
_IMAGE = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)

# Where the direct mapping of all memory begins, with page tables of 4 and 5 levels, since Linux
# 4.20, and bytes of its beginning.
_DIRECT = (0xFFFF_8880_0000_0000, 0xFF11_0000_0000_0000)
_DIRECT_SIZE = 1 << 40

_MEMBERS = (
    ("R_R15", "r15"), ("R_R14", "r14"), ("R_R13", "r13"), ("R_R12", "r12"), ("R_RBP", "bp"),
    ("R_RBX", "bx"), ("R_R11", "r11"), ("R_R10", "r10"), ("R_R9", "r9"), ("R_R8", "r8"),
    ("R_RAX", "ax"), ("R_RCX", "cx"), ("R_RDX", "dx"), ("R_RSI", "si"), ("R_RDI", "di"),
    ("R_RIP", "ip"), ("R_RFL", "flags"), ("R_RSP", "sp"), ("R_CS", "cs"),
    ("R_SS", "ss"),
)  # fmt: skip


def _label_jump(address: int, target: int, size: int) -> bytes:
    """Return the jump that Linux writes at a jump label: a jmp rel8 if `size` is 2 bytes, otherwise
    a jmp rel32 (arch/x86/kernel/jump_label.c). Raises OverflowError if the jump does not reach."""
    opcode = b"\xeb" if size == 2 else b"\xe9"
    return opcode + (target - address - size).to_bytes(size - 1, "little", signed=True)


_ENCODED = (
    "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI",
    *(f"R{n}" for n in range(8, 16)),
)  # fmt: skip


def _stored_result(code: bytes) -> tuple[str, int] | None:
    """Return where an instruction stores the result of a system call: (D name of the base register,
    offset). Return None if the instruction is not `mov %rax, offset(base)`.

    Source: Intel's manual, volume 2, "MOV" and table 2-2.
    """
    if len(code) < 4 or code[0] not in (0x48, 0x49) or code[1] != 0x89:
        return None
    mode, register, base = code[2] >> 6, code[2] >> 3 & 7, code[2] & 7
    size = {1: 1, 2: 4}.get(mode)
    sib = code[3:4] if base == 4 else b""
    if register or size is None or sib not in (b"", b"\x24") or len(code) != 3 + len(sib) + size:
        return None
    offset = int.from_bytes(code[-size:], "little", signed=True)
    return f"R_{_ENCODED[base + 8 * (code[0] & 1)]}", offset


_COMPAT = tuple((name, 0) for name in ("bx", "cx", "dx", "si", "di", "bp"))

LINUX = IsaFacts(
    virtual_layout=VirtualLayout(_IMAGE, _IMAGE),
    saved=SavedRegisters(
        {name: (member, 0) for name, member in _MEMBERS},
        "R_RIP", "R_RSP", "R_RBP", "", 0, 8,
        # __KERNEL_CS and __KERNEL_DS: with registers of user mode the unwinder would stop at once.
        (("cs", 0x10), ("ss", 0x18)),
        # Kernels with FRED leave room at the top of the stack (TOP_OF_KERNEL_STACK_PADDING).
        ("asm_fred_entrypoint_user", 16),
    ),
    # Every register that an ORC rule may name (arch/x86/include/asm/orc_types.h).
    unwound=("R_RSP", "R_RBP", "R_RDX", "R_RDI", "R_R10", "R_R13"),
    trap_hooks=("exc_int3",),
    pc="ip",
    pc_delta=1,
    clocksources=("tsc", "tsc-early"),
    per_cpu=PerCpu(256),  # gs
    page_tables="init_top_pgt",
    # nopl 0(%rax,%rax,1); before Linux 5.13 the nop depends on the processor: 66 66 66 66 90 on
    # some.
    call_sites=(CallSite((bytes.fromhex("0f1f440000"), bytes.fromhex("6666666690"))),),
    label_size=0,
    label_nops=(bytes.fromhex("0f1f440000"), bytes.fromhex("6666666690"), bytes.fromhex("6690")),
    label_jump=_label_jump,
    system_calls=(CallNames(
        "__x64_sys_", tuple((name, 0) for name in ("di", "si", "dx", "r10", "r8", "r9"))
    ),),
    dispatch=Dispatch(
        ("do_syscall_64",), "sys_call_table", "orig_ax", "ax", _stored_result,
        leave="syscall_exit_to_user_mode", jump_size=5,
    ),
    compat_calls=(CallNames("__ia32_compat_sys_", _COMPAT), CallNames("__ia32_sys_", _COMPAT)),
    # Kernels from 6.9 on, and older ones with the same changes, have no such table.
    compat_dispatch=Dispatch(
        ("do_int80_syscall_32", "__do_fast_syscall_32", "do_int80_emulation"),
        "ia32_sys_call_table", "orig_ax", "ax", _stored_result,
        leave="syscall_exit_to_user_mode", jump_size=5,
    ),
    boot=boot(
        image="arch/x86/boot/bzImage", console="ttyS0", ports=("ttyS1", "ttyS2"),
        limit="mem={end}",
        # tsc=reliable: all CPUs of a QEMU have one cycle counter.  The kernel cannot know that;
        # with this parameter it keeps time by the counter.  no_timer_check: the kernel checks its
        # timer by counting ticks; on a busy host ticks may be late, and the kernel would panic
        # ("IO-APIC + timer doesn't work!", seen once).
        parameters="tsc=reliable no_timer_check",
        text_is_final=text_is_protected,
        # KASLR chooses among 500 addresses, and with so many breakpoints the decompressor takes a
        # minute.  But the first data that x86_64_start_kernel() reads by the direct mapping of all
        # memory are the boot parameters (arch/x86/kernel/head64.c, copy_bootdata()), and that
        # mapping is randomised later, in setup_arch().
        touched=tuple((base, _DIRECT_SIZE) for base in _DIRECT),
    ),
)  # fmt: skip
