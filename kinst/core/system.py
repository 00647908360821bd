"""The protocol of systems: what kinst asks an operating system's folder of kinst.systems about the
running kernel.

Each small protocol is one topic; System combines them. A system is found from the kernel's image.
Addresses are virtual unless a name says physical.

Tested by tests/test_contracts.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

from kinst.core.dataclass import dataclass
from kinst.core.probe import Argument, Function, Selection
from kinst.core.words import MASK

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HOOK_BYTES = 32  # live bytes of a hooked function that a detour may displace


@dataclass(frozen=True, slots=True)
class VirtualLayout:
    """Where a system maps its kernel on one ISA. All ranges are virtual addresses [low, high).

    Attributes:
        image: where the kernel's image is mapped.
        scratch: where kinst may map scratch.
        reserved: parts of `scratch` that the system will use later.
        grows_after_text: whether the system will use the free addresses after its text over time.
    """

    image: tuple[int, int]
    scratch: tuple[int, int]
    reserved: tuple[tuple[int, int], ...] = ()
    grows_after_text: bool = False


@dataclass(frozen=True, slots=True)
class PerCpu:
    """How code in the kernel addresses its CPU's per-CPU data and its current thread."""

    # The LLVM address space whose address 0 is this CPU's data (x86: 256 is %gs), or None.
    address_space: int | None
    # If there is no address space: inline assembly that reads the address of the data, or the name
    # of a register if llvmlite has no assembly parser for the ISA (%tpidr_el1).
    base_asm: str = ""
    # Inline assembly that reads the current thread's address, if the kernel keeps it in a register.
    thread_asm: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """How code in the target finds the value of a built-in variable: a chain of loads.

    The chain starts with an address: the 8 bytes at per-CPU base + per_cpu. If per_cpu is None, it
    starts with the constant `address` or, if `thread` is set, with the current thread's address.
    For each offset but the last, add the offset to the address, and load the next address there.
    Add the last offset: the value is at the resulting address.

    Attributes:
        per_cpu: offset from the per-CPU base, or None.
        offsets: the offsets of the chain; () if the 8 bytes of the per-CPU load are the value.
        size: bytes of the value; for a string, the maximum.
        signed: whether the value is a signed integer.
        string: whether the value is text.
        address: where the chain starts if per_cpu is None and `thread` is False.
        thread: whether the chain starts at the current thread's address, for a kernel that keeps
            this address in a register (PerCpu.thread_asm). If so, per_cpu is None.
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
    """How to convert the cycle counter to time: ns = base_ns + ((cycles - base_cycles) * mult >>
    shift), and wall-clock time = ns + wall_offset.

    Attributes:
        now_ns: the time of this clock, in ns, at which the kernel last updated its own clock.
    """

    base_cycles: int
    base_ns: int
    mult: int
    shift: int
    wall_offset: int
    now_ns: int = 0

    @property
    def words(self) -> bytes:
        """The numbers that clauses load (HEADER_CLOCK of core/layout.py)."""
        numbers = (self.base_cycles & MASK, self.mult, self.base_ns & MASK)
        return b"".join(number.to_bytes(8, "little") for number in numbers)

    def ahead(self, ns: int) -> Clock:
        """Return a clock that shows `ns` more than this clock, and the same wall-clock time."""
        return replace(
            self, base_ns=self.base_ns + ns, wall_offset=self.wall_offset - ns,
            now_ns=self.now_ns + ns,
        )  # fmt: skip

    def from_zero(self) -> Clock:
        """Return a clock for the same time whose base_ns is 0, so that code need not add it.
        Because of rounding, the clock may show 1 ns less than this one.

        If a cycle is longer than 1 ns, return this clock unchanged."""
        if self.mult > 1 << self.shift:
            return self
        zero = self.base_cycles - (self.base_ns << self.shift) // self.mult
        return replace(self, base_cycles=zero, base_ns=0)


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """How to compute D's vtimestamp, in ns, from D's timestamp and values in the kernel: to the
    timestamp, add offset_ns and all values that `plus` finds; then subtract all values that `minus`
    finds."""

    plus: tuple[Access, ...]
    minus: tuple[Access, ...]
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Unwinder:
    """A function of the kernel that unwinds stacks, for clauses to call in the context of a probe.

    Attributes:
        address: address of a C function (saved registers, u64 store[], u32 entries, u32 skip). It
            stores at most `entries` addresses, the saved program counter and then return addresses,
            and returns how many it has stored. It may be called in any context, because it checks a
            stack before reading the stack.
        size: bytes of the saved registers; bytes without a register or constant are zero.
        registers: (offset in the saved registers, D name of a register; "" for the program
            counter).
        constants: (offset in the saved registers, value).
    """

    address: int
    size: int
    registers: tuple[tuple[int, str], ...]
    constants: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UserMemory:
    """How code in the target reads and writes the memory of the current process.

    Attributes:
        read: address of a C function (dst, user src, size) that returns 0 or an error; a bad
            address never causes an oops.
        write: address of a C function (user dst, src, size) that does the same in the other
            direction; 0 if no such function is known.
        mm: how to find the structure of the process's address space. A kernel thread has none (the
            address is 0), and must not call `read` or `write`. None if `read` and `write` may be
            called in any thread.
        arg_start: offset, in that structure, of the start address of the process's arguments; 0 if
            not known.
        arg_end: offset, in that structure, of the end address of these arguments; 0 if not known.
    """

    read: int
    write: int
    mm: Access | None = None
    arg_start: int = 0
    arg_end: int = 0


class Paths(Protocol):
    """Emitter of code that finds a file's path in the kernel's structures.
    kinst.codegen.helpers.paths.PathCode has its other methods."""

    @property
    def longest(self) -> int:
        """Size in bytes of the longest path that the code can find, with the final NUL."""
        ...


@dataclass(frozen=True, slots=True)
class UserState:
    """How to find the user-mode registers of the current thread, and the program of its process.
    Offsets are in bytes.

    Attributes:
        stack: offset, in the thread's structure, of the address of the thread's kernel stack.
        saved: offset, from the kernel stack's address, of the user-mode registers: they are saved
            there when the thread enters the kernel.
        registers: D name of a register -> its offset in the saved registers.
        pc: offset of the program counter in the saved registers.
        frame: offset of the frame pointer in the saved registers.
        next_at: offset of the caller's frame pointer, from the address in a frame pointer.
        return_at: offset of the return address, from the address in a frame pointer.
        address_mask: mask of the bits of a return address that are part of the address.
        code_start: offset, in the structure of the address space (UserMemory.mm), of the address at
            which the program's code was loaded.
        program: offsets of a chain of pointers, from that structure to the text of the program's
            file name.
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
    """How to find all threads of the kernel and their stacks in memory. Offsets are in bytes from
    the start of a thread's structure, unless another structure is named.

    The first threads of all processes are in one circular list; the threads of each process are in
    a list of their own. A thread's structure contains a link for each list. The first word of a
    link is the address of the next thread's link.

    Attributes:
        first: address of the structure of a thread that always exists and is its process's first.
        next: offset of the link in the list of first threads.
        group: offset of a pointer to the structure that all threads of a process share.
        head: offset, in that shared structure, of the head of the list of the process's threads.
        node: offset of the link in the list of the process's threads.
        stack: offset of a pointer to the thread's stack.
        pointer: offset of the saved stack pointer of a thread that does not run.
        running: offset of a byte that is not 0 while the thread runs on a CPU; -1 if there is no
            such byte.
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
class NextCall:
    """How to see in memory that a thread is about to execute a program: the kernel first stores the
    number of the system call on the thread's stack. Offsets are in bytes.

    Attributes:
        threads: how to find all threads in memory.
        name: offset in a thread's structure of its name.
        name_size: size in bytes of the name.
        number: offset from the start of a thread's stack of the number of the system call that the
            thread has entered (4 bytes).
        execve: the number of execve(2).
    """

    threads: Threads
    name: int
    name_size: int
    number: int
    execve: int


@dataclass(frozen=True, slots=True)
class CommandSpan:
    """How to see in memory when a process begins to run a command, and when the process has
    ended."""

    # Address of the function that execve(2) enters.
    entry: int
    # Offset in a thread's structure of 4 bytes: 0 while the thread lives, `zombie` after it has
    # ended and until its parent has asked for its status.
    exit_state: int
    zombie: int
    # Offset in a thread's structure of a pointer to the structure that the threads of its process
    # share; and offset in that shared structure of the number of threads (4 bytes).
    group: int
    thread_count: int
    # Offset in a thread's structure of a byte that is not 0 while the thread runs on a CPU; -1 if
    # there is no such byte.
    running: int
    # Offset in a thread's structure of 4 bytes that are not 0 while the thread waits.
    waiting: int
    # Offset in a thread's structure of the head of the list of its child processes: its first word
    # is the address of the first child's link. And offset of that link in the structure of a
    # child's first thread.
    children: int
    sibling: int
    # None if kinst sees a process execute a program only by a breakpoint at `entry`.
    next_call: NextCall | None = None


@dataclass(frozen=True, slots=True)
class TrapPath:
    """How the kernel's breakpoints and faults reach kinst's code: addresses of the functions that
    kinst hooks.

    Attributes:
        hooks: addresses of the functions Facts.trap_hook, fault_hook and bug_hook, without those
            that are not known. A detour may displace the first HOOK_BYTES of each function.
        pc_delta: the program counter that a breakpoint saves, minus the breakpoint's address.
    """

    hooks: tuple[int, ...]
    pc_delta: int


@dataclass(frozen=True, slots=True)
class PageAllocator:
    """How to allocate memory from the kernel's page allocator. kinst makes one of the kernel's
    threads call the allocator.

    Attributes:
        entries: addresses of functions. At the entry of each, kinst may make a thread call the
            allocator: the thread may sleep there, holds no lock, and takes interrupts. The
            functions that are called most often come first; the last is called periodically, if the
            kernel has such a function.
        return_address: return address for such a call: an address that control reaches in no other
            way.
        returning: return address for such a call on an ISA without a link register: the entry of a
            rarely called function that only returns an error. 0 if the kernel has no such function,
            and kinst must use `return_address`.
        allocate: address of the C function (flags, order), which returns the address of page <<
            order bytes, or 0.
        flags: value of the argument `flags`.
        release: address of the C function (address, order), which frees the memory.
        forget: address of the C function (start, end), which makes all CPUs forget their
            translations of these addresses, after they have been unmapped.
        page: bytes of a page.
        threads: how to find all threads and their stacks. kinst frees the memory only if no thread
            executes in it.
        traps: how breakpoints and faults reach kinst's code.
        tracer: how to see that nothing uses the kernel's own tracer: (address of a word, value of
            the word in this case). None if not known. Only in this case may kinst undo the writes
            of Claims.claims().
    """

    entries: tuple[int, ...]
    return_address: int
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
class Signals:
    """How clauses send a signal to the current thread.

    A clause cannot send the signal itself: the code that its probe interrupts may hold a lock that
    sending takes. So the clause asks the kernel to call a function later, in an interrupt. For this
    the kernel has a structure, called a work.

    Attributes:
        queue: address of a C function (work) that queues a work; it may be called anywhere.
        function: offset in a work at which the address of the function to call is stored. All other
            bytes of a new work are 0. The function gets the work's address.
        send: address of a C function (signal, thread, 0) that sends a signal.
        stop: number of the signal that stops a process.
    """

    queue: int
    function: int
    send: int
    stop: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the running kernel, which its system finds once the kernel's address is known.
    The defaults are those of a system that knows nothing."""

    # The system's name and release, for messages.
    os: str = ""
    release: str = ""
    # Running address minus linked address.
    slide: int = 0
    cpus: int = 1
    # How built-ins are found, by D name: cpu, pid, tid, ppid, uid, gid, execname, curthread, errno;
    # and interrupt, a word in which a CPU notes that it handles an interrupt (interrupt_masks).
    builtins: Mapping[str, Access] = field(default_factory=dict)
    # Address of a C function (dst, src, size) that copies without faulting and returns 0 or an
    # error; 0 if there is none.
    nofault_read: int = 0
    # Address of a C function (kernel dst, src, size) that writes without faulting and returns 0 or
    # an error, also for memory that is read-only; 0 if there is none. Its caller makes sure that
    # nofault_read accepts the bytes at dst.
    nofault_write: int = 0
    # Address of the C function (text) that ends the kernel with a message, or 0.
    panic: int = 0
    # How clauses send signals; None if that is not known.
    signals: Signals | None = None
    # Address of the C function that the kernel calls at a breakpoint with a pointer to the saved
    # registers, or 0.  Their word at trap_pc_offset is the program counter: the breakpoint's
    # address plus trap_pc_delta.
    trap_hook: int = 0
    trap_pc_offset: int = 0
    trap_pc_delta: int = 0
    # Address of the C function that looks up the exception tables by address (its first argument),
    # or 0.
    fault_hook: int = 0
    # The per-CPU base register's value on each CPU, in CPU order.
    per_cpu_bases: Sequence[int] = ()
    # Address of the thread that a CPU runs as long as the kernel's per-CPU data name no thread; 0
    # if they always do.
    first_thread: int = 0
    clock: Clock | None = None
    # How code finds the per-CPU data and the current thread, from which the chains of `builtins`
    # start; None if it cannot.
    per_cpu: PerCpu | None = None
    # Address of the C function that looks up a BUG or WARN trap by address (its first argument), or
    # 0. If it is known, it is hooked like fault_hook, and such traps may be planted.
    bug_hook: int = 0
    thread_time: ThreadTime | None = None
    # Name of the kernel's own tracer (see Claims), for messages.
    tracer: str = "the kernel's own tracer"
    # None if the kernel has none that clauses can call.
    unwinder: Unwinder | None = None
    # For accesses that start at the current thread: registers that may hold its address, by the
    # stub's names.  The first that exists and is not 0 holds the address.
    thread_registers: tuple[str, ...] = ()
    user: UserMemory | None = None
    # None if they are not known.
    paths: Paths | None = None
    user_state: UserState | None = None
    # For each level of interrupts, a mask of bits of builtins["interrupt"]: if any of the bits is
    # set, the CPU handles an interrupt of that level, and does not run the interrupted thread.
    interrupt_masks: tuple[int, ...] = ()
    # A per-CPU counter of 4 bytes.  While a thread has raised it, the thread stays on that CPU, and
    # other threads do not run there.  None if the kernel has no such counter.
    pin: Access | None = None
    # Address of a u32 that says whether the kernel preempts threads that run in it: not while the
    # u32 is 0 or 1. The address is 0 if this kernel never preempts them, and None if it always may.
    preemption: int | None = None
    # (D name, offset) of registers as the kernel saves them when it is interrupted.
    saved_registers: tuple[tuple[str, int], ...] = ()
    # None if kinst does not know how to see in memory that a process has ended.
    command_span: CommandSpan | None = None
    # The process id of a user program, whose per_cpu_bases are those of its threads; 0 for a
    # kernel.
    process: int = 0
    # Bytes of a thread's stack in the kernel, which begins at a multiple of this; 0 if not known.
    stack_size: int = 0

    @property
    def only_counts(self) -> bool:
        """Whether trampolines only count, without traps and calls, as in a user program."""
        return self.process > 0


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a loaded module, with the address at which it is loaded."""

    name: str
    address: int


class LoadedModule(Protocol):
    """A module as it is loaded into the kernel.

    Attributes:
        text: addresses [start, end) of the module's code.
    """

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> tuple[int, int]: ...

    @property
    def functions(self) -> Sequence[Function]: ...

    @property
    def sections(self) -> Sequence[Section]: ...


class Symbols(Protocol):
    """Names and addresses of the kernel's functions and variables."""

    def functions(self) -> Sequence[Function]:
        """Return all functions of the kernel and its modules, in address order."""
        ...

    def lookup(self, name: str) -> Sequence[Function]:
        """Return the functions with exactly this name or alias, in address order."""
        ...

    def glob(self, pattern: str) -> Sequence[Function]:
        """Return the functions whose names match an sh(1) pattern, in address order."""
        ...

    def counterpart(self, name: str) -> str:
        """Return, for a hint, what this kernel has in place of a function that only another
        system's kernel has; "" if nothing is known."""
        ...

    def function_at(self, address: int) -> Function | None:
        """Return the function whose code contains this address; None if no function's does."""
        ...

    def variable_at(self, address: int) -> tuple[str, str, int] | None:
        """Return (module, name, start address) of the variable that contains this address; None if
        there is no such variable.
        """
        ...


class Code(Protocol):
    """Read access to the kernel's code as it is now."""

    def code(self, address: int, size: int) -> bytes:
        """Return bytes of code as the kernel runs them: from memory or, if the kernel is not loaded
        yet, from its file. Raises KinstError if nothing is mapped at the address."""
        ...


@dataclass(frozen=True, slots=True)
class CallResult:
    """An instruction that all system calls reach after their functions have returned.

    Attributes:
        address: the instruction's running address.
        value: how to find the system call's result when the instruction is about to run.
        selection: how to tell which system call has returned.
    """

    address: int
    value: Argument
    selection: Selection


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A system call of the kernel: name, function, arguments and results.

    Attributes:
        name: its name in programs, such as read.
        function: the kernel's function that each call enters.
        arguments: how to find the program's arguments at the entry of `function`.
        module: the module in the names of its probes. System calls of 64-bit programs and of 32-bit
            programs may have different modules.
        results: instructions at which the result of each call can be found; () if they are not
            known.
        never_returns: whether no call returns a result to the program.
    """

    name: str
    function: Function
    arguments: tuple[Argument, ...]
    module: str = ""
    results: tuple[CallResult, ...] = ()
    never_returns: bool = False


class SystemCalls(Protocol):
    """The kernel's system calls."""

    def system_calls(self) -> Sequence[SystemCall]:
        """Return all system calls, sorted by name; () if they are not known."""
        ...


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A place in the kernel, often in several functions, that its authors have named for tracers.

    Attributes:
        subsystem: the part of the kernel that it belongs to; "" if that is not known.
    """

    subsystem: str
    name: str


@dataclass(frozen=True, slots=True)
class TracepointSite:
    """An instruction that runs once for each firing of a tracepoint, while its switch is on.

    Attributes:
        function: the function that contains the instruction.
        code: the instruction's bytes; b"" if it is the function's first instruction.
        address: the instruction's address, if `code` is not b"".
        arguments: how to find the tracepoint's arguments when the instruction is about to run.
        switch: address of the kernel's switch that must be on so that control reaches the
            instruction.
    """

    function: Function
    code: bytes
    address: int
    arguments: tuple[Argument, ...]
    switch: int


class Tracepoints(Protocol):
    """Tracepoints, and the switches that lead control to them."""

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        """Return the tracepoints whose name matches an sh(1) pattern, by subsystem and name; none
        if they are not known."""
        ...

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        """Return the sites of a tracepoint, all of them.  Raises KinstError, with the reason, if
        it cannot be traced."""
        ...

    def switched(
        self, switches: Collection[int], *, on: bool
    ) -> Sequence[tuple[int, bytes]] | None:
        """Return the writes (address, bytes) that turn switches on for kinst, or that turn them off
        again if only kinst uses them.

        After the writes, the system can still turn the same switches on and off for its own users.
        The machine must be stopped.

        Returns None while the system is about to change a switch: the caller must let the machine
        run for a moment, and ask again.  Raises KinstError if a switch is not as it was when its
        sites were found.

        Args:
            switches: TracepointSite.switch of each switch.
            on: True to turn the switches on for kinst, False to undo that.
        """
        ...


class SiteRules(Protocol):
    """A system's rules about sites: which instructions must not be planted, and which need special
    treatment."""

    def refusals(self, function: Function) -> str:
        """Return why no instruction of this function may be planted; "" if instructions may be
        planted.
        """
        ...

    def call_refusal(self, function: Function) -> str:
        """Return why entries and returns of this function do not stand for the calls of its name;
        "" if they do. Its instructions may be planted all the same.
        """
        ...

    def exempt(self) -> frozenset[int]:
        """Return the addresses of instructions that may be planted although refusals() refuses
        their function. When control reaches such an instruction, the kernel is in the same state as
        in functions that may be planted."""
        ...

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """Return for each instruction, given as (address, size), why it may not be planted (jump
        label, static call, ...); "" if it may be planted.
        """
        ...

    def has_fixup(self, address: int) -> bool:
        """Whether the kernel expects the instruction at this address to fault, since the exception
        table has an entry for it. If so, the instruction's displaced copy needs the fault hook."""
        ...

    def fixup(self, address: int) -> int | None:
        """Return where control continues if the instruction at this address faults, from its
        exception-table entry; None if it has no entry."""
        ...

    def landings(self) -> npt.NDArray[np.uint64]:
        """Return the addresses of code to which the system's own tables can lead, ascending:
        fix-ups, and targets of jumps that the system may write later."""
        ...

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return for each instruction, given as (address, size), whether the system may rewrite it
        while the kernel runs, and claims() cannot prevent that."""
        ...

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return for each instruction, given as (address, size), whether kinst leaves it to the
        kernel's own function tracer. True only with -x plant=no-callsite, and only if that tracer
        may write to any of its bytes."""
        ...

    def is_bug(self, address: int) -> bool:
        """Whether the instruction at this address is a trap that the kernel looks up by address
        (BUG or WARN). If so, the instruction's displaced copy needs the bug hook."""
        ...

    def is_fatal(self, address: int) -> bool:
        """Whether the trap instruction at this address ends the thread or the kernel (BUG): control
        never continues after it."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Return the names of functions that never return to their callers."""
        ...


class Claims(Protocol):
    """Agreement with the kernel's own tracer: it must not rewrite instructions that kinst has
    claimed."""

    def claims(self, addresses: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        """Return writes (address, bytes) to the kernel's data that keep its own tracer from
        rewriting these instructions. The caller makes them before it patches the instructions.
        Raises KinstError if the tracer uses one of the instructions now."""
        ...

    def releases(self, claimed: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        """Return writes (address, bytes) that undo `claimed`, the writes of claims(). The caller
        makes them after it has restored the instructions."""
        ...


class Unwinding(Protocol):
    """How to find the callers of a function: frame rules and backtraces."""

    def frame_rule(self, address: int) -> tuple[str, int, int] | None:
        """Return how to find the caller's frame at an instruction: (D name of a base register,
        offset from its value to the CFA, offset from the CFA to the return address). None if the
        unwinder has no rule."""
        ...

    def frame_address(self, address: int) -> tuple[str, int] | None:
        """Return how to find the canonical frame address (CFA) at an instruction: (D name of a base
        register, offset from its value to the CFA). None if that is not known."""
        ...

    def backtrace(self, pc: int, registers: Mapping[str, int]) -> tuple[int, ...]:
        """Return the program counter and the return addresses of a stopped CPU, innermost first.

        Args:
            registers: the CPU's registers, by D name.
        """
        ...

    def waits_in(self, thread: int) -> str:
        """Return the name of the function in which a sleeping thread waits; "" if that is not
        known.

        Args:
            thread: address of the thread's structure.
        """
        ...


@dataclass(frozen=True, slots=True)
class CallerRule:
    """How to find the caller's frame at one address of a module's file.

    Attributes:
        register: DWARF number of the base register of the CFA.
        offset: offset from the register's value to the CFA.
        return_register: DWARF number of the register with the return address; used if return_at is
            None.
        return_at: offset from the CFA to the return address; None if the return address is in a
            register.
    """

    register: int
    offset: int
    return_register: int
    return_at: int | None


@dataclass(frozen=True, slots=True)
class ModuleFrames:
    """Call frame information from a module's file.

    Attributes:
        rule: (address in the file) -> the rule there; None if the file has none.
        back: (running address) -> address in the file; None if the file has no such code.
    """

    rule: Callable[[int], CallerRule | None]
    back: Callable[[int], int | None]


class LoadedModules(Protocol):
    """The modules that are loaded into the kernel."""

    def modules(self) -> Sequence[LoadedModule]:
        """Return all loaded modules; () for a system without modules."""
        ...

    def find_frames_with(self, find: Callable[[LoadedModule], ModuleFrames | None]) -> None:
        """Set the function that finds a module's call frame information in a file. It is called
        once for each module that has no unwind tables in memory."""
        ...


class System(
    Symbols, Code, SystemCalls, Tracepoints, SiteRules, Claims, Unwinding, LoadedModules, Protocol
):
    """Everything that kinst must know about one running kernel.

    Attributes:
        facts: how to find built-in variables, functions to hook, the unwinder.
        text: addresses [start, end) of the kernel's own code, as it runs.
        page_tables: address of the top-level page table that maps the kernel in every context, or
            None.
        heartbeat: address of 8 bytes that change with every timer tick, or None.
        allocator: the kernel's page allocator; None if kinst cannot make a thread call it.
    """

    facts: Facts

    @property
    def text(self) -> tuple[int, int]: ...

    def leaving_call_sites(self) -> System:
        """Return this system for -x plant=no-callsite: it leaves the call sites of the kernel's own
        tracer to that tracer. They are refused, and count as rewritten at run time."""
        ...

    @property
    def page_tables(self) -> int | None: ...

    @property
    def heartbeat(self) -> int | None: ...

    def panicked(self) -> str:
        """Return a sentence if memory shows that the kernel has panicked; "" if it has not, or if
        that is not known."""
        ...

    def allocation_flag(self, name: str) -> int:
        """Return the bits of a flag of memory allocations, by its name; 0 if the kernel does not
        tell them."""
        ...

    @property
    def allocator(self) -> PageAllocator | None: ...

    def clock(self) -> Clock | None:
        """Read the kernel's clock again and return it; now_ns is the time of the kernel's last
        update of the clock. None if kinst cannot read the clock.
        """
        ...

    def online_cpus(self) -> Sequence[int]:
        """Return the numbers of the CPUs that are online, among Facts.cpus."""
        ...
