"""Protocols of targets: a machine is a way to reach a kernel, and a target is the kernel that it
reaches.

A Target has four parts: KernelMemory, Stopping, Planting and Commands. The defaults of each part
are right for a machine that lacks the part, so a machine defines only what it can do. Addresses are
virtual unless a name says physical.

Tested by tests/test_contracts.py, tests/test_extending.py and tests/fake."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from kinst.core.boot import Boot, BootSpan
from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.options import NO_OPTIONS, MachineOptions
from kinst.core.system import PageAllocator, VirtualLayout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kinst.core.isa import Isa


@dataclass(frozen=True, slots=True)
class Stopped:
    """Event: the machine has stopped, at a breakpoint or on request.

    Attributes:
        cpu: the CPU that stopped the machine.
        pc: the program counter of that CPU.
    """

    cpu: int
    pc: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Event: the machine has ended, by a panic or a hang or because QEMU died.

    Attributes:
        reason: what happened, for the user.
        console: the last lines of the console.
        kind: "panic", "hang", or "" for any other reason.
    """

    reason: str
    console: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A problem that the kernel reported on its console.

    Attributes:
        kind: "warn" (a WARNING), "oops" (a BUG or an exception that ended a thread) or "hang" (a
            CPU or a task that makes no progress).
        text: what the kernel printed.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """Event: the command of -c has ended.

    Attributes:
        status: exit status, as a shell reports it.
        by_signal: the signal that ended the command; 0 if it ended by itself, or if only a shell
            of the target knows.
    """

    status: int
    by_signal: int = 0


@dataclass(frozen=True, slots=True)
class BootEnded:
    """Event: a kernel whose boot is traced, without a command, is about to start its first program.
    The machine is stopped."""


@dataclass(frozen=True, slots=True)
class CommandReady:
    """Event: a kernel whose boot is traced is up, and the command waits for start_command(). The
    machine is stopped."""


MachineEvent = Stopped | Gone | CommandEnded | BootEnded | CommandReady


class ExecutedBlock(NamedTuple):
    """A block of instructions that a CPU begins to execute. Only its last instruction may jump.

    Attributes:
        cpu: number of the CPU.
        address: address of the first instruction.
        stack: the stack pointer before the first instruction.
        register: returns a register before the first instruction, by its name in D (R_RAX).
    """

    cpu: int
    address: int
    stack: int
    register: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class CodeTable:
    """A direct-mapped table in which a machine looks up code that it has translated (QEMU's TCG).

    Attributes:
        entries: number of entries; each holds one translated piece of code.
        entry: (addresses) -> the index of each address's entry.
    """

    entries: int
    entry: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a kind of machine can do.

    Attributes:
        boots: whether the machine starts a kernel, and so needs the kernel's files.
        writes_code: whether patches and hooks can be written into the kernel.
        runs_commands: whether a command can be run for the time of a trace (-c).
        reads_running: whether memory can be read while the machine runs. If so, bring_up() leaves
            the machine running, and an operation that needs it stopped stops it for that operation
            only. stop() is for data that must not change between two operations.
        code_table: the table of translated code; None if a processor runs the code directly, or if
            the table is not known.
        switches: whether the kernel's switches that lead control to tracepoints can be turned on
            (Tracepoints.switched()).
        watches: whether a stop after a write to watched memory costs less than a stop at a
            breakpoint, after which the machine translates all of its code again.
        traces_boot: whether bring_up() leaves the kernel at the beginning of its boot. The kernel
            has no clock then, so D's timestamp is Stopping.run_time(). False after boot_over().
    """

    boots: bool = False
    writes_code: bool = False
    runs_commands: bool = False
    reads_running: bool = False
    code_table: CodeTable | None = None
    switches: bool = False
    watches: bool = False
    traces_boot: bool = False


@dataclass(frozen=True, slots=True)
class KernelLocation:
    """Where the kernel may be in memory, as far as a machine can tell before the system is known.

    Attributes:
        text: start address of the kernel's code according to the page tables, or None.
        places: addresses inside the kernel's code: trap handlers, and program counters of CPUs in
            the kernel.
        counter_bases: for a user program, the values of the per-CPU base register: each thread has
            one of them, for counters of its own. () for a kernel.
        process: the process id of a user program; 0 for a kernel.
        library: the file name of the library that is traced in place of the user program's own
            file; "" if the program itself is traced.
        booting: whether the kernel is at the beginning of its boot, so that its clock, its per-CPU
            data and most of its tables do not exist yet.
        time: D's timestamp, in ns, at the end of a traced boot. From then on the kernel has a
            clock, but its clock shows another time: D's timestamp must go on from this value. None
            in any other case.
    """

    text: int | None = None
    places: tuple[int, ...] = ()
    counter_bases: tuple[int, ...] = ()
    process: int = 0
    library: str = ""
    booting: bool = False
    time: int | None = None


class Terminal(Protocol):
    """A terminal that is connected to a traced command. Without a terminal, the command has no
    input and its output is a pipe."""

    def size(self) -> tuple[int, int]:
        """Return (rows, columns)."""
        ...

    def connect(self, type_in: Callable[[bytes], None], resize: Callable[[int, int], None]) -> None:
        """Connect the terminal to a command that starts.

        Args:
            type_in: to be called with input for the command, by any thread.
            resize: to be called with rows and columns when they have changed, by any thread.
        """
        ...

    def show(self, data: bytes) -> None:
        """Show output of the traced command on the terminal."""
        ...


class Helpers(Protocol):
    """kinst's own processes in a guest, which run the traced command and forward its output.

    Attributes:
        pid: process id of the prepared command.
        passer: process id of the process that forwards the command's output while the command runs,
            0 if there is none.
    """

    pid: int
    passer: int

    def start_alone(self) -> None:
        """Let the prepared command run. Until go_on(), all of kinst's own processes in the guest
        but `passer` wait."""
        ...

    def go_on(self) -> None:
        """Let kinst's own processes in the guest run again, after the command has ended, so that
        Target.wait() reports the end of the command."""
        ...


class EarlyStart(Protocol):
    """A machine that was started before its configuration was complete."""

    def load(self) -> None:
        """Begin to load the machine's saved state. This costs more than the start itself, so call
        it only when the program is known to be free of errors. Without this call, take() loads the
        state.
        """
        ...

    def take(self, wanted: object) -> Any:
        """Return the started machine if its configuration equals `wanted`; otherwise stop the
        machine and return None. Return None as well if an earlier call has returned the machine.

        Args:
            wanted: the value by which this kind of machine compares configurations.
        """
        ...

    def close(self) -> None:
        """Stop the machine unless it was taken. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The configuration of a machine that MachineKind.open() starts or connects to.

    Attributes:
        options: the user's options for the machine.
        kernel: the kernel to boot.
        initrd: the initial RAM disk, as a file or as bytes.
        append: the user's part of the kernel's command line.
        boot: how the system is booted; None if no system is known.
        virtual_layout: where the system maps its kernel; None if no system is known.
        span: the part of the kernel's boot to trace; None if its boot is not traced, or not known.
        runs_command: whether a command will be run on the machine.
        read_only: whether the caller only reads memory, and runs and writes nothing, so that a
            saved state is enough.
        scratch: minimum size in bytes of the memory to set aside for scratch.
        image: the file with the kernel's symbols, for messages.
        cache: folder of files that are cached for this host.
        early_start: the machine that start_early() has started, before `scratch`, `virtual_layout`
            and `image` were known; None if there is none.
        terminal: the terminal of the machine's commands, or None.
        command: the command of the trace; "" if there is none, or if it is not known yet.
    """

    isa: Isa
    options: MachineOptions = NO_OPTIONS
    kernel: Path | None = None
    initrd: Path | bytes | None = None
    append: str = ""
    boot: Boot | None = None
    virtual_layout: VirtualLayout | None = None
    span: BootSpan | None = None
    runs_command: bool = False
    read_only: bool = False
    scratch: int = 0
    image: str = ""
    cache: Path | None = None
    early_start: EarlyStart | None = None
    terminal: Terminal | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class LivePatch:
    """A patch to write into code while the kernel runs.

    Attributes:
        address: where the patch is written.
        old: the bytes that must be at the address before.
        new: the bytes to write.
        several: whether the patch covers more than one instruction. If so, control must reach each
            instruction after the first only from the instruction before it.
    """

    address: int
    old: bytes
    new: bytes
    several: bool = False


class Planter(Protocol):
    """Writer of patches into a machine that is never stopped."""

    def plant(
        self,
        patches: Sequence[LivePatch],
        hook: int,
        code: tuple[int, int],
        active: int,
        exits: Sequence[LivePatch] = (),
        samplers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Plant all patches. Plant none if the kernel's bytes at one of them differ from the
        patch's `old` bytes. Each patch is a breakpoint or a jump into scratch.

        A jump over several instructions is completed only after every thread has left these
        instructions and the code of earlier traces. Until then, the first instruction is a
        breakpoint, which leads to the target of the jump.

        Args:
            hook: address in scratch of the function that the breakpoint handler calls with the
                saved registers; it returns whether the breakpoint was a site. 0 if there are no
                breakpoints.
            code: addresses [low, high) of the part of scratch with code, which becomes executable
                and cannot be written any more.
            active: address in scratch of a u64 that is 1 while the trace is active. If kinst no
                longer responds, the planter sets it to 0, so that clauses do nothing.
            exits: patches in scratch, over the heads of loops in chains: jumps by which threads
                leave these loops. They are written at the end of the trace, after all other patches
                have been removed.
            samplers: (period in ns, address of a function in scratch) of each function to call
                periodically on each CPU, with the registers of the interrupted code.

        Raises TargetError."""
        ...

    def allocate_counters(self, offset: int, size: int) -> tuple[int, int]:
        """Allocate zeroed per-CPU memory for counters, once for all traces.

        Args:
            offset: offset in scratch to which gather() copies the counters.
            size: bytes wanted for each CPU.

        Returns:
            (displacement from the per-CPU base, bytes allocated for each CPU); 0 bytes if there is
            no memory.
        """
        ...

    def empty(self) -> None:
        """Wait until no thread executes in code of ended traces. Afterwards scratch may be written
        again, and the counters are zero. Raises TargetError."""
        ...

    def gather(self) -> None:
        """Copy the counters of all CPUs to scratch, one CPU after another. Raises TargetError."""
        ...

    def take_missed(self) -> Sequence[int]:
        """Return, for each sampler that was passed to plant(), how many of its calls were missed
        because a CPU had no time for them. Only calls since the last take_missed() count.

        May also be called after restore(). Raises TargetError.
        """
        ...

    def restore(self) -> int:
        """Remove all patches. Return how many could not be removed because another tracer has
        patched the same bytes. Raises TargetError."""
        ...


# Why a machine cannot do something, and a hint that says what to do instead.
Reason = tuple[str, str]


class KernelMemory(Protocol):
    """Part of a Target: reading the memory of a running kernel."""

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """Read kernel memory. Raises UnmappedError if any of it is not mapped."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write kernel memory that is not code, where the kernel itself may write. Raises
        TargetError if any of it is read-only or not mapped, or if kinst does not write this
        machine's memory.
        """
        raise TargetError("the memory of this machine is not written")


class Stopping(Protocol):
    """Part of a Target: CPUs that can be stopped, read and resumed.

    The defaults are those of a machine that cannot be stopped: stop() and resume() do nothing, and
    what needs a stopped CPU is refused.

    Attributes:
        cannot_stop: why operations that need a stopped CPU are refused, in words for the user.
    """

    cpus: int
    cannot_stop: ClassVar[Reason] = ("this machine cannot be stopped", "")

    def stop(self) -> None:
        """Stop every CPU, and return when all have stopped. Do nothing if the machine is
        stopped."""
        return

    def resume(self) -> None:
        """Let all CPUs run. Do nothing if they run."""
        return

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait until the running machine reports an event, and return it.

        Args:
            timeout: seconds after which None is returned.
        """
        time.sleep(timeout)
        return None

    def run_time(self) -> int:
        """Return for how many ns the machine has run since bring_up(), apart from the times
        at which it was stopped; 0 for a machine that does not trace a kernel's boot."""
        return 0

    def registers(self, cpu: int) -> Mapping[str, int]:
        """Return the registers of a stopped CPU, by the GDB stub's names."""
        raise TargetError(*self.cannot_stop)

    def write_registers(self, cpu: int, values: Mapping[str, int]) -> None:
        """Write some registers of a stopped CPU, by the GDB stub's names."""
        raise TargetError(*self.cannot_stop)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """Read memory at a virtual address of the process that a stopped CPU runs. Raises
        TargetError if any of it is not mapped."""
        raise TargetError(*self.cannot_stop)

    def insert_breakpoint(self, address: int) -> None:
        """Insert a debugger's breakpoint. The machine must be stopped."""
        raise TargetError(*self.cannot_stop)

    def remove_breakpoint(self, address: int) -> None:
        """Remove a debugger's breakpoint. The machine must be stopped."""
        raise TargetError(*self.cannot_stop)

    def watch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Let the machine stop after any write to one of these ranges (virtual address, bytes),
        until unwatch(). The machine must be stopped."""
        raise TargetError(*self.cannot_stop)

    def unwatch(self) -> None:
        """Watch no memory any more. The machine must be stopped."""
        raise TargetError(*self.cannot_stop)

    def step_over(self, cpu: int, address: int) -> None:
        """Execute the instruction at `address` on one CPU without hitting the breakpoint there. The
        machine must be stopped, and is stopped afterwards."""
        raise TargetError(*self.cannot_stop)

    def executed(
        self, address: int
    ) -> Generator[Sequence[ExecutedBlock] | MachineEvent, None, None]:
        """Let the stopped machine run, and yield the blocks that its CPUs execute from the moment
        when one of them reaches `address`. Yield () if nothing was executed for a moment.

        The last item is the event that ends the machine or its boot. If the caller closes the
        generator before, the machine is stopped."""
        raise TargetError(
            "this machine does not tell which code it executes", "--boot traces a guest's boot"
        )


class Planting(Protocol):
    """Part of a Target: writing code into the kernel, and scratch memory for trampolines and data.

    The defaults are those of a machine without scratch memory, whose probes stop it at each hit.

    Attributes:
        cannot_plant: why planting is refused, in words for the user.
        no_counters: for a machine whose clauses can count only in memory that map_alias() maps:
            the error for the user if map_alias() finds no room. ("", "") for other machines, which
            can count in another way.
    """

    cannot_plant: ClassVar[Reason] = ("code cannot be written into this machine's kernel", "")
    no_counters: ClassVar[Reason] = ("", "")

    @property
    def planter(self) -> Planter | None:
        """The planter of a machine that is never stopped. Only this planter writes the machine's
        code; registers and breakpoints are not available. None for all other machines."""
        return None

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write (address, bytes) into code that may already have run, and discard any translations
        of that code. The machine must be stopped."""
        raise TargetError(*self.cannot_plant)

    def write_switches(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write (address, bytes) that turn switches of tracepoints on or off, as
        Tracepoints.switched() returned them. The machine must be stopped.

        Unlike a patch, these bytes are not restored if kinst is killed. The kernel can run with a
        switch on, and it may have changed the switch for its own users meanwhile."""
        self.write_text(writes)

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Map executable scratch memory, and return its address; None if this machine has no
        scratch memory. The machine must be stopped.

        Args:
            size: bytes to map.
            near: addresses [low, high) that scratch should be close to.
            reach: addresses [low, high) that branches in scratch must reach, wherever in scratch
                they are. The first `data` bytes do not count.
            data: bytes at the start of scratch that hold no code.
        """
        return None

    @property
    def most_scratch(self) -> int:
        """The largest size that map_scratch() accepts; 0 if that is not known."""
        return 0

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        """Map a part of scratch at a second virtual address, and return whether the page tables
        have room for that. The machine must be stopped.

        All arguments are multiples of the size of a leaf of the page tables."""
        return False

    def scratch_view(self) -> memoryview:
        """Return the bytes of scratch, writable and shared with the target."""
        raise TargetError(*self.cannot_plant)

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        """Search all RAM for words that are addresses in any of the ranges [low, high). The machine
        must be stopped.

        Returns:
            The values of the aligned 8-byte words found, each once, ascending. Memory of kinst
            (scratch, its page tables) is not searched. None if this machine cannot search RAM.
        """
        return None

    def move(self, places: Mapping[int, int]) -> None:
        """Let each thread that would continue at an address in `places` continue at the address to
        which `places` maps it.

        For this, change every register of a CPU, and every aligned 8-byte word of RAM, that has
        such an address. The machine must be stopped, and its pointers() must be able to search
        RAM."""
        raise TargetError("the memory of this machine cannot be searched for addresses")


class Commands(Protocol):
    """Part of a Target: commands that run on the traced machine.

    The defaults are those of a machine that runs no commands.

    Attributes:
        cannot_run_commands: why commands are refused, in words for the user.
    """

    cannot_run_commands: ClassVar[Reason] = ("this machine runs no commands", "leave out -c")

    @property
    def helpers(self) -> Helpers | None:
        """kinst's own processes that run the command; None if there are none, or if they cannot be
        made to wait."""
        return None

    def prepare_command(self, command: str) -> int:
        """Create the process of a command, but do not let it run yet. Return its process id."""
        raise TargetError(*self.cannot_run_commands)

    def start_command(self) -> None:
        """Let the prepared command run."""
        raise TargetError(*self.cannot_run_commands)

    def end_command(self) -> None:
        """Kill the prepared command and all processes that it has started, and wait until they have
        ended. If the command has ended, do nothing. Afterwards the machine runs, and another
        command may be prepared."""
        return


class Target(KernelMemory, Stopping, Planting, Commands, Protocol):
    """A kernel that can be read and, as far as its machine can do that, stopped and written.

    MachineKind.open() makes a target. Its caller uses bring_up(), settle() once the system is
    known, and close() at the end.
    """

    isa: Isa
    abilities: Abilities

    @property
    def is_over(self) -> bool:
        """Whether the user program that is traced has ended by itself, so that nothing is left to
        restore. Always False for a kernel: wait() reports the end of a kernel as Gone."""
        return False

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Wait until the kernel is up, stop it, and return where it may be in memory.

        Args:
            say: called with a line for the user if something unusual was done, like restarting the
                guest.

        Raises TargetError if the kernel does not come up."""
        self.stop()
        return KernelLocation()

    def boot_over(self) -> KernelLocation:
        """Treat the kernel, whose boot was traced, as a kernel that is up from now on, and return
        where it is. The machine is stopped, after CommandReady."""
        raise TargetError("this machine does not trace its kernel's boot")

    def describe(self) -> str:
        """Return how the machine runs its kernel, for -v; "" if there is nothing to say. Called
        after bring_up()."""
        return ""

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        """Tell the target what the system knows of its kernel. The arguments are attributes of
        core.system.System. The machine must be stopped."""
        return

    def take_warnings(self) -> list[Complaint]:
        """Return the problems that the kernel has reported on its console since this method was
        last called."""
        return []

    def close(self) -> None:
        """End what kinst started (QEMU), and release all resources. Safe to call twice."""
        return
