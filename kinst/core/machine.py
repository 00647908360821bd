"""A machine is a way to reach a kernel; a target is the kernel that it reaches.

A Target has four parts: KernelMemory, Stopping, Planting and Commands.  Each part has defaults that
say what is true of a machine without it, so that a machine defines only what it can do.  Addresses
are virtual unless a name says physical.

Tested by tests/test_contracts.py, tests/test_extending.py and tests/fake.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from kinst.core.boot import Boot
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
    """The machine stopped, at a breakpoint or on request.

    Attributes:
        cpu: the CPU that stopped it.
        pc: the program counter of that CPU.
    """

    cpu: int
    pc: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The machine ended: a panic, a hang, or QEMU died.

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
    """The command of -c ended with this exit status."""

    status: int


MachineEvent = Stopped | Gone | CommandEnded


@dataclass(frozen=True, slots=True)
class CodeTable:
    """A direct-mapped table in which a machine finds code that it has translated.

    Attributes:
        entries: how many entries the table has; each holds one piece of code.
        entry: maps addresses to the numbers of their entries.
    """

    entries: int
    entry: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a kind of machine can do.

    Attributes:
        boots: it starts a kernel, and needs its files.
        writes_code: patches and hooks can be written into the kernel.
        runs_commands: a command can be run for the time of a trace (-c).
        reads_running: memory can be read while the machine runs.  bring_up() leaves it running; an
            operation that needs it stopped stops it for that operation only.  stop() is for what
            must not change between two operations.
        code_table: the table in which it finds translated code; None if a processor runs the code
            directly, or if the table is not known.
    """

    boots: bool = False
    writes_code: bool = False
    runs_commands: bool = False
    reads_running: bool = False
    code_table: CodeTable | None = None


@dataclass(frozen=True, slots=True)
class Bearings:
    """Where the kernel may be in memory, as far as a machine can tell without knowing its system.

    Attributes:
        text: start of the kernel's code according to its page tables, or None.
        places: addresses in its code: trap handlers, and program counters of CPUs in the kernel.
    """

    text: int | None = None
    places: tuple[int, ...] = ()


class Terminal(Protocol):
    """A terminal that a command gets instead of no input and a pipe for its output."""

    def size(self) -> tuple[int, int]:
        """Return rows and columns."""
        ...

    def connect(self, type_in: Callable[[bytes], None], resize: Callable[[int, int], None]) -> None:
        """Connect the terminal to a command that starts.  Any thread may call the functions.

        Args:
            type_in: called with input for the command.
            resize: called with rows and columns when they have changed.
        """
        ...

    def show(self, data: bytes) -> None:
        """Show output of the command."""
        ...


class Helpers(Protocol):
    """kinst's own processes in a guest, which run its command and pass its output on.

    Attributes:
        pid: process id of the prepared command.
        passer: process id of the process that passes its output on while it runs, 0 if there is
            none.
    """

    pid: int
    passer: int

    def start_alone(self) -> None:
        """Let the command run, as Target.start_command() does, after all of these processes wait.
        They do nothing until go_on(), except `passer`."""
        ...

    def go_on(self) -> None:
        """Let them run again once the command has ended, which Target.wait() reports then."""
        ...


class EarlyStart(Protocol):
    """A machine that was started before its configuration was complete."""

    def take(self, wanted: object) -> Any:
        """Hand over the started machine if its configuration equals `wanted`; otherwise, or if it
        was already taken, stop it and return None.

        Args:
            wanted: what the kind of machine compares configurations by.
        """
        ...

    def close(self) -> None:
        """Stop the machine unless it was taken.  Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The machine that is wanted, for its kind to open.

    Attributes:
        options: what the user said of it.
        kernel: the kernel to boot.
        initrd: file or bytes of the archive to boot with.
        append: the kernel's command line, but for what the machine and the system add.
        boot: how the system is booted; None if no system is known.
        virtual_layout: where the system keeps its kernel; None if no system is known.
        runs_command: whether a command is run there.
        read_only: only read memory; run and write nothing.  A saved machine state is enough.
        scratch: bytes to set aside, at least.
        image: the file with the kernel's symbols, for messages.
        cache: folder of what is cached for this host.
        early_start: what start_early() started for this configuration, without scratch,
            virtual_layout and image.
        terminal: the terminal of its commands, or None.
    """

    isa: Isa
    options: MachineOptions = NO_OPTIONS
    kernel: Path | None = None
    initrd: Path | bytes | None = None
    append: str = ""
    boot: Boot | None = None
    virtual_layout: VirtualLayout | None = None
    runs_command: bool = False
    read_only: bool = False
    scratch: int = 0
    image: str = ""
    cache: Path | None = None
    early_start: EarlyStart | None = None
    terminal: Terminal | None = None


@dataclass(frozen=True, slots=True)
class LivePatch:
    """A patch that is written into text while the kernel runs.

    Attributes:
        address: where it is written.
        old: the bytes that must be there before.
        new: the bytes that are written.
        several: it covers more than one instruction, and control reaches all but the first of them
            only from the instruction before.
    """

    address: int
    old: bytes
    new: bytes
    several: bool = False


class Planter(Protocol):
    """Plants patches in a machine that is never stopped."""

    def plant(
        self,
        patches: Sequence[LivePatch],
        hook: int,
        code: tuple[int, int],
        active: int,
        exits: Sequence[LivePatch] = (),
        samplers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Plant all patches, or none if the bytes at one of them are not those that were planned
        on.  Each is a breakpoint or a jump into scratch.

        A jump over several instructions is completed only after every thread has left them, and
        left the code of earlier traces; until then a breakpoint leads to the same place.

        Args:
            hook: address in scratch of the function that breakpoints call with the registers that
                the kernel has saved; it returns whether the breakpoint was a site.  0 if there are
                no breakpoints.
            code: addresses [low, high) of scratch that are not written any more.
            active: address in scratch of a u64; clauses do not run once it is 0.
            exits: patches in scratch that are written after everything else has been restored.
            samplers: (period in ns, address in scratch of a function) of each function to call
                periodically on each CPU, with the registers of the interrupted code.

        Raises TargetError."""
        ...

    def allocate_counters(self, offset: int, size: int) -> tuple[int, int]:
        """Allocate per-CPU memory for counters, once for all traces.  It is zeroed.

        Args:
            offset: offset in scratch to which gather() copies the counters.
            size: bytes wanted for each CPU.

        Returns:
            The displacement from the per-CPU base, and the bytes allocated for each CPU (0 for
            none).
        """
        ...

    def empty(self) -> None:
        """Wait until no thread is in code of ended traces.  Afterwards scratch may be written
        again, and the counters are zero.  Raises TargetError."""
        ...

    def gather(self) -> None:
        """Copy the counters of each CPU to scratch, one CPU after another.  Raises TargetError."""
        ...

    def take_missed(self) -> Sequence[int]:
        """Return, for each sampler of plant(), how many of its calls were missed since the last
        call of this method, because a CPU had no time for them.  Also after restore().

        Raises TargetError."""
        ...

    def restore(self) -> int:
        """Remove all patches; return how many remain because another tracer's patch lies over
        them.  Raises TargetError."""
        ...


# Why a machine cannot do something, and a hint what to do instead.
Reason = tuple[str, str]


class KernelMemory(Protocol):
    """Memory of a running kernel."""

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """Read kernel memory.  Raises UnmappedError if any of it is not mapped."""
        ...


class Stopping(Protocol):
    """CPUs that can be stopped, looked at and resumed.

    The defaults are those of a machine that cannot be stopped: stop() and resume() do nothing, and
    what needs a stopped CPU is refused.

    Attributes:
        cannot_stop: the reason of the refusals.
    """

    cpus: int
    cannot_stop: ClassVar[Reason] = ("this machine cannot be stopped", "")

    def stop(self) -> None:
        """Stop every CPU, and return when all have stopped.  Does nothing if they are stopped."""
        return

    def resume(self) -> None:
        """Let all CPUs run.  Does nothing if they run."""
        return

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait until the running machine reports something.

        Args:
            timeout: seconds after which None is returned.
        """
        time.sleep(timeout)
        return None

    def registers(self, cpu: int) -> Mapping[str, int]:
        """Return the registers of a stopped CPU, by the GDB stub's names."""
        raise TargetError(*self.cannot_stop)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """Read memory of the process that a stopped CPU runs.  Raises TargetError if any of it is
        not mapped."""
        raise TargetError(*self.cannot_stop)

    def insert_breakpoint(self, address: int) -> None:
        """Insert a debugger's breakpoint; the machine is stopped."""
        raise TargetError(*self.cannot_stop)

    def remove_breakpoint(self, address: int) -> None:
        """Remove a debugger's breakpoint; the machine is stopped."""
        raise TargetError(*self.cannot_stop)

    def step_over(self, cpu: int, address: int) -> None:
        """Execute the instruction at `address` on one CPU, without its breakpoint; the machine is
        stopped before and after."""
        raise TargetError(*self.cannot_stop)


class Planting(Protocol):
    """Code that can be written into the kernel, and scratch memory for trampolines and data.

    The defaults are those of a machine without scratch memory: its probes stop it at each hit.

    Attributes:
        cannot_plant: the reason of the refusals.
    """

    cannot_plant: ClassVar[Reason] = ("code cannot be written into this machine's kernel", "")

    @property
    def planter(self) -> Planter | None:
        """The planter of a machine that is never stopped: it has no registers and no breakpoints,
        and only the planter writes its text.  None for all other machines."""
        return None

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write code that may already have run, and discard translations of it; the machine is
        stopped."""
        raise TargetError(*self.cannot_plant)

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Map executable scratch memory; the machine is stopped.

        Args:
            size: bytes to map.
            near: addresses [low, high) that scratch is to be close to.
            reach: addresses [low, high) within branch reach of all but the first `data` bytes.

        Returns:
            Its address, or None if this machine has no scratch memory.
        """
        return None

    @property
    def most_scratch(self) -> int:
        """The largest size that map_scratch() accepts, or 0 if that is not known."""
        return 0

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        """Map part of scratch a second time; the machine is stopped.

        All arguments are multiples of the size of a leaf of the page tables.  Returns False if the
        page tables have no room there."""
        return False

    def scratch_view(self) -> memoryview:
        """Return scratch, writable and shared with the target."""
        raise TargetError(*self.cannot_plant)

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        """Search all RAM for addresses; the machine is stopped.

        Args:
            ranges: ranges [low, high) of addresses.

        Returns:
            The values of aligned 8-byte words that lie in a range, each once, ascending; kinst's
            own memory (scratch, its page tables) is left out.  None, for any ranges, if the RAM of
            this machine cannot be searched.
        """
        return None

    def move(self, places: Mapping[int, int]) -> None:
        """Let each thread that is about to continue at one of these addresses continue at another:
        change every register of a CPU, and every aligned 8-byte word of RAM, that holds one.

        Only for a machine whose pointers() does not return None; it is stopped."""
        raise TargetError("the memory of this machine cannot be searched for addresses")


class Commands(Protocol):
    """Commands that run on the traced machine.

    The defaults are those of a machine that runs none.

    Attributes:
        cannot_run_commands: the reason of the refusals.
    """

    cannot_run_commands: ClassVar[Reason] = ("this machine runs no commands", "leave out -c")

    @property
    def helpers(self) -> Helpers | None:
        """kinst's own processes beside the command; None if there are none, or if they cannot be
        held up."""
        return None

    def prepare_command(self, command: str) -> int:
        """Create the process of a command, held before it runs; return its process id."""
        raise TargetError(*self.cannot_run_commands)

    def start_command(self) -> None:
        """Let the prepared command run."""
        raise TargetError(*self.cannot_run_commands)

    def end_command(self) -> None:
        """Kill the prepared command with all processes that it has started, and wait until they
        have ended.  Does nothing if it has ended.  Afterwards the machine runs, and another command
        may be prepared."""
        return


class Target(KernelMemory, Stopping, Planting, Commands, Protocol):
    """A kernel that can be read and, as far as its machine can do that, stopped and written.

    MachineKind.open() makes it; then the caller uses bring_up(), settle() once the system is known,
    and close() at the end.
    """

    isa: Isa
    abilities: Abilities

    def bring_up(self, say: Callable[[str], None]) -> Bearings:
        """Wait until the kernel is up, and stop it.

        Args:
            say: gets a line for the user if something unusual was done, like restarting the guest.

        Raises TargetError if it does not come up."""
        self.stop()
        return Bearings()

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        """Take what the system knows of its kernel (see core.system.System).  The machine is
        stopped."""
        return

    def take_warnings(self) -> list[Complaint]:
        """Return what the kernel has reported on its console since the last call."""
        return []

    def close(self) -> None:
        """End what kinst started (QEMU) and release everything.  Safe to call twice."""
        return
