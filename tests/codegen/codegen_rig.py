"""Runs programs on both machines: natively on the host, and in an emulator as the target.

Both rigs have the same interface, so a test can run one program twice and compare bytes.
"""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import unicorn
from unicorn import x86_const as x86

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.compile import (
    HostCode,
    ProgramEntries,
    TargetCode,
    compile_host,
    compile_target,
)
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.llvm_calls import host_triple
from kinst.core import layout as lay
from kinst.core.dtypes import INT, STRING, UINT64, DType
from kinst.core.errors import Span
from kinst.core.layout import Scratch, lay_out
from kinst.core.probe import ProbeName, Selection
from kinst.core.records import ProgramLayout
from kinst.core.registers import Register
from kinst.core.system import Access, Clock, Paths, PerCpu
from kinst.dlang import typed as t
from kinst.dlang.typed import AggregationVariable
from kinst.systems.linux.dialect import dialect
from kinst.wire import native

SPAN = Span("test", 1, 1)
LINUX = dialect()
BASE = 0xFFFFFFFF9FE00000
SIZE = 2 << 20
SLOTS = 20
SP_SLOT = 7
CFA_SLOT = 5
REGISTERS = tuple(Register(f"R_{i}", i, (i * 3 + 1) % 16, f"r{i}") for i in range(16))
NOFAULT = 0xFFFFFFFF81000000
GS_BASE = 0xFFFF888000000000
CPU_AT, CURRENT_AT, TASK_AT = 0x100, 0x108, 0x800
STACK = 0xFFFFC90000000000
FRAME = STACK + 0x3000
RETURN_TO = 0xFFFFFFFF82000000
CYCLES = 123456
CLOCK = Clock(1000, 7, 3 << 20, 20, 10**9)
NOW = CLOCK.base_ns + ((CYCLES - CLOCK.base_cycles) * CLOCK.mult >> CLOCK.shift)
BUILTINS = {
    "cpu": Access(CPU_AT, (), 4),
    "curthread": Access(CURRENT_AT, (), 8),
    "pid": Access(CURRENT_AT, (0x10,), 4, True),
    "ppid": Access(CURRENT_AT, (0x18, 0x10), 4, True),
    "execname": Access(CURRENT_AT, (0x20,), 16, string=True),
}
PID, PPID, COMM = 4321, 17, b"dd"
ERROR_SITE = 0  # index of dtrace:::ERROR's descriptor in the sites area
SITE_BYTES = 256


def scratch(**sizes: int) -> Scratch:
    wanted = {
        "ring_size": 4096, "agg_size": 32768, "globals_size": 8192, "strings_size": 4096,
        "sites_size": 8192, "traps_size": 4096, "dynamic_size": 65536,
    } | sizes  # fmt: skip
    return lay_out(BASE, SIZE, 2, **wanted)


def integer(value: int, type_: DType = INT) -> t.IntConst:
    return t.IntConst(type_, SPAN, value)


def string(value: bytes) -> t.StrConst:
    return t.StrConst(STRING, SPAN, value)


def reg(index: int) -> t.RegisterRead:
    return t.RegisterRead(UINT64, SPAN, integer(index))


def builtin(name: str, type_: DType = UINT64) -> t.Builtin:
    return t.Builtin(type_, SPAN, name)


def trace(expr: t.Expr) -> t.TraceAction:
    return t.TraceAction(SPAN, expr)


def program(
    *clauses: Sequence[t.Action] | tuple[t.Expr | None, Sequence[t.Action]],
    variables: tuple[t.Variable, ...] = (),
    aggregations: tuple[AggregationVariable, ...] = (),
) -> t.TypedProgram:
    """Return a program of clauses: lists of actions, or (predicate, actions)."""
    made = []
    for index, clause in enumerate(clauses):
        predicate, actions = clause if isinstance(clause, tuple) else (None, clause)
        made.append(t.Clause(index, (), (), predicate, tuple(actions), SPAN))
    return t.TypedProgram(tuple(made), variables, aggregations)


@dataclass(frozen=True)
class RingRecord:
    clause: int
    probe: int
    cpu: int
    time: int
    raw: bytes

    @property
    def data(self) -> bytes:
        """Return the data after the header."""
        return self.raw[lay.RECORD_HEADER :]


@dataclass
class Rig:
    """One program, compiled and put into memory.

    Args:
        probes: clauses by probe id, in D's order.
    """

    program: t.TypedProgram
    probes: Mapping[int, tuple[int, ...]]
    error: tuple[int, ...] = ()
    memory: Mapping[int, bytes] = field(default_factory=dict)  # memory that loads can reach
    arguments: Sequence[tuple[int, int]] = ()  # of every site: (ARGUMENT_*, value)
    scratch: Scratch = field(default_factory=scratch)
    strsize: int = 64
    layout: ProgramLayout = field(init=False)

    def __post_init__(self) -> None:
        probed = [(name_of(p), p, clauses) for p, clauses in self.probes.items()]
        if self.error:
            probed.append((ProbeName("dtrace", "", "", "ERROR"), 3, self.error))
        self.layout = lay_out_program(
            self.program, probed, self.strsize, self.scratch.agg_size, self.scratch.dynamic_size
        )
        self.entries = list(dict.fromkeys(self.probes.values()))
        self.start()
        self.write(lay.HEADER_ACTIVE, struct.pack("<Q", 1))
        places = self.scratch
        dirt = random.Random(1).randbytes((places.cpus + 1) * places.temp_size)
        self.write(places.temp, dirt)  # working memory may hold anything
        self._write_sites()

    # Different for the two machines.

    paths: ClassVar[Paths | None] = None
    base = 0

    def start(self) -> None:
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> None:
        raise NotImplementedError

    def read(self, offset: int, size: int) -> bytes:
        raise NotImplementedError

    def fire(self, probe: int, registers: Mapping[int, int] | None = None, cpu: int = 0) -> None:
        raise NotImplementedError

    # Shared.

    def _write_sites(self) -> None:
        names = self.scratch.sites + 4096
        epid = 100
        everyone = {3: self.error} | dict(self.probes)
        for place, (probe, clauses) in enumerate(everyone.items()):
            name = ProbeName("dtrace", "", "", "ERROR") if place == 0 else name_of(probe)
            pointers = []
            for part in (name.provider, name.module, name.function, name.name):
                self.write(names, part.encode() + b"\0")
                pointers.append(self.base + names)
                names += len(part) + 1
            entry = struct.pack("<IIQ4QIiiI", probe, epid, 0, *pointers, CFA_SLOT, 16, -8, 0)
            kinds = (*self.arguments, *[(self.no_argument, 0)] * lay.ARGUMENTS)[: lay.ARGUMENTS]
            entry += b"".join(struct.pack("<Ii", *one) for one in kinds)
            for aggregation in self.layout.constant_aggregations:
                entry += struct.pack("<Q", self.layout.site_keys.get((probe, aggregation), 0))
            self.write(self.scratch.sites + place * SITE_BYTES, entry)
            epid += len(clauses)

    def site(self, probe: int) -> int:
        place = 1 + list(self.probes).index(probe)
        return self.base + self.scratch.sites + place * SITE_BYTES

    def epid(self, probe: int, ordinal: int = 0) -> int:
        at = self.site(probe) - self.base + lay.SITE_EPID
        return int(struct.unpack("<I", self.read(at, 4))[0]) + ordinal

    def frame_words(self, registers: Mapping[int, int] | None) -> list[int]:
        words = [0] * SLOTS
        for index, value in (registers or {}).items():
            words[REGISTERS[index].slot] = value & (1 << 64) - 1
        return words

    def state(self, offset: int, slot: int) -> int:
        return int(struct.unpack("<Q", self.read(self.scratch.state_of(slot) + offset, 8))[0])

    def records(self, slot: int) -> list[RingRecord]:
        """Return all records that were produced and not yet consumed."""
        head, tail = self.state(lay.STATE_HEAD, slot), self.state(lay.STATE_TAIL, slot)
        ring = self.read(self.scratch.ring_of(slot), self.scratch.ring_size)
        found = []
        while tail < head:
            at = tail % self.scratch.ring_size
            size, clause = struct.unpack_from("<II", ring, at)
            assert size and size % 8 == 0
            if clause != lay.RECORD_PAD:
                probe, cpu, time = struct.unpack_from("<IIQ", ring, at + 8)
                found.append(RingRecord(clause, probe, cpu, time, ring[at : at + size]))
            tail += size
        assert tail == head
        return found

    def consume(self, slot: int) -> None:
        head = self.state(lay.STATE_HEAD, slot)
        self.write(self.scratch.state_of(slot) + lay.STATE_TAIL, struct.pack("<Q", head))

    def fields(self, record: RingRecord, action: int = 0) -> list[bytes]:
        """Return the raw fields of one action."""
        places = self.layout.clauses[record.clause].fields[action]
        return [record.raw[f.offset :][: f.size] for f in places]

    def table(self, index: int, slot: int, half: int = 0) -> dict[bytes, tuple[int, ...]]:
        """Return used entries: data words by raw keys (or by the entry's number, 8 bytes)."""
        agg = self.layout.aggregations[index]
        area = self.read(self.scratch.agg_of(slot, half) + agg.area, agg.capacity * agg.entry_size)
        found = {}
        for i in range(agg.capacity):
            entry = area[i * agg.entry_size :][: agg.entry_size]
            if entry[:8] == bytes(8):
                continue
            key = entry[8 : agg.data_offset] if agg.constant_keys is None else struct.pack("<Q", i)
            assert key not in found
            found[key] = struct.unpack(f"<{agg.data_size // 8}Q", entry[agg.data_offset :])
        return found


def name_of(probe: int) -> ProbeName:
    return ProbeName("kinst", "vmlinux", f"function_{probe % 100}", str(probe))


def read_memory(memory: Mapping[int, bytes], address: int, size: int) -> bytes | None:
    """Return `size` bytes inside one of the pieces, or None."""
    for start, data in memory.items():
        if start <= address and address + size <= start + len(data):
            return data[address - start :][:size]
    return None


class HostRig(Rig):
    """A program on the host.

    Args:
        context: words of the context (CONTEXT_*) that replace the usual ones.
        frames: frames of the kernel's stack, as kinst has found them.
    """

    no_argument = lay.ARGUMENT_HOST
    slot = 2
    context: ClassVar[Mapping[int, int]] = {}
    frames: ClassVar[tuple[int, ...]] = ()

    def host_machine(self) -> CodeMachine:
        return CodeMachine(
            "host", host_triple(), "", True, self.base, self.scratch, self.callback.address,
            REGISTERS, SLOTS, SP_SLOT, "ccc", paths=self.paths, dialect=LINUX,
        )  # fmt: skip

    def start(self) -> None:
        self.map = mmap.mmap(-1, SIZE)
        self.base = native.address_of(memoryview(self.map))
        self.reads: list[tuple[int, int]] = []
        self.callback = native.native_read(self._read_target)
        self.machine = self.host_machine()
        entries = ProgramEntries(
            self.program, self.layout, self.entries, self.error, self.base + self.scratch.sites
        )
        self.code: HostCode = compile_host(entries, self.machine)
        self.write(self.scratch.strings, self.code.strings)
        self.calls = {k: native.entry(v) for k, v in self.code.entries.items()}

    def _read_target(self, address: int, size: int) -> bytes | None:
        self.reads.append((address, size))
        return read_memory(self.memory, address, size)

    def write(self, offset: int, data: bytes) -> None:
        self.map[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        return self.map[offset : offset + size]

    def fire(self, probe: int, registers: Mapping[int, int] | None = None, cpu: int = 0) -> None:
        context = [0] * lay.CONTEXT_SLOTS
        context[lay.CONTEXT_CPU] = cpu
        context[lay.CONTEXT_PID] = PID
        context[lay.CONTEXT_PPID] = PPID
        context[lay.CONTEXT_CURTHREAD] = GS_BASE + TASK_AT
        context[lay.CONTEXT_TIMESTAMP] = NOW
        context[lay.CONTEXT_WALLTIMESTAMP] = NOW + CLOCK.wall_offset
        context[lay.CONTEXT_EXECNAME] = int.from_bytes(COMM, "little")
        for i in range(10):
            context[lay.CONTEXT_ARGS + i] = 1000 + i
        for word, value in self.context.items():
            context[word] = value
        words = [*self.frame_words(registers), *context, len(self.frames), *self.frames]
        frame = bytearray(struct.pack(f"<{len(words)}Q", *words))
        self.calls[self.probes[probe]](self.site(probe), native.address_of(frame))


_SAVED = [
    x86.UC_X86_REG_RAX, x86.UC_X86_REG_RBX, x86.UC_X86_REG_RCX, x86.UC_X86_REG_RDX,
    x86.UC_X86_REG_RBP, x86.UC_X86_REG_R8, x86.UC_X86_REG_R9, x86.UC_X86_REG_R10,
    x86.UC_X86_REG_R12, x86.UC_X86_REG_R13, x86.UC_X86_REG_R14, x86.UC_X86_REG_R15,
]  # fmt: skip
_C_CLOBBERS = [
    x86.UC_X86_REG_RCX, x86.UC_X86_REG_RDX, x86.UC_X86_REG_RSI, x86.UC_X86_REG_RDI,
    x86.UC_X86_REG_R8, x86.UC_X86_REG_R9, x86.UC_X86_REG_R10, x86.UC_X86_REG_R11,
]  # fmt: skip


class TargetRig(Rig):
    no_argument = lay.ARGUMENT_NONE
    slot = 0
    base = BASE
    timestamp_asm = f"movabsq $${CYCLES}, %rax"
    saved_registers: ClassVar[tuple[tuple[str, int], ...]] = ()  # probes are samples, too
    selections: ClassVar[Mapping[int, Selection]] = {}  # of the probes, which are at one site

    def target_machine(self) -> CodeMachine:
        return CodeMachine(
            "target", "x86_64-unknown-none", "-sse,-sse2,-mmx,-avx,-x87,+soft-float", False,
            BASE, self.scratch, NOFAULT, REGISTERS, SLOTS, SP_SLOT, "preserve_mostcc",
            PerCpu(256), BUILTINS, self.timestamp_asm, "={rax},~{rdx},~{flags}", CLOCK,
            0x80, 1, paths=self.paths, saved_registers=self.saved_registers,
            samples=bool(self.saved_registers), interrupt_masks=(1 << 8, 0xFF0000),
            dialect=LINUX,
        )  # fmt: skip

    def start(self) -> None:
        entries = ProgramEntries(
            self.program, self.layout, self.entries, self.error, BASE + self.scratch.sites,
            [(c, self.site(p)) for p, c in self.probes.items() if self.saved_registers],
            [[(self.selections[p], c, self.site(p)) for p, c in self.probes.items()]]
            if self.selections else (),
        )  # fmt: skip
        self.code: TargetCode = compile_target(
            entries, self.target_machine(), BASE + self.scratch.text
        )
        self.emulator = emulator = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        emulator.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        emulator.mem_map(BASE, SIZE)
        emulator.mem_map(STACK, 0x4000)
        emulator.mem_map(NOFAULT, 4096)
        emulator.mem_map(RETURN_TO, 4096)
        emulator.mem_map(GS_BASE, 4096)
        emulator.mem_write(NOFAULT, b"\xc3")
        emulator.hook_add(unicorn.UC_HOOK_CODE, self._nofault, begin=NOFAULT, end=NOFAULT)
        task, parent = GS_BASE + TASK_AT, GS_BASE + TASK_AT + 0x100
        emulator.mem_write(GS_BASE + CURRENT_AT, struct.pack("<Q", task))
        emulator.mem_write(task + 0x10, struct.pack("<Ii", PID, -1))
        emulator.mem_write(task + 0x18, struct.pack("<Q", parent))
        emulator.mem_write(task + 0x20, COMM.ljust(16, b"\0"))
        emulator.mem_write(parent + 0x10, struct.pack("<I", PPID))
        self.write(self.scratch.strings, self.code.strings)
        self.write(self.scratch.text, self.code.code)
        self.write(lay.HEADER_CLOCK, self.code.clock)
        self.reads: list[tuple[int, int]] = []
        self.executed = 0

    def _nofault(self, emulator: unicorn.Uc, *_: object) -> None:
        dst, src, size = (
            emulator.reg_read(r)
            for r in (x86.UC_X86_REG_RDI, x86.UC_X86_REG_RSI, x86.UC_X86_REG_RDX)
        )
        self.reads.append((src, size))
        data = read_memory(self.memory, src, size)
        if data is not None:
            emulator.mem_write(dst, data)
        for register in _C_CLOBBERS:
            emulator.reg_write(register, 0xDEAD0000 + register)
        emulator.reg_write(x86.UC_X86_REG_RAX, 0 if data is not None else (1 << 64) - 14)

    def write(self, offset: int, data: bytes) -> None:
        self.emulator.mem_write(BASE + offset, data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.emulator.mem_read(BASE + offset, size))

    def fire(self, probe: int, registers: Mapping[int, int] | None = None, cpu: int = 0) -> None:
        emulator = self.emulator
        words = self.frame_words(registers)
        emulator.mem_write(FRAME, struct.pack(f"<{SLOTS}Q", *words))
        emulator.mem_write(GS_BASE + CPU_AT, struct.pack("<I", cpu))
        before = {register: 0x1111 * (i + 1) for i, register in enumerate(_SAVED)}
        for register, value in before.items():
            emulator.reg_write(register, value)
        self.call(self.code.entry(self.probes[probe]), self.site(probe), FRAME)
        after = {register: emulator.reg_read(register) for register in _SAVED}
        assert after == before, "a register of the interrupted code was changed"

    def call(self, address: int, *args: int) -> int:
        """Call a function in the emulator; return rax."""
        emulator = self.emulator
        emulator.reg_write(x86.UC_X86_REG_GS_BASE, GS_BASE)
        stack = STACK + 0x2FF8
        emulator.mem_write(stack, struct.pack("<Q", RETURN_TO))
        emulator.reg_write(x86.UC_X86_REG_RSP, stack)
        for register, value in zip((x86.UC_X86_REG_RDI, x86.UC_X86_REG_RSI), args, strict=False):
            emulator.reg_write(register, value)
        emulator.emu_start(address, RETURN_TO, count=200_000)
        assert emulator.reg_read(x86.UC_X86_REG_RIP) == RETURN_TO
        assert emulator.reg_read(x86.UC_X86_REG_RSP) == stack + 8
        return int(emulator.reg_read(x86.UC_X86_REG_RAX))


RIGS = (HostRig, TargetRig)
