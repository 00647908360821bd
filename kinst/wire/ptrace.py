"""Making another process execute system calls, as a debugger does.

kinst stops the process's first thread and makes it execute the calls; the other threads run on. One
thread of kinst must make all calls of an InjectedCalls object. If kinst is killed, the thread of
the process restores its own registers (wire/signal_frame.py).

Source: ptrace(2) and syscall(2). For how the kernel restarts an interrupted call, by the values of
orig_rax and rax: the kernel's arch/x86/kernel/signal.c."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kinst.core.errors import TargetError
from kinst.core.words import MASK
from kinst.wire.other_process import OtherProcess, permitted
from kinst.wire.signal_frame import frame, instructions_of

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_SEIZE, _INTERRUPT, _GETREGS, _SETREGS, _DETACH = 0x4206, 0x4207, 12, 13, 17
_CONTINUE, _TO_CALL = 7, 24  # the second: until a system call begins or ends
_CALLS_APART = 1  # PTRACE_O_TRACESYSGOOD: tells stops at system calls from SIGTRAP
_GETREGSET, _GETSIGMASK, _SETSIGMASK, _XSTATE = 0x4204, 0x420A, 0x420B, 0x202
_WALL = 0x4000_0000
_MOST_STATE = 1 << 16  # bytes of a thread's vector registers
_STOP = 128  # PTRACE_EVENT_STOP
_AT_CALL = signal.SIGTRAP | 0x80

# user_regs_struct (sys/user.h) of x86_64, in its order.
REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi",
    "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs",
    "gs",
)  # fmt: skip
REGISTERS_FORMAT = f"<{len(REGISTERS)}Q"
CALL_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
SYSCALL = b"\x0f\x05"
_MMAP, _CLOSE, _FTRUNCATE, _MADVISE, _MEMFD_CREATE = 9, 3, 77, 28, 319
_ERRORS = 4095
_BELOW = 1024  # bytes below the stack pointer, beyond the red zone
_MAP_FIXED = 0x10


def ptrace_request(request: int, pid: int, address: int = 0, data: object = None) -> None:
    """Make a request of ptrace(2). Raises OSError.

    Args:
        request: the request's number.
        pid: id of a thread that the calling thread traces.
    """
    if _LIBC.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_registers(pid: int) -> dict[str, int]:
    """Return the general registers of a stopped thread by name. Raises OSError."""
    raw = ctypes.create_string_buffer(struct.calcsize(REGISTERS_FORMAT))
    ptrace_request(_GETREGS, pid, 0, ctypes.addressof(raw))
    return dict(zip(REGISTERS, struct.unpack(REGISTERS_FORMAT, raw.raw), strict=True))


def write_registers(pid: int, registers: Mapping[str, int]) -> None:
    """Set all general registers of a stopped thread. Raises OSError."""
    data = struct.pack(REGISTERS_FORMAT, *(registers[name] & MASK for name in REGISTERS))
    raw = ctypes.create_string_buffer(data, len(data))
    ptrace_request(_SETREGS, pid, 0, ctypes.addressof(raw))


def read_state(pid: int) -> bytes:
    """Return the floating-point and vector registers of a stopped thread, in the format
    NT_X86_XSTATE. Raises OSError."""
    raw = ctypes.create_string_buffer(_MOST_STATE)
    where = (ctypes.c_size_t * 2)(ctypes.addressof(raw), _MOST_STATE)  # struct iovec
    ptrace_request(_GETREGSET, pid, _XSTATE, ctypes.addressof(where))
    return raw.raw[: where[1]]


def read_blocked(pid: int) -> int:
    """Return the signal mask of a stopped thread. Raises OSError."""
    raw = ctypes.c_uint64()
    ptrace_request(_GETSIGMASK, pid, ctypes.sizeof(raw), ctypes.addressof(raw))
    return raw.value


def write_blocked(pid: int, mask: int) -> None:
    """Set the signal mask of a stopped thread. Raises OSError."""
    raw = ctypes.c_uint64(mask)
    ptrace_request(_SETSIGMASK, pid, ctypes.sizeof(raw), ctypes.addressof(raw))


def syscall_instruction(process: OtherProcess) -> int | None:
    """Return the address of a syscall instruction in a process's vdso (vdso(7)); None if it has
    none."""
    for mapping in process.mappings():
        if mapping.path == "[vdso]":
            at = process.read(mapping.start, mapping.size).find(SYSCALL)
            if at >= 0:
                return mapping.start + at
    return None


def can_trace() -> str:
    """Return why kinst cannot make other processes of this host execute system calls; "" if it
    can."""
    machine = platform.machine()
    return "" if machine == "x86_64" else f"kinst cannot do this on hosts with {machine}"


@contextmanager
def calls_in(process: OtherProcess) -> Iterator[InjectedCalls]:
    """Stop the first thread of a process, and yield an object that makes system calls in it. The
    thread runs on after the with block.

    Raises:
        TargetError: the process may not be traced, or it ends.
    """
    pid = process.pid
    try:
        ptrace_request(_SEIZE, pid, 0, _CALLS_APART)
    except OSError as error:
        tracer = process.tracer
        why = f"process {tracer} traces it" if tracer else error.strerror
        hint = "end that first" if tracer else permitted()
        raise TargetError(f"process {pid} cannot be traced: {why}", hint) from error
    calls = InjectedCalls(process)
    try:
        calls.prepare()
        yield calls
    except OSError as error:
        raise TargetError(f"process {pid} has ended: {error.strerror}") from error
    finally:
        try:
            calls.let_go()
        except BaseException:
            # If this failed half-way, the thread would stay stopped until kinst ends: try again.
            calls.let_go()
            raise


class InjectedCalls:
    """Makes the first thread of another process execute system calls. calls_in() stops the thread
    and yields this object."""

    def __init__(self, process: OtherProcess) -> None:
        self._process = process
        self._pid = process.pid
        self._before: dict[str, int] | None = None
        self._signals: list[int] = []
        self._code = 0
        self._stack = 0  # the thread's stack pointer in a system call
        self._called = False

    def prepare(self) -> None:
        """Stop the first thread of the other process, and prepare the thread for system calls. To
        be called once."""
        ptrace_request(_INTERRUPT, self._pid)
        self._stopped()
        self._before = self._registers()
        self._stack = self._before["rsp"]
        instructions = instructions_of(self._process)
        if instructions is None:
            self._code = self._syscall_instruction()
            return
        self._code, back = instructions
        state, blocked = read_state(self._pid), read_blocked(self._pid)
        self._stack, data = frame(self._before, state, blocked, back)
        self._process.write(self._stack, data)

    def _stopped(self) -> None:
        """Wait until the other process's thread has stopped because of PTRACE_INTERRUPT. Where the
        thread then is, the kernel has not yet decided whether to restart a system call."""
        while (status := self._wait()) >> 16 != _STOP:
            self._note(os.WSTOPSIG(status))
            ptrace_request(_CONTINUE, self._pid)

    def let_go(self) -> None:
        """Restore the registers of the other process's thread, let the thread run, and deliver the
        signals that arrived meanwhile."""
        try:
            if self._called:
                ptrace_request(_INTERRUPT, self._pid)
                ptrace_request(_CONTINUE, self._pid)
                self._stopped()
            if self._before is not None:
                self._set(self._before)
            ptrace_request(_DETACH, self._pid)
            for number in self._signals:
                os.kill(self._pid, number)
        except (OSError, TargetError):
            pass  # the process has ended

    def _wait(self) -> int:
        _, status = os.waitpid(self._pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise TargetError(f"process {self._pid} has ended")
        return status

    def _note(self, number: int) -> None:
        """Store the number of a signal that the other process's thread has got meanwhile. let_go()
        delivers it."""
        if number not in (signal.SIGTRAP, signal.SIGSTOP, _AT_CALL):
            self._signals.append(number)

    def _registers(self) -> dict[str, int]:
        return read_registers(self._pid)

    def _set(self, registers: dict[str, int]) -> None:
        write_registers(self._pid, registers)

    def _syscall_instruction(self) -> int:
        """Return the address of a syscall instruction in the other process: in the vdso (vdso(7))
        or, if there is none, directly before the stopped thread's program counter."""
        found = syscall_instruction(self._process)
        if found is not None:
            return found
        before = self._before
        assert before is not None
        at = before["rip"] - len(SYSCALL)
        if self._process.read(at, len(SYSCALL)) == SYSCALL:
            return at
        raise TargetError(f"process {self._pid} has no system call instruction that kinst can use")

    def call(self, number: int, *arguments: int) -> int:
        """Make the other process's thread execute a system call, and return the call's result.
        Raises TargetError if the call fails."""
        assert self._before is not None
        argument_registers = dict(zip(CALL_ARGUMENTS, arguments, strict=False))
        call_registers = {"rip": self._code, "rsp": self._stack, "rax": number, "orig_rax": MASK}
        self._set({**self._before, **argument_registers, **call_registers})
        self._called = True
        for _ in ("the call begins", "the call ends"):
            ptrace_request(_TO_CALL, self._pid)
            while (stopped := os.WSTOPSIG(self._wait())) != _AT_CALL:
                self._note(stopped)
                ptrace_request(_TO_CALL, self._pid)
        result = self._registers()["rax"]
        if result > MASK - _ERRORS:
            why = os.strerror(-(result - (1 << 64)))
            raise TargetError(f"process {self._pid} cannot make a system call for kinst: {why}")
        return result

    # The calls that kinst needs.

    def make_memory(self, name: str, size: int) -> int:
        """Create a file in memory of `size` bytes in the other process (memfd_create(2)), and
        return the file descriptor that the other process has for it.

        Args:
            name: name of the file, for people.
            size: bytes.
        """
        assert self._before is not None
        at = (self._stack - _BELOW) & -16
        text = name.encode() + b"\0"
        kept = self._process.read(at, len(text))
        self._process.write(at, text)
        try:
            number = self.call(_MEMFD_CREATE, at, 1)
        finally:
            self._process.write(at, kept)
        self.call(_FTRUNCATE, number, size)
        return number

    def map_file(self, address: int, size: int, descriptor: int, offset: int) -> None:
        """Map a file that the other process has opened, shared, at an address of that process. The
        mapping replaces what is mapped there."""
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_SHARED | _MAP_FIXED
        self.call(_MMAP, address, size, rights, flags, descriptor, offset)

    def map_anonymous(self, address: int, size: int) -> None:
        """Map zeroed pages at an address of the other process. The mapping replaces what is mapped
        there."""
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        self.call(_MMAP, address, size, rights, flags, MASK, 0)

    def close_file(self, descriptor: int) -> None:
        self.call(_CLOSE, descriptor)
