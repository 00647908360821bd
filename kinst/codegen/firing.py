"""One firing of a probe, as the code generator sees it: the CPU's memory, the target of faults, and
reads of the kernel's own data.

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
    """A D string in memory.  It ends at a NUL, or after `bound` bytes if there is none.

    Attributes:
        address: of its first byte.
        bound: bytes at most.
        nullable: whether the address may be 0, which means NULL, and has not been tested yet.  In
            comparisons NULL equals "" (dtrace_strncmp() of illumos and FreeBSD).
    """

    address: IrValue
    bound: int
    nullable: bool = False


Lowered = IrValue | Text


@dataclass(frozen=True, slots=True)
class Unit:
    """One LLVM module under construction.

    Attributes:
        machine: that the code is for.
        layout: of the data that the program writes.
        strings: offset of each literal in the strings area.
        key_bytes: bytes of the longest key.
        pointers: whether the program may hold addresses of scratch.
        shared: whether it may hold addresses of its variables.
        helpers: the helper functions so far, by name.
    """

    machine: CodeMachine
    layout: ProgramLayout
    strings: Mapping[bytes, int]
    key_bytes: int
    pointers: bool
    shared: bool
    helpers: dict[str, IrFunction] = field(default_factory=dict)

    def helper(self, name: str, write: Callable[[Unit, str], IrFunction]) -> IrFunction:
        """Return the helper function of this name; the first call writes it with `write`."""
        if name not in self.helpers:
            self.helpers[name] = write(self, name)
        return self.helpers[name]

    def function(self, name: str, params: int, result: int = 64) -> IrFunction:
        """Begin an internal function with `params` i64 parameters and the machine's calling
        convention.  It is never inlined, so that the hot path need not save the registers that it
        uses."""
        values = tuple(IrValue(64, f"%a{i}") for i in range(params))
        return IrFunction(name, values, result, self.machine.convention, noinline=True)


@dataclass(slots=True)
class Faults:
    """Faults of the clause under construction.

    Attributes:
        label: where they go.
        action: number of the action under construction, from 1 as in DTrace; 0 for the predicate.
        sources: label, action, kind and value of each place that can fault.
    """

    label: str
    action: int = 0
    sources: list[tuple[str, int, int, IrValue]] = field(default_factory=list)

    def add(self, code: IrFunction, bad: IrValue, kind: int, value: IrValue) -> None:
        """Leave the clause with a fault of this kind if `bad` (an i1) is set."""
        going = code.fresh("fine")
        self.sources.append((code.at, self.action, kind, value))
        code.branch(bad, self.label, going, likely=False)
        code.block(going)


@dataclass(slots=True)
class Firing:
    """One firing of a probe on one CPU.

    Attributes:
        unit: the module.
        code: the function under construction.
        site: address of the site's descriptor.
        frame: address of the saved registers.
        cpu: the CPU's number.
        slot: its slot in scratch; in the target, the same number.
        state: address of its state page.
        time: the firing's timestamp in ns, 0 until it is first needed.
        faults: of the clause under construction.
        ordinal: of the clause in its entry.
        in_error: whether the clause is dtrace:::ERROR's, whose arguments are in the state page.
        text_at: bytes of working memory that the strings of this action have taken.
        locals: other variables of the firing by name; each is 0 when the firing begins.
        record_size: bytes of the clause's record.
        following: the label after the clause.
        this: clause-local variables that are in registers, by index.
        entries: entry of each thread-local variable, by index; 0 until this firing has found it.
        old: the values that typed.OldValue, Before and Root stand for, innermost last.
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
        """Return the address of this CPU's part of an area with `size` bytes for each slot."""
        if self.unit.machine.host:
            return const(self.unit.machine.address(area + self.unit.machine.scratch.cpus * size))
        offset = self.code.op("mul", self.slot, size)
        return self.code.add(offset, self.unit.machine.address(area))

    def temp(self) -> IrValue:
        """Return the address of this CPU's working memory."""
        scratch = self.unit.machine.scratch
        return self.scaled(scratch.temp, scratch.temp_size)

    def clause_memory(self) -> int:
        """Return the offset of the clause-local variables in working memory."""
        return TEMP_KEYS + self.unit.key_bytes

    def start_action(self, number: int) -> None:
        self.faults.action = number
        self.text_at = 0

    def text_room(self, size: int) -> IrValue:
        """Return the address of `size` bytes for a string, free again when the action ends.

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
        """Return the firing's 64-bit variable of this name."""
        if name not in self.locals:
            self.locals[name] = self.code.local(64)
        return self.locals[name]

    def _kept_size(self) -> int:
        return (self.unit.layout.strsize + 7) & -8

    def _arena_at(self) -> int:
        """Return the offset of the arena in working memory."""
        return (self.unit.machine.scratch.temp_size - ARENA - self._kept_size()) & -8

    def arena(self) -> IrLocal:
        """Return the variable that counts the bytes of the arena in use."""
        return self.local("arena")

    def arena_start(self) -> IrValue:
        """Return the address of the arena, from which allocate() takes its memory."""
        return self.code.add(self.temp(), self._arena_at())

    def kept_text(self) -> IrValue:
        """Return the address of room for one string of strsize bytes that outlives the action."""
        return self.code.add(self.temp(), self._arena_at() + ARENA)

    def allocate(self, size: IrValue) -> IrValue:
        """Return the address of `size` bytes, a multiple of 8, that last until the clause ends.
        Faults if scratch space runs out."""
        code = self.code
        used = code.get(self.arena())
        free = code.op("sub", const(ARENA), used)
        self.faults.add(code, code.icmp("ugt", size, free), FAULT_NOSCRATCH, const(0))
        code.set(self.arena(), code.op("and", code.op("add", code.op("add", used, size), 7), -8))
        return code.op("add", self.arena_start(), used)

    def field(self, offset: int) -> IrValue:
        """Return the address of a word of the state page."""
        return self.code.add(self.state, offset)


def read_access(code: IrFunction, machine: CodeMachine, access: Access) -> Lowered:
    """Read the value that `access` describes, in the target."""
    value = _start(code, machine, access)
    if not access.offsets:
        return Text(value, access.size) if access.string else value
    for offset in access.offsets[:-1]:
        value = code.load(64, code.add(value, offset))
    value = code.add(value, access.offsets[-1])
    return Text(value, access.size) if access.string else code.load(8 * access.size, value)


def _start(code: IrFunction, machine: CodeMachine, access: Access) -> IrValue:
    """Return the value that the offsets of an access start from."""
    per_cpu = machine.per_cpu
    if access.thread:
        if per_cpu is None or not per_cpu.thread_asm:
            raise KinstError(f"{machine.name} keeps the current thread in no register")
        return code.asm(per_cpu.thread_asm, "=r")
    if access.per_cpu is None:
        return const(access.address)
    if per_cpu is None or (per_cpu.address_space is None and not per_cpu.base_asm):
        raise KinstError(f"{machine.name} has no per-CPU data")
    bits = 64 if access.offsets else 8 * access.size
    if per_cpu.address_space is None:
        base = code.asm(per_cpu.base_asm, "=r")
        return code.load(bits, code.add(base, access.per_cpu))
    return code.load(bits, const(access.per_cpu), per_cpu.address_space)


def current_thread(firing: Firing) -> IrValue:
    """Return the address of the current thread's structure; 0 in BEGIN, END and timers."""
    machine = firing.unit.machine
    if machine.host:
        return firing.code.load(64, context_word(firing, CONTEXT_CURTHREAD))
    thread = read_access(firing.code, machine, machine.builtins["curthread"])
    assert isinstance(thread, IrValue)
    return thread


def context_word(firing: Firing, index: int) -> IrValue:
    """Return the address of a word of the host context."""
    return firing.code.add(firing.frame, 8 * (firing.unit.machine.frame_slots + index))


# Multiplier of the key hash: 2**64 over the golden ratio, as in Fibonacci hashing (Knuth, The
# Art of Computer Programming, 6.4).
GOLDEN = 0x9E3779B97F4A7C15
