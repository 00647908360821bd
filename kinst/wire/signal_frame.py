"""A signal frame on the stack of another process's thread. By it the thread restores its own
registers after a system call that kinst makes it execute.

Usually kinst restores the thread's registers after the call (wire/ptrace.py). If kinst is killed
before that, the thread runs on with the registers of the call. So kinst makes the call at the
instructions `syscall; ret`, with the stack pointer at a frame like that of a signal handler: `ret`
leads to rt_sigreturn(2), which restores all registers from the frame.

Source: the kernel's arch/x86/include/asm/sigframe.h and include/uapi/asm/sigcontext.h (struct
rt_sigframe, sigcontext_64, _fpx_sw_bytes), and arch/x86/kernel/fpu/signal.c for its checks.

Tested by tests/machines/attach/test_guardian.py and tests/vm/attach.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kinst.core.errors import TargetError
from kinst.core.words import MASK
from kinst.wire.other_process import OtherProcess

_SYSCALL_RETURN = b"\x0f\x05\xc3"
_RESTORE = bytes.fromhex("48c7c00f0000000f05")  # mov $15, %rax; syscall: how handlers return
_ORDER = (
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax",
    "rcx", "rsp", "rip", "eflags",
)  # fmt: skip
_FLAGS = 7  # UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
_NO_STACK = 0x77  # no mode of sigaltstack(2): keeps the thread's setting
_RED_ZONE = 256  # bytes below the stack pointer to leave alone: the red zone, and some more
_FRAME = 512  # bytes for struct rt_sigframe
_LEGACY = 464  # offset in the saved state of the sizes that a signal frame holds
_MAGIC, _MAGIC_END = 0x46505853, 0x46505845
_EINTR = -4
_RESTARTS = range(-516, -511)  # internal results of system calls that the kernel will restart


def instructions_of(process: OtherProcess) -> tuple[int, int] | None:
    """Return two addresses in a process: that of the instructions `syscall; ret`, and that of the
    code by which signal handlers return.

    kinst searches the C library, and the program itself, which may be linked statically. Return
    None if neither contains both pieces of code.
    """
    program = process.file
    for mapping in process.mappings():
        is_library = "libc" in mapping.path.rpartition("/")[2] or mapping.path == program
        if "x" in mapping.rights and is_library:
            code = process.read(mapping.start, mapping.size)
            call, back = code.find(_SYSCALL_RETURN), code.find(_RESTORE)
            if call >= 0 and back >= 0:
                return mapping.start + call, mapping.start + back
    return None


def frame(registers: Mapping[str, int], state: bytes, blocked: int, back: int) -> tuple[int, bytes]:
    """Return the signal frame for a thread that will make a system call: (address of the frame,
    bytes of the frame). The address is also the stack pointer for the call.

    The thread may have been interrupted in a system call of its own, which the kernel would
    restart. The frame makes this interrupted call return EINTR instead.

    Args:
        registers: the thread's registers, by ptrace(2)'s names.
        state: the thread's floating-point and vector registers (NT_X86_XSTATE).
        blocked: the thread's signal mask.
        back: address of the code by which signal handlers return, from instructions_of().

    Raises:
        TargetError: the state does not fit into a signal frame.
    """
    size = len(state)
    if size < _LEGACY + 48 + 64:
        raise TargetError("the state of a thread's vector registers is not known")
    places = (registers["rsp"] - _RED_ZONE - size - 4) & -64
    at = (places - _FRAME) & -16
    values = {**registers}
    result = values["rax"] - (1 << 64) if values["rax"] >> 63 else values["rax"]
    if not values["orig_rax"] >> 63 and result in _RESTARTS:
        values["rax"] = _EINTR & MASK
    context = struct.pack(
        "<18Q4H4Q", *(values[name] for name in _ORDER), values["cs"], 0, 0, values["ss"],
        0, 0, 0, 0,
    )  # fmt: skip
    context += struct.pack("<Q64x", places)
    features = state[_LEGACY : _LEGACY + 8]
    about = struct.pack("<II8sI28x", _MAGIC, size + 4, features, size)
    kept = state[:_LEGACY] + about + state[_LEGACY + len(about) :] + struct.pack("<I", _MAGIC_END)
    data = struct.pack("<QQQQiiQ", back, _FLAGS, 0, 0, _NO_STACK, 0, 0) + context
    data += struct.pack("<Q", blocked)
    return at, data.ljust(places - at, b"\0") + kept
