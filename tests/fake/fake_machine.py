"""A machine in memory: the fake kernel, its page tables and emulated CPUs, as a target of kinst.

Time passes only in wait().  A workload is a list of calls of kernel functions.  While the machine
runs, its CPUs make their calls in turns of some instructions each.  This is deterministic: the
same workload executes the same instructions in the same order every time.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import unicorn

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import (
    Abilities,
    CommandEnded,
    Complaint,
    Gone,
    KernelLocation,
    MachineConfig,
    MachineEvent,
    Stopped,
    Target,
)
from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option
from kinst.core.page_tables import ENTRIES, LEAF_SIZE, Root, shift
from kinst.core.system import VirtualLayout
from kinst.image.elf import STT_FUNC, open_elf
from kinst.image.elf_file import PT_LOAD
from kinst.isa import load
from kinst.machines.stub.memory import GuestMemory
from kinst.machines.stub.scan import pointers_in, replace_in
from tests.fake.fake_cpus import CPUS, Cpu, EmulationError, Entries, Memory, Page
from tests.fake.fake_kernel_file import kernel_file

PAGE, LEAF, MB = 4096, 2 << 20, 1 << 20
TURN = 1000  # instructions that a CPU runs before the next CPU does
COMMAND_PID = 4711

# Offsets in physical memory.
RAM = 0x4000_0000
TABLES = (0, MB)
PER_CPU, PER_CPU_SIZE = 2 * MB, MB
STACKS, STACK_SIZE = 7 * MB, 64 << 10
KERNEL = 8 * MB
DIRECT_SIZE = 12 * MB  # size of the direct mapping
SCRATCH = DIRECT_SIZE  # memory before it is searched for live return addresses


@dataclass(frozen=True)
class Addresses:
    """Virtual addresses of an ISA's kernel.

    Attributes:
        direct: start of the direct mapping of RAM.
        scratch: range in which scratch may be mapped.
        levels: number of levels of the page tables.
    """

    direct: int
    scratch: tuple[int, int]
    levels: int


ADDRESSES = {
    "amd64": Addresses(0xFFFF_8880_0000_0000, (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000), 4),
    "arm64": Addresses(0xFFFF_0000_0000_0000, (0xFFFF_8000_0000_0000, 0xFFFF_8000_4000_0000), 4),
    "riscv64": Addresses(0xFFFF_FFD6_0000_0000, (0xFFFF_FFFF_4000_0000, 0xFFFF_FFFF_C000_0000), 3),
}


@dataclass(frozen=True)
class Entry:
    """Format of an ISA's page table entries.  Sources: kinst/isa.

    Attributes:
        table: bits of an entry for a table.
        code: bits of a leaf for code.
        data: bits of a leaf for data.
        right: bits that an address is shifted right by.
    """

    table: int
    code: int
    data: int
    right: int = 0


ENTRY = {
    # present, accessed, dirty, large, global; data: writable, not executable
    "amd64": Entry(0x63, 0x1E1, 0x1E3 | 1 << 63),
    # accessed, shareable, not executable for the user; code: read-only; data: not for the kernel
    "arm64": Entry(3, 0x701 | 1 << 54 | 1 << 7, 0x701 | 1 << 54 | 1 << 53),
    # accessed, dirty, global; code: readable, executable; data: readable, writable
    "riscv64": Entry(1, 0xEB, 0xE7, 2),
}


@dataclass(frozen=True)
class Call:
    """A call of a kernel function on a CPU."""

    function: str
    arguments: tuple[int, ...] = ()
    cpu: int = 0


@dataclass(frozen=True)
class Kernel:
    """The kernel's file: symbols, functions, and segments with their offsets from the start of
    text."""

    symbols: Mapping[str, tuple[int, int]]  # address and size by name
    functions: tuple[str, ...]
    segments: tuple[tuple[int, bytes], ...]

    def address(self, name: str) -> int:
        return self.symbols[name][0]


@cache
def read_kernel(file: Path) -> Kernel:
    elf = open_elf(file)
    table = elf.symbols
    names = table.names_of(range(len(table)))
    places = zip(table.address.tolist(), table.size.tolist(), strict=True)
    symbols = {name: place for name, place in zip(names, places, strict=True) if name}
    functions = tuple(
        name for name, kind in zip(names, table.kind, strict=True) if kind == STT_FUNC
    )
    start = symbols["text_start"][0]
    segments = tuple(
        (s.address - start, elf.mapped[s.offset : s.offset + s.file_size])
        for s in elf.segments
        if s.kind == PT_LOAD and s.file_size and s.address >= start
    )
    return Kernel(symbols, functions, segments)


class Physical:
    """The fake machine's implementation of kinst.machines.stub.memory.Physical."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def read_physical(self, address: int, size: int) -> bytes:
        self._check(address, size)
        return self._memory.read(address, size)

    def write_physical(self, address: int, data: bytes) -> None:
        self._check(address, len(data))
        at = address - self._memory.base
        self._memory.view[at : at + len(data)] = data

    def _check(self, address: int, size: int) -> None:
        if (
            not self._memory.base
            <= address
            <= address + size
            <= self._memory.base + self._memory.size
        ):
            raise TargetError(f"physical address {address:#x} is not in the machine's memory")


class Virtual:
    """The kernel's virtual memory, writable."""

    def __init__(self, memory: GuestMemory, physical: Physical) -> None:
        self._memory, self._physical = memory, physical

    def read(self, address: int, size: int) -> bytes:
        return self._memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        done = 0
        for at, length in self._memory.pieces(address, len(data)):
            self._physical.write_physical(at, data[done : done + length])
            done += length


@dataclass
class Work:
    """Pending calls of a CPU, and the results of the calls that have returned."""

    calls: list[Call] = field(default_factory=list)
    inside: bool = False
    results: list[int] = field(default_factory=list)


class FakeMachine(Target):
    """The Target protocol (kinst/core/machine.py) over emulated CPUs.

    A new machine is stopped.

    Args:
        scratch: bytes of scratch for kinst, 0 for a machine without.
        hardware: the ISA of the emulated CPUs, if kinst is told another.
        file: its kernel, if not kernel_file().
    """

    abilities = Abilities(writes_code=True, runs_commands=True, switches=True)

    def __init__(
        self,
        isa: str,
        cpus: int = 2,
        scratch: int = 128 * MB,
        *,
        hardware: str = "",
        file: Path | None = None,
    ) -> None:
        self.isa: Isa = load(isa)
        self.hardware = hardware or isa
        self.cpus = cpus
        self.file = file or kernel_file(self.hardware)
        self.kernel = read_kernel(self.file)
        self.addresses = ADDRESSES[self.hardware]
        self.workload: Sequence[Call] = ()
        self.turn = TURN
        self.running = False
        self.commands: list[str] = []
        self.warnings: list[Complaint] = []
        self.can_scan = True  # whether its memory can be searched for pointers
        self._scratch_size = scratch
        self._map = mmap.mmap(-1, SCRATCH + scratch + MB)
        native = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._ram = Memory(RAM, len(self._map), native, memoryview(self._map))
        self._paging = self.isa.paging
        self._physical = Physical(self._ram)
        half = TABLES[1] // 2
        self.memory = GuestMemory(self._paging, self._physical, (RAM + half, half))
        self._next_table = RAM
        self._levels = self.addresses.levels
        self._root = self._new_table()
        self._boot(self.hardware)
        self.memory.set_root(Root(self._root, self._levels))
        self.virtual = Virtual(self.memory, self._physical)
        entries = Entries(self.address("break_entry"), self.address("fault_entry"))
        self.processors: list[Cpu] = [
            CPUS[self.hardware](self._ram, self._page, entries, self.virtual) for _ in range(cpus)
        ]
        self._work = [Work() for _ in range(cpus)]
        self._started = False
        self._gone = ""
        self.closed = False
        self._inserted: set[int] = set()
        for number, processor in enumerate(self.processors):
            thread = self.address("tasks") + number * (self.kernel.symbols["tasks"][1] // 4)
            base = self.per_cpu_bases[number]
            area = thread.to_bytes(8, "little") + number.to_bytes(8, "little")
            self.virtual.write(base, area)
            processor.set_per_cpu(base, thread)

    # Boot.

    def _new_table(self) -> int:
        self._next_table += PAGE
        return self._next_table - PAGE

    def _boot(self, isa: str) -> None:
        text = self.address("text_start")
        for offset, data in self.kernel.segments:
            self._ram.write(RAM + KERNEL + offset, data)
        self._map_leaf(text, RAM + KERNEL, ENTRY[isa].code)
        self._map_leaf(text + LEAF, RAM + KERNEL + LEAF, ENTRY[isa].data)
        for at in range(0, DIRECT_SIZE, LEAF):
            self._map_leaf(self.addresses.direct + at, RAM + at, ENTRY[isa].data)

    def _map_leaf(self, virtual: int, physical: int, bits: int) -> None:
        form, table = ENTRY[self.hardware], self._root
        for level in range(self._levels, 2, -1):
            at = table + 8 * (virtual >> shift(level) & (ENTRIES - 1))
            if not int.from_bytes(self._ram.read(at, 8), "little"):
                made = self._new_table() >> form.right | form.table
                self._ram.write(at, made.to_bytes(8, "little"))
            entry = int.from_bytes(self._ram.read(at, 8), "little")
            table = (entry << form.right) & ((1 << 48) - PAGE)
        at = table + 8 * (virtual >> shift(2) & (ENTRIES - 1))
        self._ram.write(at, (physical >> form.right | bits).to_bytes(8, "little"))

    def _page(self, address: int) -> Page | None:
        """Walk the page tables as a processor in kernel mode does."""
        root = Root(self._root, self._levels)
        leaf = self._paging.walk(self._physical.read_physical, root, address)
        if leaf is None:
            return None
        rights = unicorn.UC_PROT_READ
        rights |= unicorn.UC_PROT_WRITE if leaf.writable else 0
        rights |= unicorn.UC_PROT_EXEC if leaf.executable else 0
        return Page(leaf.physical + address - leaf.address, rights)

    # For tests.

    def address(self, symbol: str) -> int:
        return self.kernel.address(symbol)

    def word(self, symbol: str) -> int:
        return int.from_bytes(self.read(self.address(symbol), 8), "little")

    @property
    def per_cpu_bases(self) -> tuple[int, ...]:
        first = self.addresses.direct + PER_CPU
        return tuple(first + number * PER_CPU_SIZE for number in range(self.cpus))

    @property
    def breakpoints(self) -> frozenset[int]:
        """Return the addresses of inserted breakpoints."""
        return frozenset(self._inserted)

    @property
    def text(self) -> bytes:
        low, high = self.address("text_start"), self.address("text_end")
        return self.memory.read(low, high - low)

    def results(self, cpu: int = 0) -> list[int]:
        """Return the results of the calls that a CPU has made."""
        return self._work[cpu].results

    @property
    def idle(self) -> bool:
        """Return whether the whole workload is done."""
        return self._started and not any(w.calls or w.inside for w in self._work)

    def begin(self, workload: Sequence[Call] = ()) -> None:
        """Give the CPUs their work, which they do while the machine runs."""
        for call in workload or self.workload:
            self._work[call.cpu].calls.append(call)
        self._started = True

    def run_all(self, workload: Sequence[Call]) -> None:
        """Run a workload to its end, without kinst."""
        self.begin(workload)
        self.resume()
        while not self.idle:
            event = self.wait(10)
            assert event is None, event
        self.stop()

    # The protocol.

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Return the addresses; the fake machine is up from the start."""
        text = self._paging.find_text(
            self._physical.read_physical, self.memory.root, self.virtual_layout.image
        )
        return KernelLocation(text, (self.address("break_entry"),))

    @property
    def virtual_layout(self) -> VirtualLayout:
        """Return the range of the kernel and the range for scratch."""
        start = self.address("text_start")
        return VirtualLayout((start, start + 2 * LEAF), self.addresses.scratch)

    def stop(self) -> None:
        self.running = False

    def resume(self) -> None:
        self.running = True

    def read(self, address: int, size: int) -> bytes:
        return self.memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        self.memory.write(address, data)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        raise TargetError(f"{address:#x} is an address of the kernel, not of a process")

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        assert not ranges or not self.running, "memory is looked through while the machine runs"
        view = self._ram.view
        pieces = (view[TABLES[1] : SCRATCH], view[SCRATCH + self._scratch_size :])
        return pointers_in(pieces, ranges) if self.can_scan else None

    def move(self, places: Mapping[int, int]) -> None:
        assert not self.running and self.can_scan
        view = self._ram.view
        replace_in((view[TABLES[1] : SCRATCH], view[SCRATCH + self._scratch_size :]), places)
        for processor in self.processors:
            for name, value in processor.registers().items():
                if value in places:
                    processor.set(name, places[value])

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        assert not self.running, "text is written while the machine runs"
        for address, data in self.memory.physical_writes(writes):
            self._ram.write(address, data)
        for processor in self.processors:
            processor.flush()

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        assert not self.running, "page tables are written while the machine runs"
        if not self._scratch_size:
            return None
        if size > self._scratch_size:
            raise TargetError(
                f"scratch of {size} bytes was asked for, there are {self._scratch_size}"
            )
        frames = range(RAM + SCRATCH, RAM + SCRATCH + size, LEAF_SIZE)
        found = self.memory.map_near(frames, near, self.virtual_layout, reach or near, data)
        self._flush()
        return found

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        assert not self.running, "page tables are written while the machine runs"
        physical = RAM + SCRATCH + scratch_offset
        frames = range(physical, physical + size, LEAF_SIZE)
        done = self.memory.map_at(frames, virtual, self.address("text_start"))
        self._flush()
        return done

    def _flush(self) -> None:
        for processor in self.processors:
            processor.flush()

    def scratch_view(self) -> memoryview:
        return self._ram.view[SCRATCH : SCRATCH + self._scratch_size]

    def registers(self, cpu: int) -> Mapping[str, int]:
        assert not self.running, "registers are read while the machine runs"
        return self.processors[cpu].registers()

    def write_registers(self, cpu: int, values: Mapping[str, int]) -> None:
        assert not self.running
        for name, value in values.items():
            self.processors[cpu].set(name, value)

    def insert_breakpoint(self, address: int) -> None:
        assert not self.running
        if address not in self._inserted:
            self._inserted.add(address)
            for processor in self.processors:
                processor.insert(address)

    def remove_breakpoint(self, address: int) -> None:
        assert not self.running
        if address in self._inserted:
            self._inserted.remove(address)
            for processor in self.processors:
                processor.remove(address)

    def step_over(self, cpu: int, address: int) -> None:
        assert not self.running
        assert self.processors[cpu].get(self.processors[cpu].pc) == address
        self._step(self.processors[cpu])

    def _step(self, processor: Cpu) -> None:
        try:
            processor.step()
        except EmulationError as error:
            self._gone = str(error)

    def wait(self, timeout: float) -> MachineEvent | None:
        if self._gone:
            return Gone(self._gone)
        deadline = time.monotonic() + timeout
        while self.running and not self.idle and self._started:
            for number, (processor, work) in enumerate(
                zip(self.processors, self._work, strict=True)
            ):
                try:
                    at = self._turn(processor, work, number)
                except EmulationError as error:
                    self._gone, self.running = str(error), False
                    return Gone(self._gone)
                if at >= 0:
                    self.running = False
                    return Stopped(number, at)
            if time.monotonic() > deadline:
                return None
        if self.running and self.idle and self.commands:
            return CommandEnded(0)
        if not self.running:
            time.sleep(min(timeout, 0.001))
        return None

    def _turn(self, processor: Cpu, work: Work, number: int) -> int:
        """Let a CPU run for a turn; return the breakpoint that it stopped at, or -1."""
        back = self.address("idle")
        if not work.inside:
            if not work.calls:
                return -1
            call = work.calls.pop(0)
            stack = self.addresses.direct + STACKS + (number + 1) * STACK_SIZE
            arguments = [value & (1 << 64) - 1 for value in call.arguments]
            processor.prepare(self.address(call.function), arguments, stack, back)
            work.inside = True
        processor.run(back, self.turn)
        if processor.stopped_at < 0 and processor.get(processor.pc) == back:
            work.inside = False
            work.results.append(processor.get(processor.result))
        return processor.stopped_at

    def take_warnings(self) -> list[Complaint]:
        taken, self.warnings = self.warnings, []
        return taken

    def prepare_command(self, command: str) -> int:
        self.commands.append(command)
        return COMMAND_PID

    def start_command(self) -> None:
        self.begin()

    def end_command(self) -> None:
        """Drop the pending calls of all CPUs."""
        for work in self._work:
            work.calls.clear()
            work.inside = False
        self.commands.clear()
        self.resume()

    def close(self) -> None:
        self.running = True
        self.closed = True


@dataclass(frozen=True)
class FakeKind(MachineKind):
    """A kind of machine (core/machine_kind.py) whose open() returns a given machine."""

    machine: Any
    name = "fake"
    option = Option("--fake")
    abilities = FakeMachine.abilities

    def cpus(self, arguments: Sequence[str]) -> int:
        return int(self.machine.cpus)

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        return cast(Target, self.machine)
