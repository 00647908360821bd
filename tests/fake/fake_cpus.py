"""The processors of the fake machine: one emulator (unicorn) each, all on the same memory of this
process.

Two things that a processor does by itself are done here, because unicorn 2.1.4 does them
differently for each instruction set: on arm64 it takes kernel code that is not executable for the
user as not executable at all, and on amd64 it turns the second page fault into a double fault.
Here, page tables are walked when the emulator asks for a page.  An exception (breakpoint or page
fault) is taken on the stack of the interrupted code, at the kernel's symbols break_entry and
fault_entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import unicorn
from unicorn import arm64_const as a
from unicorn import riscv_const as r
from unicorn import x86_const as x

_UNICORN: Any = unicorn  # it has no types
Uc, UcError = _UNICORN.Uc, _UNICORN.UcError

MASK = (1 << 64) - 1


class EmulationError(Exception):
    """The processor cannot continue."""


@dataclass(frozen=True)
class Memory:
    """Physical memory.

    Attributes:
        base, size: its range of physical addresses, [base, base + size).
        native: its address in this process.
        view: its bytes.
    """

    base: int
    size: int
    native: int
    view: memoryview

    def read(self, physical: int, size: int) -> bytes:
        at = physical - self.base
        return bytes(self.view[at : at + size])

    def write(self, physical: int, data: bytes) -> None:
        at = physical - self.base
        self.view[at : at + len(data)] = data


class Virtual(Protocol):
    """The kernel's virtual memory."""

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


@dataclass(frozen=True)
class Entries:
    """Addresses at which the kernel takes exceptions."""

    breakpoint: int
    fault: int


@dataclass(frozen=True)
class Page:
    """Mapping of an address: physical address and access rights (UC_PROT_*)."""

    physical: int
    rights: int


class Cpu:
    """Base class of the processors of all ISAs.

    Attributes:
        ids: unicorn's registers by the GDB stub's names.
    """

    ids: ClassVar[Mapping[str, int]]
    pc: str
    sp: str
    arguments: tuple[str, ...]
    result: str
    arch: int
    mode: int
    smallest_page = 4096  # granularity in which the emulator asks for pages

    def __init__(
        self,
        memory: Memory,
        page: Callable[[int], Page | None],
        entries: Entries,
        virtual: Virtual,
    ) -> None:
        """Create the emulator; `page` walks the page tables for an address."""
        self.uc = Uc(self.arch, self.mode)
        self.uc.mem_map_ptr(memory.base, memory.size, unicorn.UC_PROT_ALL, memory.native)
        self.uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        self._page = page
        self._entries = entries
        self._virtual = virtual
        self._breakpoints: dict[int, Any] = {}
        self._lifted = -1
        self.stopped_at = -1  # the breakpoint that ended run(), or -1
        self._fatal = ""
        self._unmapped = False
        self.uc.hook_add(unicorn.UC_HOOK_INTR, self._on_exception)
        self.uc.hook_add(unicorn.UC_HOOK_TLB_FILL, self._on_page)
        self.start()

    def start(self) -> None:
        """Set supervisor mode, with interrupts enabled as in a working kernel."""
        raise NotImplementedError

    def set_per_cpu(self, base: int, thread: int) -> None:
        """Set the registers that lead to this CPU's data and to its current thread."""
        raise NotImplementedError

    def deliver(self, to: int, pc: int) -> None:
        """Take an exception at pc; `to` is the kernel's entry."""
        raise NotImplementedError

    def exception(self, number: int) -> tuple[str, int]:
        """Return the kind of a unicorn exception ("breakpoint", "emulated" or "") and its pc."""
        raise NotImplementedError

    def invalid(self) -> bool:
        """Deliver a breakpoint that unicorn calls an invalid instruction; return whether it was
        one."""
        return False

    def registers(self) -> dict[str, int]:
        values = self.uc.reg_read_batch(list(self.ids.values()))
        return dict(zip(self.ids, values, strict=True))

    def get(self, name: str) -> int:
        return int(self.uc.reg_read(self.ids[name]))

    def set(self, name: str, value: int) -> None:
        self.uc.reg_write(self.ids[name], value & MASK)

    def prepare(self, function: int, arguments: Sequence[int], stack: int, back: int) -> None:
        """Set up a call of a function, for run().

        Args:
            stack: upper end of the stack.
            back: return address.
        """
        raise NotImplementedError

    def run(self, until: int, instructions: int = 0) -> None:
        """Run to `until`, to a breakpoint (stopped_at), or for a number of instructions (0: no
        limit).

        Raises:
            EmulationError: the processor cannot continue.
        """
        self.stopped_at, self._fatal, self._unmapped = -1, "", False
        while True:
            try:
                self.uc.emu_start(self.get(self.pc), until, count=instructions)
            except UcError as error:
                at = self.get(self.pc)
                if self._unmapped and error.errno == unicorn.UC_ERR_EXCEPTION:
                    self._unmapped = False
                    self.deliver(self._entries.fault, at)
                    continue
                if error.errno == unicorn.UC_ERR_INSN_INVALID and self.invalid():
                    continue
                raise EmulationError(f"{error} at {at:#x}") from error
            if self._fatal:
                raise EmulationError(self._fatal)
            if self.stopped_at >= 0:
                self.set(self.pc, self.stopped_at)
            return

    def step(self) -> None:
        """Run one instruction, even if there is a breakpoint at it."""
        self._lifted = self.get(self.pc)
        try:
            self.run(0, 1)
        finally:
            self._lifted = -1

    def insert(self, address: int) -> None:
        hook = self.uc.hook_add(unicorn.UC_HOOK_CODE, self._on_breakpoint, None, address, address)
        self._breakpoints[address] = hook
        self.flush()

    def remove(self, address: int) -> None:
        self.uc.hook_del(self._breakpoints.pop(address))
        self.flush()

    def watch(self, address: int, seen: Callable[[Mapping[str, int]], None]) -> None:
        """Call `seen` with the registers each time before the instruction at this address runs."""

        def on_code(_uc: Any, at: int, _size: int, _data: Any) -> None:
            seen(self.registers() | {self.pc: at & MASK})

        self.uc.hook_add(unicorn.UC_HOOK_CODE, on_code, None, address, address)

    def flush(self) -> None:
        """Discard translated code and cached page tables."""
        self.uc.ctl_flush_tb()
        self.uc.ctl(unicorn.UC_CTL_TLB_FLUSH, unicorn.UC_CTL_IO_WRITE)

    def _on_page(self, _uc: Any, address: int, _access: int, entry: Any, _data: Any) -> bool:
        page = self._page(address & MASK)
        if page is None:
            self._unmapped = True
            return False
        entry.paddr = page.physical & -self.smallest_page
        entry.perms = page.rights
        return True

    def _on_breakpoint(self, uc: Any, address: int, _size: int, _data: Any) -> None:
        if address & MASK != self._lifted:
            self.stopped_at = address & MASK
            uc.emu_stop()

    def _on_exception(self, uc: Any, number: int, _data: Any) -> None:
        kind, pc = self.exception(number)
        if kind == "breakpoint":
            self.deliver(self._entries.breakpoint, pc)
        elif not kind:
            self._fatal = f"exception {number} at {pc:#x}"
            uc.emu_stop()


class Amd64(Cpu):
    """A processor of amd64.

    Source: Intel SDM volume 3, 6.12 "Exception and Interrupt Handling" and 6.14 (the 64-bit
    frame).
    """

    ids: ClassVar = {
        name: getattr(x, f"UC_X86_REG_{name.upper()}")
        for name in (
            "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp",
            *(f"r{n}" for n in range(8, 16)), "rip", "eflags",
            "cs", "ss", "ds", "es", "fs", "gs", "fs_base", "gs_base",
        )
    }  # fmt: skip
    pc, sp, result = "rip", "rsp", "rax"
    arguments = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
    arch, mode = unicorn.UC_ARCH_X86, unicorn.UC_MODE_64
    _INTERRUPTS = 1 << 9

    def start(self) -> None:
        self.set("eflags", self._INTERRUPTS | 2)

    def set_per_cpu(self, base: int, thread: int) -> None:
        self.set("gs_base", base)

    def prepare(self, function: int, arguments: Sequence[int], stack: int, back: int) -> None:
        on_stack = arguments[len(self.arguments) :]
        frame = b"".join(value.to_bytes(8, "little") for value in (back, *on_stack))
        top = ((stack - len(frame)) & -16) - 8
        self._virtual.write(top, frame)
        self.set("rsp", top)
        for name, value in zip(self.arguments, arguments, strict=False):
            self.set(name, value)
        self.set("rip", function)

    def exception(self, number: int) -> tuple[str, int]:
        # A breakpoint is a trap: the saved pc is the address after it.
        return {3: "breakpoint"}.get(number, ""), self.get("rip")

    def deliver(self, to: int, pc: int) -> None:
        flags, stack = self.get("eflags"), self.get("rsp")
        pushed = [pc, self.get("cs"), flags, stack, self.get("ss")]
        if to == self._entries.fault:
            pushed.insert(0, 0)  # the error code
        top = (stack & -16) - 8 * len(pushed)
        self._virtual.write(top, b"".join(value.to_bytes(8, "little") for value in pushed))
        self.set("rsp", top)
        self.set("eflags", flags & ~self._INTERRUPTS)
        self.set("rip", to)


class Arm64(Cpu):
    """A processor of arm64.  Source: Arm ARM (DDI 0487), D1.3 "Exceptions"."""

    ids: ClassVar = {
        **{f"x{n}": getattr(a, f"UC_ARM64_REG_X{n}") for n in range(31)},
        "sp": a.UC_ARM64_REG_SP, "pc": a.UC_ARM64_REG_PC, "cpsr": a.UC_ARM64_REG_PSTATE,
    }  # fmt: skip
    pc, sp, result = "pc", "sp", "x0"
    arguments = tuple(f"x{n}" for n in range(8))
    arch, mode = unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM
    _MASKED = 0x3C0  # DAIF
    _EL1H = 5
    # (crn, crm, op0, op1, op2)
    _ELR, _SPSR, _SP_EL0 = (4, 0, 3, 0, 1), (4, 0, 3, 0, 0), (4, 1, 3, 0, 0)
    smallest_page = 1024

    def _system(self, register: tuple[int, ...], value: int) -> None:
        self.uc.reg_write(a.UC_ARM64_REG_CP_REG, (*register, value))

    def start(self) -> None:
        self.set("cpsr", self._EL1H)

    def set_per_cpu(self, base: int, thread: int) -> None:
        self.uc.reg_write(a.UC_ARM64_REG_TPIDR_EL1, base)
        self._system(self._SP_EL0, thread)

    def prepare(self, function: int, arguments: Sequence[int], stack: int, back: int) -> None:
        on_stack = arguments[len(self.arguments) :]
        frame = b"".join(value.to_bytes(8, "little") for value in on_stack)
        top = (stack - len(frame)) & -16
        self._virtual.write(top, frame)
        self.set("sp", top)
        self.set("x30", back)
        for name, value in zip(self.arguments, arguments, strict=False):
            self.set(name, value)
        self.set("pc", function)

    def exception(self, number: int) -> tuple[str, int]:
        return {7: "breakpoint"}.get(number, ""), self.get("pc")

    def deliver(self, to: int, pc: int) -> None:
        state = self.get("cpsr")
        self._system(self._ELR, pc)
        self._system(self._SPSR, state)
        self.set("cpsr", state & ~0xF | self._MASKED | self._EL1H)
        self.set("pc", to)


_ABI = (
    "ra", "sp", "gp", "tp", "t0", "t1", "t2", "fp", "s1", *(f"a{i}" for i in range(8)),
    *(f"s{i}" for i in range(2, 12)), *(f"t{i}" for i in range(3, 7)),
)  # fmt: skip


class Riscv64(Cpu):
    """A processor of riscv64.  Source: RISC-V privileged specification, 4.1: sstatus, sepc."""

    ids: ClassVar = {
        **{name: getattr(r, f"UC_RISCV_REG_X{n}") for n, name in enumerate(_ABI, 1)},
        "pc": r.UC_RISCV_REG_PC, "sstatus": r.UC_RISCV_REG_SSTATUS,
    }  # fmt: skip
    pc, sp, result = "pc", "sp", "a0"
    arguments = tuple(f"a{n}" for n in range(8))
    arch, mode = unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64
    _SUPERVISOR = 1
    _SIE, _SPIE, _SPP = 1 << 1, 1 << 5, 1 << 8
    _ILLEGAL = 2
    _RDTIME, _RD = 0xC0102073, 7
    _BREAKPOINTS = (b"\x02\x90", b"\x73\x00\x10\x00")

    ticks = 0

    def start(self) -> None:
        self.uc.reg_write(r.UC_RISCV_REG_PRIV, self._SUPERVISOR)
        self.set("sstatus", self._SIE)

    def set_per_cpu(self, base: int, thread: int) -> None:
        self.set("tp", thread)

    def prepare(self, function: int, arguments: Sequence[int], stack: int, back: int) -> None:
        on_stack = arguments[len(self.arguments) :]
        frame = b"".join(value.to_bytes(8, "little") for value in on_stack)
        top = (stack - len(frame)) & -16
        self._virtual.write(top, frame)
        self.set("sp", top)
        self.set("ra", back)
        for name, value in zip(self.arguments, arguments, strict=False):
            self.set(name, value)
        self.set("pc", function)

    def exception(self, number: int) -> tuple[str, int]:
        pc = self.get("pc") - 4  # unicorn's pc is 4 bytes further for every instruction
        if number != self._ILLEGAL:
            return "", pc
        # A hart without a clock of its own leaves rdtime to the firmware.
        word = int.from_bytes(self._virtual.read(pc, 4), "little")
        if word & ~(31 << self._RD) != self._RDTIME:
            return "", pc
        self.ticks += 1
        if word >> self._RD & 31:
            self.uc.reg_write(r.UC_RISCV_REG_X0 + (word >> self._RD & 31), self.ticks)
        self.set("pc", pc + 4)
        return "emulated", pc

    def invalid(self) -> bool:
        pc = self.get("pc")
        if not any(self._virtual.read(pc, len(code)) == code for code in self._BREAKPOINTS):
            return False
        self.deliver(self._entries.breakpoint, pc)
        return True

    def deliver(self, to: int, pc: int) -> None:
        status = self.get("sstatus")
        kept = status & ~(self._SIE | self._SPIE) | self._SPP
        self.uc.reg_write(r.UC_RISCV_REG_SEPC, pc)
        self.set("sstatus", kept | (self._SPIE if status & self._SIE else 0))
        self.set("pc", to)


CPUS: Mapping[str, type[Cpu]] = {"amd64": Amd64, "arm64": Arm64, "riscv64": Riscv64}
