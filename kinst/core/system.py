"""Systems: an operating system's answers, or those for any kernel at all, about the kernel that
runs.

Each small protocol is one question; System is all of them. A system is one file or folder of
kinst.systems, found from the kernel's image. Addresses are virtual unless a name says physical.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

from kinst.core.dataclass import dataclass
from kinst.core.probe import Argument, Function

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HOOK_BYTES = 32  # live bytes of a hooked function that a detour may displace


@dataclass(frozen=True, slots=True)
class VirtualLayout:
    """Where a system keeps its kernel on one ISA: ranges [low, high) of virtual addresses.

    Attributes:
        image: where its image is mapped.
        scratch: where kinst may map scratch.
        reserved: parts of that which the system fills later.
        grows_after_text: whether it will use the free addresses after its text over time.
    """

    image: tuple[int, int]
    scratch: tuple[int, int]
    reserved: tuple[tuple[int, int], ...] = ()
    grows_after_text: bool = False


@dataclass(frozen=True, slots=True)
class PerCpu:
    """How code in the kernel reaches its CPU's data, and the current thread."""

    # An LLVM address space whose zero is this CPU's data (x86: 256 is %gs), or None.
    address_space: int | None
    # Without an address space: inline assembly that reads the data's address, or a register if
    # llvmlite cannot reach LLVM's assembly parser for the ISA (%tpidr_el1).
    base_asm: str = ""
    # The same for the current thread's address, if the kernel keeps it in a register.
    thread_asm: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """How in-target code finds a built-in's value, as data.

    Load 8 bytes at per-CPU base + per_cpu (or take the constant `address` if per_cpu is None), add
    the first offset and load a pointer, and so on. The value lies at the last offset.

    Attributes:
        per_cpu: offset from the per-CPU base, or None.
        offsets: as above; none if the per-CPU load itself is the value.
        size: bytes of the value or, for a string, its most bytes.
        signed: whether the value is signed.
        string: whether the value is text.
        address: where to start if there is no per_cpu.
        thread: start from the current thread's address, which the kernel keeps in a register
            (PerCpu.thread_asm); per_cpu is None then.
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

    now_ns: when the kernel last looked at its clock, on the same scale."""

    base_cycles: int
    base_ns: int
    mult: int
    shift: int
    wall_offset: int
    now_ns: int = 0

    def from_zero(self) -> Clock:
        """Return a clock with base_ns 0, counted from the cycles at which this one showed 0: it
        shows the same, or 1 ns less. If a cycle is longer than a ns, return this clock."""
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

    Attributes:
        address: of a C function (saved registers, u64 store[], u32 entries, u32 skip) that stores
            the saved program counter and then return addresses, at most `entries`, and returns how
            many. It reads stacks only after checking them, in any context.
        size: bytes of the saved registers; what no other field sets is zero.
        registers: (offset in them, D name of a register, "" for the program counter).
        constants: (offset in them, value).
    """

    address: int
    size: int
    registers: tuple[tuple[int, str], ...]
    constants: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UserMemory:
    """How in-target code reaches the memory of the current process.

    Attributes:
        read: address of a C function (dst, user src, size) -> 0 or error, which never oopses.
        write: address of one (user dst, src, size), or 0.
        mm: finds the address space's structure, 0 for a kernel thread, which has none; None if the
            functions check that.
        arg_start: offset in it of the address of the process's arguments; 0 if not known.
        arg_end: offset in it of the address where they end; 0 if not known.
    """

    read: int
    write: int
    mm: Access | None = None
    arg_start: int = 0
    arg_end: int = 0


class Paths(Protocol):
    """Emits code that finds the paths of files: kinst.codegen.helpers.paths.PathCode has its
    methods."""

    @property
    def longest(self) -> int:
        """Bytes of the longest path, with its NUL."""
        ...


@dataclass(frozen=True, slots=True)
class UserState:
    """The user mode of the current thread, and the program of its process.

    Attributes:
        stack: offset in a task of the address of its kernel stack.
        saved: offset, from there, of the registers saved at entry from user mode.
        registers: offsets in those, by D name.
        pc: offset in those of the program counter.
        frame: offset in those of the frame pointer.
        next_at: offset of the caller's frame pointer, from a frame pointer.
        return_at: offset of the return address, from a frame pointer.
        address_mask: the bits of a return address that are an address.
        code_start: offset in mm of the address where the program's code was loaded.
        program: offsets that lead from mm to the text of its file name.
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
    """How to find all threads and their stacks. Offsets are in bytes.

    Attributes:
        first: address of the first thread of a process that always exists.
        next: offset in such a thread of the list of them (its first word is the address of the next
            one's list).
        group: offset of the address of what the threads of a process share.
        head: offset in that of the list of its threads.
        node: offset in a thread of its place in that list.
        stack: offset of the address of its stack.
        pointer: offset of the stack pointer of a thread that does not run.
        running: offset of 4 bytes that are not 0 while it runs on a CPU, or -1.
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
class CommandSpan:
    """Where a process begins to be a command, and how memory shows that it has ended."""

    # Address of the function that execve(2) enters.
    entry: int
    # In a thread: offset of 4 bytes, which are `zombie` once it has ended and nobody has asked for
    # its status, and 0 while it lives.
    exit_state: int
    zombie: int
    # In a thread: offset of the address of what the threads of its process share; in that: offset
    # of how many there are (4 bytes).
    group: int
    thread_count: int
    # In a thread: offset of 4 bytes that are not 0 while it runs on a CPU, or -1.
    running: int
    # In a thread: offset of 4 bytes that are not 0 while it waits.
    waiting: int
    # In a thread: offsets of the list of its processes' first threads, whose first word is the
    # address of the first one's place in it, and of a thread's own place in such a list.
    children: int
    sibling: int


@dataclass(frozen=True, slots=True)
class TrapPath:
    """How the kernel's breakpoints and faults reach kinst.

    Attributes:
        hooks: addresses of the functions of which a detour may displace HOOK_BYTES: trap_hook,
            fault_hook and bug_hook of Facts, if known.
        pc_delta: Facts.trap_pc_delta.
    """

    hooks: tuple[int, ...]
    pc_delta: int


@dataclass(frozen=True, slots=True)
class PageAllocator:
    """How to allocate memory from the kernel's own allocator, by calls that one of its threads
    makes.

    Attributes:
        entries: addresses of functions at whose entry a thread may be made to call: it may sleep,
            holds no lock, and takes interrupts.
        landing: an address that control reaches in no other way.
        returning: address of a function that only returns an error and is rarely called; or 0.
        allocate: address of the C function (flags, order), which returns the address of page <<
            order bytes or 0.
        flags: its first argument.
        release: address of the C function (address, order).
        forget: address of the C function (start, end), which makes all CPUs forget translations of
            addresses that are no longer mapped.
        page: bytes of a page.
        threads: how to see that no thread is in the memory before it is freed.
        traps: how breakpoints and faults reach kinst.
        tracer: address of a word, and its value while the kernel's own tracer has no user (see
            Claims); None if not known.
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
    """Facts about the running kernel, from its system, once its place in memory is known. The
    defaults are those of a system that knows nothing."""

    # The system's name and release, for messages.
    os: str = ""
    release: str = ""
    # Running address minus linked address.
    slide: int = 0
    cpus: int = 1
    # How built-ins are found, by D name: cpu, pid, tid, ppid, uid, gid, execname, curthread, errno;
    # and interrupt, a word in which a CPU notes that it handles an interrupt (interrupt_masks).
    builtins: Mapping[str, Access] = field(default_factory=dict)
    # Address of a C function (dst, src, size) -> 0 or error that never faults, or 0.
    nofault_read: int = 0
    # The C function that a breakpoint reaches with a pointer to saved registers, or 0.  Those hold
    # at trap_pc_offset the program counter: the breakpoint's address plus trap_pc_delta.
    trap_hook: int = 0
    trap_pc_offset: int = 0
    trap_pc_delta: int = 0
    # The C function that looks up exception tables by address (first argument), or 0.
    fault_hook: int = 0
    # The per-CPU base register's value on each CPU, in CPU order.
    per_cpu_bases: tuple[int, ...] = ()
    clock: Clock | None = None
    # How code reaches what builtins start from; None if it cannot.
    per_cpu: PerCpu | None = None
    # The C function that looks up a BUG or WARN trap by its address (first argument), or 0.  With
    # one, such traps may be planted: it is hooked as fault_hook is.
    bug_hook: int = 0
    thread_time: ThreadTime | None = None
    # Name of the kernel's own tracer (see Claims), for messages.
    tracer: str = "the kernel's own tracer"
    # None if the kernel has none that clauses can call.
    unwinder: Unwinder | None = None
    # For accesses that start from the current thread: registers by the stub's names; the first that
    # exists and is not 0 holds its address.
    thread_registers: tuple[str, ...] = ()
    user: UserMemory | None = None
    # None if they are not known.
    paths: Paths | None = None
    user_state: UserState | None = None
    # A mask of bits of builtins["interrupt"] for each level: if any bit is set, the CPU handles an
    # interrupt of that level, which is no part of the thread that it interrupted.
    interrupt_masks: tuple[int, ...] = ()
    # A counter of 4 bytes for each CPU: a thread that has raised it stays on that CPU, and others
    # stay off it.  None if there is none.
    pin: Access | None = None
    # Address of a word (u32) that is 0 or 1 while no thread loses its CPU in the kernel
    # involuntarily; 0 if none ever does; None if any may.
    preemption: int | None = None
    # (D name, offset) of registers as the kernel saves them when it is interrupted.
    saved_registers: tuple[tuple[str, int], ...] = ()
    # None if it is not known how the life of a process shows in memory.
    command_span: CommandSpan | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a loaded module and its running address."""

    name: str
    address: int


class LoadedModule(Protocol):
    """A part of the kernel with a file of its own, as it is loaded. text: [start, end)."""

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
        """Return every function of every image, in address order."""
        ...

    def lookup(self, name: str) -> Sequence[Function]:
        """Return the functions of exactly this name (or alias), in address order."""
        ...

    def glob(self, pattern: str) -> Sequence[Function]:
        """Return the functions whose name matches an sh(1) pattern, in address order."""
        ...

    def counterpart(self, name: str) -> str:
        """Return what this kernel has for a function of another system's kernel, or ""."""
        ...

    def function_at(self, address: int) -> Function | None:
        """Return the function whose code holds this address."""
        ...

    def variable_at(self, address: int) -> tuple[str, str, int] | None:
        """Return (module, name, start) of the variable that holds this address."""
        ...


class Code(Protocol):
    """Code as it is now."""

    def code(self, address: int, size: int) -> bytes:
        """Return the bytes that the kernel runs there: from its memory or, if it is not loaded yet,
        from its file. Raises KinstError if nothing is there."""
        ...


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A system call as the kernel has it."""

    # As programs know it: read.
    name: str
    # The function that each call of it enters, and returns from with its result.
    function: Function
    # Where the program's arguments are when that function is entered.
    arguments: tuple[Argument, ...]


class SystemCalls(Protocol):
    """Where system calls are."""

    def system_calls(self) -> Sequence[SystemCall]:
        """Return all system calls, by name; none if they are not known."""
        ...


class SiteRules(Protocol):
    """Instructions that must not be planted, and special ones among those that may be."""

    def refusals(self, function: Function) -> str:
        """Return why no instruction of this function may be planted, or ""."""
        ...

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """Return, for each (address, size), why this instruction may not be planted (jump label,
        static call, ...), or ""."""
        ...

    def has_fixup(self, address: int) -> bool:
        """Whether the kernel expects this instruction to fault (it has an exception-table entry),
        so that its displaced copy needs the fault hook."""
        ...

    def fixup(self, address: int) -> int | None:
        """Return where control goes if this instruction faults (from its exception-table entry), or
        None."""
        ...

    def landings(self) -> npt.NDArray[np.uint64]:
        """Return the addresses of code that the system's own tables lead to, ascending: fix-ups,
        and targets of jumps that it may yet write."""
        ...

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return, for each (address, size), whether the system may write there while it runs and
        claims() cannot prevent it."""
        ...

    def left(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return, for each (address, size), whether any of it is left to the system's own
        tracer."""
        ...

    def is_bug(self, address: int) -> bool:
        """Whether this instruction is a trap that the kernel looks up by its address, so that its
        displaced copy needs the bug hook."""
        ...

    def is_fatal(self, address: int) -> bool:
        """Whether this trap instruction ends the thread or the kernel (BUG), so that nothing runs
        after it."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Return the names of functions that never return to their caller."""
        ...


class Claims(Protocol):
    """An agreement with the kernel's own tracer."""

    def claims(self, addresses: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        """Return data writes that keep the kernel's own tracer away from these instructions, to be
        made before they are patched or covered by a jump. Raises KinstError if it uses one of them
        now."""
        ...

    def releases(self, claimed: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        """Return data writes that undo claims(), to be made after the sites are restored."""
        ...


class Unwinding(Protocol):
    """How to find callers."""

    def frame_rule(self, address: int) -> tuple[str, int, int] | None:
        """Return the CFA rule at an instruction, (base register's D name, offset, offset of the
        return address from the CFA); None if the unwinder has none."""
        ...

    def frame_address(self, address: int) -> tuple[str, int] | None:
        """Return (base register's D name, offset) of the canonical frame address at an
        instruction."""
        ...

    def backtrace(self, pc: int, registers: Mapping[str, int]) -> tuple[int, ...]:
        """Return the program counter and the return addresses of a stopped CPU, innermost first.
        registers: by D name."""
        ...

    def waits_in(self, thread: int) -> str:
        """Return the name of the function in which a thread waits that does not run, or "" if that
        is not known.  thread: its address."""
        ...


@dataclass(frozen=True, slots=True)
class CallerRule:
    """Where the caller's frame is at one address of a module's file.

    Attributes:
        register: DWARF number of the register from which the CFA is found.
        offset: from its value to the CFA.
        return_register: the register that holds the return address if return_at is None.
        return_at: offset of the return address from the CFA, or None.
    """

    register: int
    offset: int
    return_register: int
    return_at: int | None


@dataclass(frozen=True, slots=True)
class ModuleFrames:
    """A module's call frame information.

    Attributes:
        rule: the rule at an address of its file.
        back: from a running address to the file's, or None.
    """

    rule: Callable[[int], CallerRule | None]
    back: Callable[[int], int | None]


class LoadedModules(Protocol):
    """Modules that are loaded into the kernel."""

    def modules(self) -> Sequence[LoadedModule]:
        """Return all of them; () for a system that has none."""
        ...

    def find_frames_with(self, find: Callable[[LoadedModule], ModuleFrames | None]) -> None:
        """Ask `find`, once for each module, for modules that have no unwind tables in memory."""
        ...


class System(Symbols, Code, SystemCalls, SiteRules, Claims, Unwinding, LoadedModules, Protocol):
    """All that must be known about one running kernel.

    Attributes:
        facts: how built-ins are found, hooks, the unwinder.
        text: [start, end) of the kernel's own code, as it runs.
        page_tables: address of the top level of the page tables that map the kernel in every
            context, or None.
        heartbeat: address of 8 bytes that change with every timer tick, or None.
        allocator: the kernel's page allocator; None if it cannot be called.
    """

    facts: Facts

    @property
    def text(self) -> tuple[int, int]: ...

    def leaving_call_sites(self) -> System:
        """Return the same system, except that it leaves to its own tracer the places where that may
        put a call while it runs: they are refused, and count as rewritten."""
        ...

    @property
    def page_tables(self) -> int | None: ...

    @property
    def heartbeat(self) -> int | None: ...

    @property
    def allocator(self) -> PageAllocator | None: ...

    def clock(self) -> Clock | None:
        """Read facts.clock anew: its now_ns is the last tick's."""
        ...

    def online_cpus(self) -> Sequence[int]:
        """Return the CPUs that run now, of facts.cpus."""
        ...
