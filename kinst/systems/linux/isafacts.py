"""Types for facts about Linux on one ISA. The module with an ISA's name has the facts.

Source: the kernel's arch/*/kernel/traps.c, entry*.S, ftrace.c, jump_label.c and
include/asm/ftrace.h; checked on the running kernels of Debian 12 (6.1) and 13 (6.12).

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import field

from kinst.core.boot import Boot
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.members import member_names
from kinst.core.system import PerCpu, VirtualLayout
from kinst.systems.linux.ptregs import SavedRegisters


@dataclass(frozen=True, slots=True)
class FrameChain:
    """Layout of frame records, for a kernel that is unwound by frame pointers.

    Attributes:
        stack: D name of the stack pointer.
        frame: D name of the frame pointer.
        next_at: offset of the caller's frame pointer from the frame pointer.
        return_at: offset of the return address from the frame pointer.
        lone_link: D name of the register with the return address, for an ISA on which a function
            without calls does not save this address. Such a function saves only the caller's frame
            pointer, at `return_at`. "" if every frame record has a return address.
        high: the bits of a kernel address in which a signature (pointer authentication) may be. The
            unwinder sets them to 1, their value in every kernel address. 0 if return addresses are
            never signed.
    """

    stack: str
    frame: str
    next_at: int
    return_at: int
    lone_link: str
    high: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """A layout that ftrace's call sites may have.

    Attributes:
        nops: the byte strings, all of one length, that may be at the record's address while ftrace
            does not use the call site.
        before: number of bytes before the record's address that boot writes for ftrace, and that
            never change again (arm64: mov x9, x30).
        head: function that returns the bytes of the first instruction of ftrace's call, if this
            call is two instructions (riscv64: auipc and jalr). Its argument is the distance in
            bytes from the call site to the function `caller`. Boot writes the first instruction,
            and ftrace later expects it there. None if the call is one instruction.
        caller: name of the kernel's function that the call leads to. Unused if `head` is None.
    """

    nops: tuple[bytes, ...]
    before: int = 0
    head: Callable[[int], bytes] | None = None
    caller: str = "ftrace_caller"

    @property
    def head_size(self) -> int:
        """Number of bytes of a call site that lie before the address in its record."""
        return len(self.head(0)) if self.head else 0

    @property
    def size(self) -> int:
        """Size of a call site in bytes."""
        return self.head_size + len(self.nops[0])

    def unused(self, distance: int) -> tuple[bytes, ...]:
        """Return each byte string that a call site may hold while ftrace does not use it.

        Args:
            distance: bytes from the call site to the kernel's function `caller`; used only if a
                call is two instructions.
        """
        head = self.head(distance) if self.head else b""
        return tuple(head + nop for nop in self.nops)


@dataclass(frozen=True, slots=True)
class CallNames:
    """How a kernel names the functions of its system calls, and where these functions find their
    arguments (arch/*/include/asm/syscall_wrapper.h).

    Attributes:
        prefix: what a function's name has before the name of the system call.
        members: where each argument of the system call is in struct pt_regs: (member, bytes after
            the member's start). The function then gets only the address of pt_regs. () if the
            function gets the arguments of the system call directly.
    """

    prefix: str
    members: tuple[tuple[str, int], ...]


def no_jump(address: int, target: int, size: int) -> bytes:
    """Raise OverflowError. This is the default of IsaFacts.label_jump, for an ISA on which kinst
    does not know the jump of a jump label."""
    raise OverflowError


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How a kernel calls the functions of its system calls by number, and stores their results in
    pt_regs.

    Attributes:
        functions: possible names of the functions that store results; each kernel has at least one
            of them.
        table: symbol of the kernel's table of functions, by number of the system call.
        number: the member of pt_regs with the number of the system call.
        result: the member of pt_regs in which the kernel stores the result.
        store: takes the bytes of an instruction. Returns where the instruction stores the whole
            result register: (D name of the base register, offset from it); None if it does not
            store it.
        state: (member, mask, value): `table` is used only if this member of pt_regs, masked with
            `mask`, is `value`. None if it is always used.
        leave: name of a function that the kernel calls, with the address of pt_regs, after it has
            stored a result; "" if there is none.
        jump_size: size in bytes of the jump that kinst plants. If the instruction that stores the
            result is shorter, kinst plants the call of `leave` instead.
    """

    functions: tuple[str, ...]
    table: str
    number: str
    result: str
    store: Callable[[bytes], tuple[str, int] | None]
    state: tuple[str, int, int] | None = None
    leave: str = ""
    jump_size: int = 0


@dataclass(frozen=True, slots=True)
class IsaFacts:
    """Facts about Linux on one ISA.

    Attributes:
        virtual_layout: where the kernel's image and kinst's scratch may be mapped.
        saved: the layout of struct pt_regs.
        unwound: D names of the registers that the kernel's unwinder needs.
        trap_hooks: possible names of the first C function that a breakpoint reaches, names of newer
            kernels first. Its first argument is pt_regs.
        pc: the member of pt_regs with the program counter.
        pc_delta: saved program counter minus the address of the breakpoint instruction.
        clocksources: clock sources that count the cycles of the ISA's timestamp instruction.
        page_tables: symbol of the top level of the page tables that map the kernel in every
            context.
        call_sites: layouts of ftrace's call sites; a running kernel's code shows which layout it
            has.
        per_cpu: how code reaches the data of its CPU, and the current thread.
        label_size: size of a jump label in bytes; 0 if it is 2 or 5, depending on the label's first
            byte (x86).
        label_nops: nops that the kernel may have at a jump label.
        label_jump: a function (address, target, size) that returns the jump that the kernel writes
            at a jump label; it raises OverflowError if no jump of that size reaches the target.
        thread_registers: registers that may hold the current thread's address, by the stub's names;
            the first that exists and is not 0 holds the address.
        chain: layout of frame records, by which stopped CPUs are unwound; None if they are unwound
            by ORC tables.
        link: D name of the register that holds the return address when a function is entered; "" if
            calls push it.
        frame_registers: D names, by DWARF number, of the registers from which a caller is found.
        system_calls: how the functions of system calls are named and find their arguments;
            conventions of newer kernels first.
        dispatch: how system calls are called by number; None if kinst does not know.
        compat_calls: naming conventions of the functions that only 32-bit programs enter; for each
            system call, kinst uses the first convention by which there is a function.
        compat_dispatch: how the system calls of 32-bit programs are called by number; None if kinst
            does not know.
        boot: how QEMU boots the kernel; None if kinst boots none on this ISA.
    """

    virtual_layout: VirtualLayout
    saved: SavedRegisters
    unwound: tuple[str, ...]
    trap_hooks: tuple[str, ...]
    pc: str
    pc_delta: int
    clocksources: tuple[str, ...]
    page_tables: str
    call_sites: tuple[CallSite, ...]
    per_cpu: PerCpu
    label_size: int = 4
    label_nops: tuple[bytes, ...] = ()
    label_jump: Callable[[int, int, int], bytes] = no_jump
    thread_registers: tuple[str, ...] = ()
    chain: FrameChain | None = None
    link: str = ""
    frame_registers: Mapping[int, str] = field(default_factory=dict)
    system_calls: tuple[CallNames, ...] = ()
    dispatch: Dispatch | None = None
    compat_calls: tuple[CallNames, ...] = ()
    compat_dispatch: Dispatch | None = None
    boot: Boot | None = None

    @property
    def label_sizes(self) -> tuple[int, ...]:
        """The sizes that a jump label may have, in bytes."""
        return (self.label_size,) if self.label_size else (5, 2)


def facts_of(isa: str) -> IsaFacts:
    """Return the facts about Linux on the ISA with this name (Isa.name). Raises KinstError if there
    are none."""
    folder = importlib.import_module("kinst.systems.linux")
    known = isa in member_names(folder.__path__)
    module = importlib.import_module(f"kinst.systems.linux.{isa}") if known else None
    facts: IsaFacts | None = getattr(module, "LINUX", None)
    if facts is None:
        raise KinstError(f"kinst does not know Linux on {isa}")
    return facts
