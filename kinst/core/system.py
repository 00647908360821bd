"""What a system (an operating system, or any kernel at all) answers of the kernel that runs.

Each small protocol is one question; System is all of them.  A system is one file or folder of
kinst.systems, found from the kernel's image.  Addresses are virtual unless a name says physical.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kinst.core.probe import Argument, Function

HOOK_BYTES = 32  # live bytes of a hooked function that a detour may displace


@dataclass(frozen=True, slots=True)
class Territory:
    """Where a system keeps its kernel on one ISA: ranges [low, high) of virtual addresses.

    image: where its image is mapped.  scratch: where kinst may map scratch.  reserved: what of that
    the system fills later.  grows_behind_text: whether it will map what is free behind its text
    by and by.
    """

    image: tuple[int, int]
    scratch: tuple[int, int]
    reserved: tuple[tuple[int, int], ...] = ()
    grows_behind_text: bool = False


@dataclass(frozen=True, slots=True)
class PerCpu:
    """How code in the kernel reaches the data of its CPU, and the current thread."""

    # An LLVM address space whose zero is this CPU's data (x86: 256 is %gs), or None.
    address_space: int | None
    # What Function.asm() of codegen reads the data's address by, without an address space: inline
    # assembly, or a register where LLVM's parser is out of reach (%tpidr_el1).
    base_asm: str = ""
    # The same for the current thread's address, if the kernel keeps it in a register.
    thread_asm: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """How in-target code finds a built-in's value, as data.

    Load 8 bytes at per-CPU base + per_cpu (or take the constant `address` when per_cpu is
    None), then add the first offset and load a pointer, and so on; the last offset is where
    the value lies: `size` bytes, or, with string True, at most `size` bytes of text.
    direct: the per-CPU load itself is the value (offsets empty).
    thread: start from the current thread's address, which the kernel keeps in a register
    (PerCpu.thread_asm), in place of a load; per_cpu is None then.
    """

    per_cpu: int | None
    offsets: tuple[int, ...]
    size: int
    signed: bool = False
    string: bool = False
    address: int = 0
    thread: bool = False


@dataclass(frozen=True, slots=True)
class Clock:
    """ns = base_ns + ((cycles - base_cycles) * mult >> shift); wall = ns + wall_offset.

    now_ns: on the same scale, when the kernel last looked at its clock."""

    base_cycles: int
    base_ns: int
    mult: int
    shift: int
    wall_offset: int
    now_ns: int = 0

    def from_zero(self) -> Clock:
        """The same clock by the cycles at which it showed 0, so that base_ns is 0: by these it
        shows as much, or 1 ns less.  Itself where a cycle is longer than a ns."""
        if self.mult > 1 << self.shift:
            return self
        zero = self.base_cycles - (self.base_ns << self.shift) // self.mult
        return replace(self, base_cycles=zero, base_ns=0)


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """vtimestamp = timestamp + offset_ns + the values of plus - the values of minus (ns)."""

    plus: tuple[Access, ...]
    minus: tuple[Access, ...]
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Unwinder:
    """The kernel's own unwinder, to be called in the context of a probe.

    address: of a C function (saved registers, u64 store[], u32 entries, u32 skip) that stores
    the saved pc and then return addresses, at most `entries`, and returns how many.  It reads
    stacks only where it has checked them, in any context.
    size: bytes of the saved registers; registers: (offset in them, D name of a register, "" for
    the program counter); constants: (offset, value).  All else there is zero.
    """

    address: int
    size: int
    registers: tuple[tuple[int, str], ...]
    constants: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UserMemory:
    """How in-target code reaches the memory of the current process.

    read: address of a C function (dst, user src, size) -> 0 or error, which never oopses.
    write: of one (user dst, src, size), or 0.  mm: finds the address space's structure, 0 for a
    kernel thread, which has none; None where the functions see to that.  arg_start, arg_end:
    offsets in it of where the arguments of the process lie; 0 where not known.
    """

    read: int
    write: int
    mm: Access | None = None
    arg_start: int = 0
    arg_end: int = 0


class Paths(Protocol):
    """Code of clauses that finds the paths of files: kinst.codegen.helpers.paths.PathCode says what
    is asked of it."""

    @property
    def longest(self) -> int:
        """Bytes of the longest path, with its NUL."""
        ...


@dataclass(frozen=True, slots=True)
class UserState:
    """The user mode of the current thread, and what its process runs.

    stack: offset in a task of where its kernel stack begins; saved: from there to the registers
    that were saved on the way in from user mode.  registers: by D name, their offsets there; pc,
    frame: the offsets of the program counter and the frame pointer.  next_at, return_at: of the
    caller's frame pointer and of the return address, from a frame pointer.  address_mask: the
    bits of a return address that are one.
    code_start: offset in mm of where the program's code was loaded; program: offsets that lead
    from mm to the text of its file name.
    """

    stack: int
    saved: int
    registers: Mapping[str, int]
    pc: int
    frame: int
    next_at: int
    return_at: int
    address_mask: int
    code_start: int
    program: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Threads:
    """How all threads are found, and where each has its stack: offsets in bytes.

    first: address of a process' first thread, which is always there.  next: in such a thread, of
    the list of them (whose first word is the address of the next one's list).  group: of the
    address of what its threads share; head: in that, of the list of them; node: in a thread, of its
    place in that list.  stack: of where its stack begins; pointer: of the stack pointer of a thread
    that does not run.  running: of 4 bytes that are not 0 while it runs on a CPU, or -1.
    size: bytes of a stack.
    """

    first: int
    next: int
    group: int
    head: int
    node: int
    stack: int
    pointer: int
    running: int
    size: int


@dataclass(frozen=True, slots=True)
class TrapPath:
    """How the kernel's breakpoints and faults come to kinst.

    hooks: addresses of the functions of which a detour may displace HOOK_BYTES (trap_hook,
    fault_hook and bug_hook of Facts, where they are).  pc_delta: Facts.trap_pc_delta."""

    hooks: tuple[int, ...]
    pc_delta: int


@dataclass(frozen=True, slots=True)
class Lender:
    """How memory is had from the kernel's own allocator, by calls that a thread of it makes.

    entries: addresses of functions at whose entry a thread may be made to call: it may sleep, holds
    no lock, and takes interrupts.  landing: an address that nothing comes to otherwise.  returning:
    that of a function that only returns an error, which few come to; or 0.  All others are
    addresses of C functions: allocate(flags, order), which returns the address of
    page << order bytes or 0; release(address, order); forget(start, end) makes all CPUs forget
    translations of addresses that are not mapped any more.

    threads, traps: what must be known before it is given back.  tracer: address of a word, and what
    it is while the kernel's own tracer has no user (see Claims); None where that is not known.
    """

    entries: tuple[int, ...]
    landing: int
    returning: int
    allocate: int
    flags: int
    release: int
    forget: int
    page: int
    threads: Threads
    traps: TrapPath
    tracer: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a system knows of the running kernel, once its place in memory is known.

    The defaults are what a system says that does not know."""

    # The system's name and release, for messages.
    os: str = ""
    release: str = ""
    # Running address minus linked address.
    slide: int = 0
    cpus: int = 1
    # D name to how it is found: cpu, pid, tid, ppid, uid, gid, execname, curthread, errno; and
    # interrupt, a word in which a CPU notes that it handles an interrupt (interrupt_masks).
    builtins: Mapping[str, Access] = field(default_factory=dict)
    # Address of a C function (dst, src, size) -> 0 or error that never faults, or 0.
    nofault_read: int = 0
    # The C function that a breakpoint reaches with a pointer to saved registers, or 0.  In those
    # the program counter is at trap_pc_offset, so many bytes after the breakpoint instruction.
    trap_hook: int = 0
    trap_pc_offset: int = 0
    trap_pc_delta: int = 0
    # The C function that looks up exception tables by address (first argument), or 0.
    fault_hook: int = 0
    # The per-CPU base register's value on each CPU, in CPU order.
    per_cpu_bases: tuple[int, ...] = ()
    clock: Clock | None = None
    # How code reaches what builtins start from; None where it cannot.
    per_cpu: PerCpu | None = None
    # The C function that looks up a BUG or WARN trap by its address (first argument), or 0.  If it
    # is not, it is hooked as fault_hook is, because such traps may then be planted.
    bug_hook: int = 0
    thread_time: ThreadTime | None = None
    # Name of the kernel's own tracer (see Claims), for messages.
    tracer: str = "the kernel's own tracer"
    # None where the kernel has none that clauses can call.
    unwinder: Unwinder | None = None
    # For accesses that start from the current thread: registers by the stub's names, of which the
    # first that is there and not 0 has its address.
    thread_registers: tuple[str, ...] = ()
    user: UserMemory | None = None
    # None where they are not known.
    paths: Paths | None = None
    user_state: UserState | None = None
    # Bits of builtins["interrupt"], a level each: if any of a mask is set, the CPU handles an
    # interrupt of that level, which is no part of the thread that it interrupted.
    interrupt_masks: tuple[int, ...] = ()
    # A counter of 4 bytes of each CPU: a thread that has raised it stays on that CPU, and others
    # stay off it.  None where there is none.
    pin: Access | None = None
    # Address of a word (u32) that is 0 or 1 while no thread loses its CPU in the kernel unless it
    # asks for it; 0 where none ever does; None where that is not so.
    preemption: int | None = None
    # (D name, offset) of registers as the kernel saves them when it is interrupted.
    saved_registers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a loaded module and its running address."""

    name: str
    address: int


class LoadedModule(Protocol):
    """A part of the kernel with a file of its own, as it is loaded.  text: [start, end)."""

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> tuple[int, int]: ...

    @property
    def functions(self) -> Sequence[Function]: ...

    @property
    def sections(self) -> Sequence[Section]: ...


class Symbols(Protocol):
    """Names and addresses."""

    def functions(self) -> Sequence[Function]:
        """Every function of every image, in address order."""
        ...

    def lookup(self, name: str) -> Sequence[Function]:
        """The functions of exactly this name (or alias), in address order."""
        ...

    def glob(self, pattern: str) -> Sequence[Function]:
        """The functions with a name that matches an sh(1) pattern, in address order."""
        ...

    def function_at(self, address: int) -> Function | None:
        """The function whose code holds this address."""
        ...

    def variable_at(self, address: int) -> tuple[str, str, int] | None:
        """(module, name, start) of the variable that holds this address."""
        ...


class Code(Protocol):
    """Code as it is at this moment."""

    def code(self, address: int, size: int) -> bytes:
        """The bytes that the kernel runs there: its memory or, where the kernel has not been
        loaded yet, its file.  Raises KinstError where nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A system call as the kernel has it."""

    # As programs know it: read.
    name: str
    # The function that each call of it enters, and returns from with its result.
    function: Function
    # The program's arguments, when that function is entered.
    arguments: tuple[Argument, ...]


class SystemCalls(Protocol):
    """Where system calls are."""

    def system_calls(self) -> Sequence[SystemCall]:
        """All of them, by name; none if that is not known."""
        ...


class Refusals(Protocol):
    """What must not be planted, and what is special about instructions that may be."""

    def refusals(self, function: Function) -> str:
        """Why no instruction of this function may be planted, or ""."""
        ...

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """For each (address, size): why this very instruction may not be planted (jump label,
        static call, ...), or ""."""
        ...

    def has_fixup(self, address: int) -> bool:
        """Whether the kernel expects this instruction to fault (it has an exception-table
        entry), so that its displaced copy needs the fault hook."""
        ...

    def fixup(self, address: int) -> int | None:
        """Where control goes when this instruction faults (its exception-table entry says it), or
        None."""
        ...

    def landings(self) -> npt.NDArray[np.uint64]:
        """Addresses of code that control may come to by the system's own tables, ascending: of
        fix-ups, and where jumps lead that it may yet write."""
        ...

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """For each (address, size): whether the system may write there while it runs, where
        claims() cannot keep it from that."""
        ...

    def left(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """For each (address, size): whether any of it is left to the system's own tracer."""
        ...

    def is_bug(self, address: int) -> bool:
        """Whether this instruction is a trap that the kernel looks up by its address, so that its
        displaced copy needs the bug hook."""
        ...

    def is_fatal(self, address: int) -> bool:
        """Whether this trap instruction ends the thread or the kernel (BUG): nothing runs on
        behind it."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Names of functions that never return to their caller."""
        ...


class Claims(Protocol):
    """An agreement with the kernel's own tracer."""

    def claims(self, addresses: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        """Data writes, to be made before these instructions are patched or lie under a jump, that
        keep the kernel's own tracer away from them.  Raises KinstError where it has them now."""
        ...

    def releases(self, claimed: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        """Data writes that undo claims(), to be made when the sites are as they were."""
        ...


class Unwinding(Protocol):
    """Callers."""

    def frame_rule(self, address: int) -> tuple[str, int, int] | None:
        """CFA rule at an instruction: (base register's D name, offset, return address offset
        from CFA), or None where the unwinder has none."""
        ...

    def frame_address(self, address: int) -> tuple[str, int] | None:
        """(base register's D name, offset) of the canonical frame address at an instruction."""
        ...

    def backtrace(self, pc: int, registers: Mapping[str, int]) -> tuple[int, ...]:
        """The program counter and the return addresses of a stopped CPU, innermost first.
        registers: by D name."""
        ...


@dataclass(frozen=True, slots=True)
class CallerRule:
    """Where the caller's frame is at one address of a module's file: the CFA is register (a DWARF
    number) + offset; the return address is at CFA + return_at, or where that is None still in
    return_register."""

    register: int
    offset: int
    return_register: int
    return_at: int | None


@dataclass(frozen=True, slots=True)
class ModuleFrames:
    """A module's call frame information.  rule: by address of its file.  back: from running
    addresses to the file's, or None."""

    rule: Callable[[int], CallerRule | None]
    back: Callable[[int], int | None]


class Modules(Protocol):
    """Modules that are loaded into the kernel."""

    def modules(self) -> Sequence[LoadedModule]:
        """All of them; () for a system that has none."""
        ...

    def find_frames_with(self, find: Callable[[LoadedModule], ModuleFrames | None]) -> None:
        """Where a module has no unwind tables in memory, ask `find`, once for each."""
        ...


class System(Symbols, Code, SystemCalls, Refusals, Claims, Unwinding, Modules, Protocol):
    """All that must be known of one running kernel.

    facts: accessors for built-ins, hooks, the unwinder.  text: [start, end) of the kernel's own
    code, as it runs.  page_tables: address of the top level of the page tables that map the kernel
    in every context, None where that is not known.  heartbeat: of 8 bytes that change with every
    timer tick, or None.  lender: None where the kernel cannot lend memory.
    """

    facts: Facts

    @property
    def text(self) -> tuple[int, int]: ...

    def leaving_call_sites(self) -> System:
        """The same system, of which the places where its own tracer may put a call while it runs
        are left to that: refused, and taken for rewritten."""
        ...

    @property
    def page_tables(self) -> int | None: ...

    @property
    def heartbeat(self) -> int | None: ...

    @property
    def lender(self) -> Lender | None: ...

    def clock(self) -> Clock | None:
        """facts.clock, read anew: its now_ns is the last tick's."""
        ...

    def online_cpus(self) -> Sequence[int]:
        """The CPUs that run now, of facts.cpus."""
        ...
