"""Facts about Linux on one ISA.  The file with the ISA's name has the value.

Source: the kernel's arch/*/kernel/traps.c, entry*.S, ftrace.c, jump_label.c and
include/asm/ftrace.h; checked on the running kernels of Debian 12 (6.1) and 13 (6.12).

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kinst.core.boot import Boot
from kinst.core.errors import KinstError
from kinst.core.system import PerCpu, VirtualLayout
from kinst.systems.linux.ptregs import SavedRegisters


@dataclass(frozen=True, slots=True)
class FrameChain:
    """Frame records of a kernel that unwinds by frame pointers.

    Attributes:
        stack: D name of the stack pointer.
        frame: D name of the frame pointer.
        next_at: offset of the caller's frame pointer from the frame pointer.
        return_at: offset of the return address from the frame pointer.
        lone_link: D name of the register with the return address, if a function without calls
            saves only the frame pointer, directly below the caller's frame; otherwise "".
        high: bits that are set in each kernel address (a return address may be signed).
    """

    stack: str
    frame: str
    next_at: int
    return_at: int
    lone_link: str
    high: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """A layout of ftrace's call sites.

    Attributes:
        nops: the bytes that may be at a record's address while ftrace does not use it, all of one
            length.
        before: bytes before that address that boot writes for ftrace and that are final (arm64:
            mov x9, x30).
        head: if a call takes two instructions: returns the bytes of the first one, which boot
            writes and ftrace compares, for a distance to `caller`.
        caller: the function that call sites call first.
    """

    nops: tuple[bytes, ...]
    before: int = 0
    head: Callable[[int], bytes] | None = None
    caller: str = "ftrace_caller"

    @property
    def head_size(self) -> int:
        """Bytes of a call site before its record's address."""
        return len(self.head(0)) if self.head else 0

    @property
    def size(self) -> int:
        """Bytes of a call site."""
        return self.head_size + len(self.nops[0])

    def unused(self, distance: int) -> tuple[bytes, ...]:
        """Return the bytes that an unused call site may have, at this distance before `caller`."""
        head = self.head(distance) if self.head else b""
        return tuple(head + nop for nop in self.nops)


@dataclass(frozen=True, slots=True)
class CallNames:
    """Names and arguments of the functions of system calls (arch/*/include/asm/syscall_wrapper.h).

    Attributes:
        prefix: the name of a function is this prefix and the name of the system call.
        members: (member, bytes after its start) of the pt_regs that the function gets, for each of
            the program's arguments; () if the function gets the arguments themselves.
    """

    prefix: str
    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class IsaFacts:
    """Linux on one ISA.

    Attributes:
        virtual_layout: where its image and kinst's scratch may be.
        saved: struct pt_regs.
        unwound: D names of the registers that the kernel's unwinder needs.
        trap_hooks: names of the first C function that a breakpoint reaches, with pt_regs as its
            first argument, newest first.
        pc: the member of pt_regs with the program counter.
        pc_delta: saved program counter minus the address of the breakpoint instruction.
        clocksources: clock sources that count the cycles of the ISA's timestamp instruction.
        page_tables: symbol of the top level of the page tables that map the kernel in every
            context.
        call_sites: layouts of ftrace's call sites; a running kernel's code shows which one it has.
        per_cpu: how code reaches the data of its CPU, and the current thread.
        label_size: bytes of a jump label; 0 if it is 2 or 5, as its first byte tells.
        thread_registers: as in Facts.
        chain: how a stopped CPU is unwound by frame pointers; None if there are tables for that.
        link: D name of the register that holds the return address when a function is entered.
        frame_registers: D names, by DWARF number, of the registers from which a caller is found.
        system_calls: how the functions of system calls are named and find their arguments, newest
            kernels first.
        boot: how it is started in a virtual machine; None if kinst starts none.
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
    thread_registers: tuple[str, ...] = ()
    chain: FrameChain | None = None
    link: str = ""
    frame_registers: Mapping[int, str] = field(default_factory=dict)
    system_calls: tuple[CallNames, ...] = ()
    boot: Boot | None = None


def facts_of(isa: str) -> IsaFacts:
    """Return the facts about Linux on an ISA (Isa.name).  Raises KinstError if there are none."""
    folder = importlib.import_module("kinst.systems.linux")
    names = {info.name for info in pkgutil.iter_modules(folder.__path__)}
    module = importlib.import_module(f"kinst.systems.linux.{isa}") if isa in names else None
    facts: IsaFacts | None = getattr(module, "LINUX", None)
    if facts is None:
        raise KinstError(f"kinst does not know Linux on {isa}")
    return facts
