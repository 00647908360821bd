"""What must be known of Linux on one ISA: a value for each, in the file of the ISA's name.

Sources: the kernel's arch/*/kernel/traps.c, entry*.S, ftrace.c, jump_label.c and
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
    """How a kernel that unwinds by frame pointers does it, for a stopped CPU.

    stack, frame: D names; next_at, return_at: of the caller's, from the frame pointer.
    lone_link: the D name of the return address's register, where a function that calls nothing
    saves the frame pointer alone, right below the caller's frame; else "".
    high: bits that are set in every kernel address (a return address may be signed)."""

    stack: str
    frame: str
    next_at: int
    return_at: int
    lone_link: str
    high: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """How ftrace's call sites are laid out.

    nops: what may stand at a record's address while ftrace does not use it; all of one length.
    before: bytes in front of it that boot has written for ftrace and that are final (arm64:
    mov x9, x30).  head: where a call takes two instructions, the first of them, which boot writes
    and ftrace compares: its bytes, from the distance to what it calls first (`caller`)."""

    nops: tuple[bytes, ...]
    before: int = 0
    head: Callable[[int], bytes] | None = None
    caller: str = "ftrace_caller"

    @property
    def head_size(self) -> int:
        """Bytes of a site in front of its record's address."""
        return len(self.head(0)) if self.head else 0

    @property
    def size(self) -> int:
        """Bytes of a site."""
        return self.head_size + len(self.nops[0])

    def unused(self, distance: int) -> tuple[bytes, ...]:
        """What a site may have while ftrace does not use it, so far in front of `caller`."""
        head = self.head(distance) if self.head else b""
        return tuple(head + nop for nop in self.nops)


@dataclass(frozen=True, slots=True)
class CallNames:
    """Functions of system calls: a prefix before the call's name, and the members of the pt_regs
    that is their argument, with bytes after their start, which are the program's arguments; without
    members these are the function's own (arch/*/include/asm/syscall_wrapper.h)."""

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
    """Of an ISA (Isa.name), by the file of its name.  Raises KinstError where there is none."""
    folder = importlib.import_module("kinst.systems.linux")
    known = {info.name for info in pkgutil.iter_modules(folder.__path__)}
    found = importlib.import_module(f"kinst.systems.linux.{isa}") if isa in known else None
    facts: IsaFacts | None = getattr(found, "LINUX", None)
    if facts is None:
        raise KinstError(f"kinst does not know Linux on {isa}")
    return facts
