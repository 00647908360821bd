"""State of the code generator for one firing of a probe: addresses of the CPU's memory, the label
that faults jump to, and reads of the kernel's own data.

Tested by tests/codegen/test_records_and_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.ssa import IrFunction, IrLocal, IrValue, const
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.layout import ARENA, CONTEXT_CURTHREAD, FAULT_NOSCRATCH
from kinst.core.records import ProgramLayout
from kinst.core.system import Access

# Working memory of a clause (Scratch.temp) holds a word for loads, the key of an aggregation or a
# dynamic variable, the clause-local variables that are not in registers, and the strings of one
# action one after another.
TEMP_WORD = 0

TEMP_KEYS = 64


@dataclass(frozen=True, slots=True)
class Text:
    """A D string in memory, which ends at a NUL, or after `bound` bytes if none of them is a NUL.

    Attributes:
        address: address of the first byte.
        bound: the largest number of bytes that may be read.
        nullable: whether the address may be 0, which means that the string is NULL, and the emitted
            code has not tested for that yet. In comparisons NULL equals "" (dtrace_strncmp() of
            illumos and FreeBSD).
    """

    address: IrValue
    bound: int
    nullable: bool = False


Lowered = IrValue | Text


@dataclass(frozen=True, slots=True)
class Unit:
    """An LLVM module under construction.

    Attributes:
        machine: the machine that the code is for.
        layout: layout of the data that the program writes.
        strings: offset of each string literal in the strings area.
        key_bytes: bytes of the longest key of an aggregation or dynamic variable.
        scratch_pointers: whether a value of the D program can be an address in scratch.
        variable_pointers: whether such an address can point to one of the program's D variables.
        helpers: the helper functions that were written so far, by name.
    """

    machine: CodeMachine
    layout: ProgramLayout
    strings: Mapping[bytes, int]
    key_bytes: int
    scratch_pointers: bool
    variable_pointers: bool
    helpers: dict[str, IrFunction] = field(default_factory=dict)

    def helper(self, name: str, write: Callable[[Unit, str], IrFunction]) -> IrFunction:
        """Return the helper function of this name, and generate it with `write` if the module does
        not have it yet.
        """
        if name not in self.helpers:
            self.helpers[name] = write(self, name)
        return self.helpers[name]

    def function(self, name: str, params: int, result: int = 64) -> IrFunction:
        """Begin an internal LLVM function with `params` i64 parameters, a result of `result` bits,
        and the machine's calling convention.

        LLVM never inlines the function: its callers would have to save more registers, even on the
        hot path, which does not call it.
        """
        values = tuple(IrValue(64, f"%a{i}") for i in range(params))
        return IrFunction(name, values, result, self.machine.convention, noinline=True)


@dataclass(slots=True)
class Faults:
    """Checks that can fault in the clause under construction.

    Attributes:
        label: label that a fault jumps to.
        action: number of the action under construction, from 1 as in DTrace; 0 for the predicate.
        sources: (label of the block, action, fault kind, fault value) of each check.
    """

    label: str
    action: int = 0
    sources: list[tuple[str, int, int, IrValue]] = field(default_factory=list)

    def add(self, code: IrFunction, bad: IrValue, kind: int, value: IrValue) -> None:
        """Emit a branch that leaves the clause with a fault if `bad` is 1.

        Args:
            bad: an i1.
            kind: FAULT_* number of the fault.
            value: the fault's value, which dtrace:::ERROR gets as arg5 (an address, or 0).
        """
        going = code.fresh("fine")
        self.sources.append((code.at, self.action, kind, value))
        code.branch(bad, self.label, going, likely=False)
        code.block(going)


@dataclass(slots=True)
class Firing:
    """State of the code generator for one firing of a probe on one CPU.

    Attributes:
        unit: the LLVM module under construction.
        code: the function under construction.
        site: address of the site's descriptor.
        frame: address of the saved registers.
        cpu: number of the CPU on which the probe fired (D's `cpu`).
        slot: index of this firing's state page, ring and working memory in scratch. In the target,
            each CPU has its own: the index is the value of `cpu`. On the host, all clauses use the
            last one: the index is the constant scratch.cpus.
        state: address of the state page of this slot.
        time: the firing's timestamp in ns, 0 until it is first needed.
        faults: the checks of the clause under construction.
        ordinal: index of the clause in its entry function.
        in_error: whether the clause is dtrace:::ERROR's, whose arguments are in the state page.
        text_at: bytes of working memory that strings of the current action have taken.
        locals: further variables of the function by name; each is 0 when the firing begins.
        record_size: bytes of the clause's record.
        following: label of the block after the clause.
        this: the clause-local variables that are in registers, by index.
        entries: address of each thread-local variable's table entry, by the variable's index; 0
            until this firing has looked it up.
        old: for each assignment whose code is being emitted, the innermost last: the variable's
            old value or, if a part of a structure is assigned, the structure's address. The
            expressions typed.OldValue, typed.Before and typed.BaseAddress read the last one.
    """

    unit: Unit
    code: IrFunction
    site: IrValue
    frame: IrValue
    cpu: IrValue
    slot: IrValue
    state: IrValue
    time: IrLocal
    faults: Faults
    ordinal: int = 0
    in_error: bool = False
    text_at: int = 0
    locals: dict[str, IrLocal] = field(default_factory=dict)
    record_size: int = 0
    following: str = ""
    this: dict[int, IrLocal] = field(default_factory=dict)
    entries: dict[int, IrLocal] = field(default_factory=dict)
    old: list[Lowered] = field(default_factory=list)

    def scaled(self, area: int, size: int) -> IrValue:
        """Emit LLVM IR that computes the address of this CPU's part of an area of scratch; return
        the address.

        Args:
            area: offset of the area in scratch.
            size: bytes for each CPU.
        """
        if self.unit.machine.host:
            return const(self.unit.machine.address(area + self.unit.machine.scratch.cpus * size))
        offset = self.code.op("mul", self.slot, size)
        return self.code.add(offset, self.unit.machine.address(area))

    def temp(self) -> IrValue:
        """Emit LLVM IR that computes the address of this CPU's working memory; return the
        address.
        """
        scratch = self.unit.machine.scratch
        return self.scaled(scratch.temp, scratch.temp_size)

    def clause_memory(self) -> int:
        """Return the offset of the clause-local variables in a CPU's working memory."""
        return TEMP_KEYS + self.unit.key_bytes

    def start_action(self, number: int) -> None:
        self.faults.action = number
        self.text_at = 0

    def text_room(self, size: int) -> IrValue:
        """Reserve `size` bytes of working memory for a string, until the current action ends;
        return their address.

        Raises KinstError if the action has used up its working memory.
        """
        at = self.clause_memory() + self.unit.layout.clause_size + self.text_at
        limit = self._arena_at()
        if at + size > limit:
            raise KinstError(
                f"one action needs more than {limit} bytes for its strings",
                "use a smaller strsize, or split the action",
            )
        self.text_at += (size + 7) & -8
        return self.code.add(self.temp(), at)

    def local(self, name: str) -> IrLocal:
        """Return the function's 64-bit variable of this name, which is declared at its
        first use.
        """
        if name not in self.locals:
            self.locals[name] = self.code.local(64)
        return self.locals[name]

    def _kept_size(self) -> int:
        return (self.unit.layout.strsize + 7) & -8

    def _arena_at(self) -> int:
        """Return the offset of the alloca() arena in a CPU's working memory."""
        return (self.unit.machine.scratch.temp_size - ARENA - self._kept_size()) & -8

    def arena(self) -> IrLocal:
        """Return the variable that holds how many bytes of the alloca() arena are in use."""
        return self.local("arena")

    def arena_start(self) -> IrValue:
        """Return the address of the alloca() arena, from which allocate() takes its memory."""
        return self.code.add(self.temp(), self._arena_at())

    def kept_text(self) -> IrValue:
        """Return the address of strsize bytes in working memory for the one string that outlives an
        action (strtok()'s).
        """
        return self.code.add(self.temp(), self._arena_at() + ARENA)

    def allocate(self, size: IrValue) -> IrValue:
        """Emit LLVM IR that allocates `size` bytes, rounded up to a multiple of 8, until the clause
        ends; return their address.  The emitted code faults if scratch space runs out.
        """
        code = self.code
        used = code.get(self.arena())
        free = code.op("sub", const(ARENA), used)
        self.faults.add(code, code.icmp("ugt", size, free), FAULT_NOSCRATCH, const(0))
        code.set(self.arena(), code.op("and", code.op("add", code.op("add", used, size), 7), -8))
        return code.op("add", self.arena_start(), used)

    def field(self, offset: int) -> IrValue:
        """Return the address of the word at this offset in the CPU's state page."""
        return self.code.add(self.state, offset)


def read_access(code: IrFunction, machine: CodeMachine, access: Access) -> Lowered:
    """Emit LLVM IR, for code in the target, that reads a value from the kernel's memory by the
    chain of loads that `access` describes; return the value.
    """
    value = _start(code, machine, access)
    if not access.offsets:
        return Text(value, access.size) if access.string else value
    for offset in access.offsets[:-1]:
        value = code.load(64, code.add(value, offset))
    value = code.add(value, access.offsets[-1])
    return Text(value, access.size) if access.string else code.load(8 * access.size, value)


def _start(code: IrFunction, machine: CodeMachine, access: Access) -> IrValue:
    """Emit LLVM IR that begins the chain of loads of read_access(), for example by reading the
    current thread's address; return the result.

    If `access` has offsets, the result is the address to which the first offset is added. If it has
    none, the result is the value to read or, for a string, the string's address.

    Raises KinstError if kinst does not know how this machine reads per-CPU data or the current
    thread's address.
    """
    per_cpu = machine.per_cpu
    if access.thread:
        if per_cpu is None or not per_cpu.thread_asm:
            raise KinstError(
                f"kinst knows no register in which {machine.name} keeps the current thread"
            )
        return code.asm(per_cpu.thread_asm, "=r")
    if access.per_cpu is None:
        return const(access.address)
    if per_cpu is None or (per_cpu.address_space is None and not per_cpu.base_asm):
        raise KinstError(f"kinst does not know how the {machine.name} addresses per-CPU data")
    bits = 64 if access.offsets else 8 * access.size
    if per_cpu.address_space is None:
        base = code.asm(per_cpu.base_asm, "=r")
        return code.load(bits, code.add(base, access.per_cpu))
    return code.load(bits, const(access.per_cpu), per_cpu.address_space)


def current_thread(firing: Firing) -> IrValue:
    """Emit LLVM IR that reads the address of the current thread's structure; return the address,
    which is 0 in BEGIN, END and timers.
    """
    machine = firing.unit.machine
    if machine.host:
        return firing.code.load(64, context_word(firing, CONTEXT_CURTHREAD))
    thread = read_access(firing.code, machine, machine.builtins["curthread"])
    assert isinstance(thread, IrValue)
    return thread


def context_word(firing: Firing, index: int) -> IrValue:
    """Return the address of the CONTEXT_* word with this index.  In code for the host, these words
    follow the frame, and have the values of built-in variables.
    """
    return firing.code.add(firing.frame, 8 * (firing.unit.machine.frame_slots + index))


# Multiplier of the key hash: 2**64 over the golden ratio, as in Fibonacci hashing (Knuth, The
# Art of Computer Programming, 6.4).
GOLDEN = 0x9E3779B97F4A7C15
