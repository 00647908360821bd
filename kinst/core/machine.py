"""Machines, the ways to reach a kernel, and the target, that kernel.  Addresses are virtual unless
a name says physical.

Tested by tests/test_contracts.py and tests/fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kinst.core.boot import Boot
from kinst.core.isa import Isa
from kinst.core.system import Lender, Territory


@dataclass(frozen=True, slots=True)
class Stopped:
    """The machine stopped at a breakpoint (or on request): which CPU and where."""

    cpu: int
    pc: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The machine ended: a panic, a hang, QEMU died. console: its last lines.  kind: "panic",
    "hang", or "" for any other reason."""

    reason: str
    console: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What the kernel said of itself.  kind: "warn" (a WARNING), "oops" (a BUG or an exception that
    ended a thread) or "hang" (a CPU or a task that makes no progress)."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The -c command ended with this status."""

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

    boots: it starts a kernel, and needs its files.  writes_code: patches and hooks can be written
    into the kernel.  runs_commands: a command can be run beside the trace (-c).  reads_running:
    memory is read while the machine runs, which is to stand still as little as can be: bring_up()
    leaves it running, what asks for a stop stops it for as long as it takes, and stop() is for what
    must stay as it is in between.  code_table: where it finds code that it has translated; None
    if a processor runs code as it is, or if that is not known."""

    boots: bool = False
    writes_code: bool = False
    runs_commands: bool = False
    reads_running: bool = False
    code_table: CodeTable | None = None


@dataclass(frozen=True, slots=True)
class Bearings:
    """Where a kernel that is up may be, as far as a machine can tell without knowing the system.

    text: where its code starts by its page tables.  places: addresses of its code: trap handlers,
    and program counters of CPUs that are in it.
    """

    text: int | None = None
    places: tuple[int, ...] = ()


class Terminal(Protocol):
    """What a command has in place of no input and a pipe for its output."""

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    def connect(self, type_in: Callable[[bytes], None], resize: Callable[[int, int], None]) -> None:
        """The command starts.  Both are called from any thread: with what it is to read, and with
        rows and columns when they have changed."""
        ...

    def show(self, data: bytes) -> None:
        """What the command writes."""
        ...


class Helpers(Protocol):
    """kinst's own processes in a guest, which run its command and pass its output on.

    Attributes:
        pid: the process id of the command that is prepared.
        passer: of the process that passes its output on while it runs, 0 if there is none.
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


class Begun(Protocol):
    """A machine that was started before all was known of it."""

    def take(self, wanted: object) -> Any:
        """It, for whoever wants just that, and None else, and the second time: it ends then.
        wanted: what the kind of machine compares by."""
        ...

    def close(self) -> None:
        """End it, unless it was taken.  Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """What machine is wanted; each kind takes what concerns it.

    address: of somebody else's machine, as the user gave it.  stub: of its GDB stub, where that was
    given besides.  kernel, initrd: what to boot; initrd
    is a file or the bytes of an archive.  control: whether kinst's own init is in it.  modules:
    whether it loads kernel modules.  append: more of the kernel's command line.  arguments: more
    for the program that runs the machine.  cpus, memory (bytes): 0 for as much as is usual.
    scratch: bytes to set aside, at least.  territory, boot: of the system that it runs; None where
    none is known.  image: the file with its symbols, for messages.  cache: folder of what is known
    of this host.  root: the folder that its commands have as their root, of which they change
    nothing.  writable: folders that they may write to.  cold: boot it, whatever is kept of
    earlier ones.  begun: what begin() made of this but for scratch, territory and image.  terminal:
    that its commands have.  beside: kinst's init is not process 1, but beside the user's own.
    looked_at: nothing is to run or to be written: its memory is read, and what is kept of a machine
    like it has that too.  process: that runs on it already, with whose end traces end as with that
    of a command; 0 for none.
    """

    isa: Isa
    address: str = ""
    stub: str = ""
    kernel: Path | None = None
    initrd: Path | bytes | None = None
    control: bool = True
    modules: bool = False
    append: str = ""
    arguments: Sequence[str] = ()
    cpus: int = 0
    memory: int = 0
    cold: bool = False
    begun: Begun | None = None
    terminal: Terminal | None = None
    beside: bool = False
    looked_at: bool = False
    process: int = 0
    scratch: int = 0
    territory: Territory | None = None
    boot: Boot | None = None
    image: str = ""
    cache: Path | None = None
    root: Path | None = None
    writable: Sequence[Path] = ()


class MachineKind(Protocol):
    """What a file or folder of kinst.machines offers, as its value MACHINE.

    option: the name of the option that asks for it, "" for the one that is taken without."""

    name: str
    option: str
    abilities: Abilities

    def cpus(self, arguments: Sequence[str]) -> int:
        """How many CPUs one with these arguments (MachineConfig.arguments) may have, as far as
        that can be told before it is there."""
        ...

    def check(self) -> None:
        """Raises TargetError where there is none of it here, before files are looked for."""
        ...

    def memory(self, address: str) -> Iterator[bytes]:
        """Yield the memory of a machine that runs, in pieces of whole pages, before anything is
        known of its kernel; nothing if that cannot be read without a GDB stub.

        Args:
            address: of the machine, as the user gave it.

        Raises:
            TargetError: there is no such machine, or its memory must not be read.
        """
        ...

    def begin(self, config: MachineConfig) -> Begun | None:
        """Start what can be started at once, for open() to take over; None where that is nothing.
        Raises KinstError and TargetError."""
        ...

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start it (it boots while the caller goes on) or connect to it.  on_output: gets what the
        guest's command prints.  Raises KinstError and TargetError."""
        ...


@dataclass(frozen=True, slots=True)
class LivePatch:
    """What is written into text while the kernel runs, and what is there before.  several: it lies
    over more than one instruction, and nothing leads to any of those but the one before it."""

    address: int
    old: bytes
    new: bytes
    several: bool = False


class Planter(Protocol):
    """How a machine that never stands still is planted in."""

    def plant(
        self,
        patches: Sequence[LivePatch],
        hook: int,
        code: tuple[int, int],
        active: int,
        exits: Sequence[LivePatch] = (),
        samplers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Plant all of them, or none where one is not what was planned on: each a jump into scratch
        or a breakpoint.  Over several instructions a jump is whole only once nobody is in the
        middle of them, nor in code of an earlier trace; a breakpoint leads where it does before.

        hook: address in scratch of what a breakpoint is to reach, called with the registers that
        the kernel has saved; it returns whether that was a site.  0 where there are no breakpoints.
        code: addresses [low, high) of scratch that are not written any more.  active: address in
        there of a u64 without which, once it is 0, clauses do not run.  exits: patches in
        there that are written once all else has been restored.  samplers: (period in ns, address
        of a function there), to be called on each CPU with the registers of what it was at.
        Raises TargetError."""
        ...

    def lend_counters(self, offset: int, size: int) -> tuple[int, int]:
        """Memory of each CPU that its code reaches from the per-CPU base: the displacement, and how
        many of `size` bytes there are, 0 for none.  They are zero.  offset: in scratch, where
        gather() puts what is in them.  Once for all traces."""
        ...

    def empty(self) -> None:
        """Wait until no thread is in code of the traces that have ended.  Then scratch may be
        written again, and what lend_counters() has lent is zero.  Raises TargetError."""
        ...

    def gather(self) -> None:
        """Copy what was lent, that of each CPU behind that of the one before.  Raises
        TargetError."""
        ...

    def restore(self) -> int:
        """Take all of them out; how many are left, because somebody else's patch lies over them.
        Raises TargetError."""
        ...


class Target(Protocol):
    """A kernel that can be read, written, stopped and resumed, however it is reached.

    A machine, one file or folder of kinst.machines, makes it by open(); then bring_up(), once the
    system that it runs is known settle(), and at the end close().
    """

    isa: Isa
    cpus: int
    abilities: Abilities

    @property
    def planter(self) -> Planter | None:
        """Of a machine that never stands still: stop() stops nothing, there are no registers and
        no breakpoints, and text is not written but by this.  None for all others."""
        ...

    @property
    def helpers(self) -> Helpers | None:
        """None if nothing of kinst's runs beside the command, or if that cannot be held up."""
        ...

    def bring_up(self, say: Callable[[str], None]) -> Bearings:
        """Wait until the kernel is up, and stop it.

        say: gets a line for the user when something unusual was done, like starting the guest
        again.  Raises TargetError when it does not come up."""
        ...

    def settle(self, page_tables: int | None, heartbeat: int | None, lender: Lender | None) -> None:
        """What the system knows of itself (core.system.System has both).  Stopped."""
        ...

    def stop(self) -> None:
        """Stop every CPU; returns when they stand.  No-op when stopped."""
        ...

    def resume(self) -> None: ...

    def read(self, address: int, size: int) -> bytes:
        """Kernel memory; raises UnmappedError where nothing is mapped."""
        ...

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """Memory of the process that this CPU runs; raises TargetError where nothing is mapped.
        Stopped."""
        ...

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        """The values in any of the ranges [low, high) that aligned 8-byte words of RAM have, each
        once, ascending; None where RAM cannot be looked through, whatever is asked for.  What is
        kinst's own (scratch, its page tables) is left out.  Stopped."""
        ...

    def move(self, places: Mapping[int, int]) -> None:
        """Let whoever is about to go on at one of these addresses go on at another: of CPUs every
        register that holds it, and of RAM every aligned 8-byte word.  Only where pointers() is no
        None.  Stopped."""
        ...

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write code that may already have run (translated code is invalidated); stopped."""
        ...

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Make `size` bytes of scratch executable near [near), all but its first `data` bytes
        within branch reach of [reach), and return its address, or None: this target has no
        scratch.  Stopped."""
        ...

    @property
    def most_scratch(self) -> int:
        """Bytes that map_scratch() can be asked for at most, or 0 where that is not known."""
        ...

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        """Map part of scratch again at a virtual address (all multiples of a leaf's size), or
        False where the page tables have no room there.  Stopped."""
        ...

    def scratch_view(self) -> memoryview:
        """The mapped scratch, writable, shared with the target."""
        ...

    def registers(self, cpu: int) -> Mapping[str, int]:
        """Registers by the stub's names; stopped."""
        ...

    def insert_breakpoint(self, address: int) -> None: ...

    def remove_breakpoint(self, address: int) -> None: ...

    def step_over(self, cpu: int, address: int) -> None:
        """Execute the one instruction at address on cpu with its breakpoint lifted; stopped
        before and after."""
        ...

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait for the running machine to report something; None on time-out (seconds)."""
        ...

    def take_warnings(self) -> list[Complaint]:
        """What the kernel complained of on its console since last asked."""
        ...

    def prepare_command(self, command: str) -> int:
        """Create the -c command's process in the guest, held before it runs; its pid."""
        ...

    def start_command(self) -> None: ...

    def end_command(self) -> None:
        """Kill the command that was prepared, and all processes that it has made, and wait for
        that; nothing where it has ended.  The machine runs afterwards; another command may be
        prepared then."""
        ...

    def close(self) -> None:
        """End what kinst started (QEMU) and release everything; safe to call twice."""
        ...
