"""The fake kernel as a system that kinst knows.

The system tells its current task, its trap handler, its table of instructions that may fault, and
functions that must not be planted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from fnmatch import translate
from typing import cast

import numpy as np
import numpy.typing as npt

from kinst.core.basic_system import BasicSystem
from kinst.core.boot import Boot
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.isa import Isa
from kinst.core.machine import KernelLocation, Target
from kinst.core.probe import Function
from kinst.core.system import Access, Clock, Facts, PerCpu, Signals, System, VirtualLayout
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf
from kinst.systems import FileRules
from tests.fake.fake_machine import FakeMachine

MODULE = "vmlinux"
# struct task of kernel.c: offset and size of members.
PREEMPT_COUNT, CPU, TID, PID, UID, GID, COMM, PARENT = 0, 8, 12, 16, 20, 24, 28, 48
COMM_SIZE = 16
# struct per_cpu of kernel.c.
CURRENT, CPU_NUMBER = 0, 8
# Functions that a hit itself executes.
OWN = ("break_entry", "fault_entry", "handle_break", "find_fixup", "read_nofault", "write_nofault",
       "queue_work", "send_signal", "end_kernel", "save", "leave")  # fmt: skip
SIGNAL_OF_STOP = 19
CLOCK = Clock(0, 0, 1 << 10, 10, 1_000_000_000, 5_000_000)
PER_CPU = {
    "amd64": PerCpu(256),
    "arm64": PerCpu(None, "%tpidr_el1"),
    "riscv64": PerCpu(None, "", "%tp"),
}
TRAP_PC = {"amd64": (8 * 16, 1), "arm64": (8 * 31, 0), "riscv64": (0, 0)}  # offset, delta


def builtins(isa: str) -> dict[str, Access]:
    """Return how to find each built-in; riscv64 keeps the current task in a register."""
    per_cpu, thread = (None, True) if isa == "riscv64" else (CURRENT, False)

    def in_task(*offsets: int, size: int = 4) -> Access:
        return Access(per_cpu, offsets, size, thread=thread)

    number = in_task(CPU) if thread else Access(CPU_NUMBER, (), 4)
    return {
        "curthread": Access(per_cpu, (), 8, thread=thread),
        "cpu": number,
        "interrupt": in_task(PREEMPT_COUNT, size=4),
        "pid": in_task(PID),
        "tid": in_task(TID),
        "ppid": in_task(PARENT, PID),
        "uid": in_task(UID),
        "gid": in_task(GID),
        "execname": Access(per_cpu, (COMM,), COMM_SIZE, string=True, thread=thread),
    }


class FakeSystem(BasicSystem):
    """The System protocol (kinst/core/system.py) for the fake kernel.

    Attributes:
        forbidden: refused functions, each with its reason.
        call_sites: (address, size) of code that the kernel's own tracer may write.

    Args:
        traps: whether the kernel has a trap handler that can be hooked.
        nofault: whether the kernel has a read that cannot fault.
    """

    def __init__(self, machine: FakeMachine, *, traps: bool = True, nofault: bool = True) -> None:
        self._machine = machine
        self.forbidden: dict[str, str] = {}
        self.call_sites: set[tuple[int, int]] = set()
        self._leaves = False
        kernel = machine.kernel
        self._text = (kernel.address("text_start"), kernel.address("text_end"))
        offset, delta = TRAP_PC[machine.hardware]
        self.facts = Facts(
            os="fake",
            release="1",
            slide=0,
            cpus=machine.cpus,
            builtins=builtins(machine.hardware),
            nofault_read=kernel.address("read_nofault") if nofault else 0,
            nofault_write=kernel.address("write_nofault") if nofault else 0,
            panic=kernel.address("end_kernel"),
            signals=Signals(
                kernel.address("queue_work"), 16, kernel.address("send_signal"), SIGNAL_OF_STOP
            ),
            trap_hook=kernel.address("handle_break") if traps else 0,
            trap_pc_offset=offset,
            trap_pc_delta=delta,
            fault_hook=kernel.address("find_fixup"),
            per_cpu=PER_CPU[machine.hardware],
            per_cpu_bases=machine.per_cpu_bases,
            clock=CLOCK,
            interrupt_masks=(1 << 8, 0xFF0000),
            thread_registers=("tp",) if machine.hardware == "riscv64" else (),
        )
        found = [Function(MODULE, n, *kernel.symbols[n]) for n in kernel.functions]
        self._functions = sorted((f for f in found if f.size), key=lambda f: f.address)
        start, end = kernel.address("ex_table_start"), kernel.address("ex_table_end")
        table = machine.read(start, end - start)
        words = [int.from_bytes(table[i : i + 8], "little") for i in range(0, len(table), 8)]
        self._fixups = dict(zip(words[::2], words[1::2], strict=True))

    @property
    def text(self) -> tuple[int, int]:
        return self._text

    def clock(self) -> Clock:
        return CLOCK

    def functions(self) -> Sequence[Function]:
        return self._functions

    def lookup(self, name: str) -> Sequence[Function]:
        return [f for f in self._functions if f.name == name]

    def glob(self, pattern: str) -> Sequence[Function]:
        match = re.compile(translate(pattern)).match
        return [f for f in self._functions if match(f.name)]

    def function_at(self, address: int) -> Function | None:
        inside = (f for f in self._functions if f.address <= address < f.address + f.size)
        return next(inside, None)

    def refusals(self, function: Function) -> str:
        if function.name in OWN:
            return "a hit itself runs through it"
        return self.forbidden.get(function.name, "")

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        return ["it is left alone" if left else "" for left in self.left_to_tracer(sites)]

    def leaving_call_sites(self) -> FakeSystem:
        made = copy(self)
        made._leaves = True
        return made

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return [self._leaves and site in self.call_sites for site in sites]

    def code(self, address: int, size: int) -> bytes:
        return self._machine.read(address, size)

    def fixup(self, address: int) -> int | None:
        return self._fixups.get(address)

    def landings(self) -> npt.NDArray[np.uint64]:
        return np.array(sorted(set(self._fixups.values())), np.uint64)

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return self.left_to_tracer(sites)


class FakeSystemKind:
    """The SystemKind protocol (kinst/systems/__init__.py) for FakeSystem.

    Args:
        system: returned by attach(); if None, attach() makes one for the machine.
    """

    name = "fake"
    fallback = False
    hosts = False

    def __init__(self, system: FakeSystem | None = None) -> None:
        self._system = system

    def knows(self, elf: Elf) -> bool:
        return elf.address("ex_table_start") is not None

    def dialect(self) -> Dialect:
        return UNKNOWN

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        return None

    def boot(self, isa: Isa) -> Boot | None:
        return None

    def lacks(self, name: str, elf: Elf) -> str:
        return ""

    def of_file(self, elf: Elf) -> FileRules:
        raise NotImplementedError("the fake kernel is traced as it runs")

    def attach(self, target: Target, image: DebugInfo, location: KernelLocation) -> System:
        system = self._system or FakeSystem(cast(FakeMachine, target))
        assert location.text == system.text[0]
        return system
