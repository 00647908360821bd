"""QEMU with a kernel in it: started, watched, ended.  No page tables, no breakpoints here.

Everything between kinst and QEMU goes through inherited descriptors: guest RAM is one piece of
shared memory, the stub and the serial ports are socket pairs.  Nothing has a file name.

There are three serial ports: the kernel's console, what the guest's command prints, and the
conversation with kinst's init (guest_init.sh), in lines.  What the guest calls them, and how
QEMU is asked for them, the ISA's Board says.

Tested by tests/machines/vm/test_machine.py.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinst.core.board import Board
from kinst.core.boot import Boot
from kinst.core.errors import GoneError, TargetError
from kinst.core.machine import CommandEnded, Gone
from kinst.machines.vm.console import Console
from kinst.machines.vm.cpus import CPUS, says_cpus
from kinst.machines.vm.files import FileServer, Share, Surroundings, slots
from kinst.wire.child_process import Child, Pump, find_program
from kinst.wire.memory import SharedMemory
from kinst.wire.qmp import OwnMonitor
from kinst.wire.sockets import stream_pair

_CHANNELS = ("console", "output", "control", "gdb", "monitor")  # what QEMU has sockets for
_AFTER_PANIC = 3.0
_FIRMWARE = 1 << 20  # SeaBIOS keeps its tables at the end of RAM
_TABLES = 1 << 20  # page tables of kinst's own
MEGABYTE = 1 << 20
MEMORY = 1024 * MEGABYTE  # of a guest, where nothing else is asked for
_SCRATCH = 256 * MEGABYTE  # at least
_ALSO_USED = 64 * MEGABYTE  # of scratch, of which most stays empty


@dataclass(frozen=True, slots=True)
class VmConfig:
    """What to boot.

    kernel: the image of boot, by which it is started.  initrd: a file or the bytes of an archive.
    control: whether kinst's own init is in it.  cpus: as many as the guest may ever have.  memory,
    scratch: bytes.
    accel: "tcg" or "kvm".  shares: folders of the host.  surroundings: of the commands, where one
    of these is their root.  states: folder for what is kept of guests that have booted; None for
    none.
    """

    kernel: Path
    boot: Boot
    initrd: Path | bytes | None = None
    control: bool = True
    append: str = ""
    qemu_args: Sequence[str] = ()
    cpus: int = CPUS
    memory: int = MEMORY
    scratch: int = 64 * MEGABYTE
    accel: str = "tcg"
    shares: tuple[Share, ...] = ()
    surroundings: Surroundings | None = None
    beside: bool = False
    states: Path | None = None


@dataclass(frozen=True, slots=True)
class PhysicalLayout:
    """Guest physical addresses: the end of what the kernel has, scratch, and room for page tables
    (bytes)."""

    end: int
    scratch: int
    scratch_size: int
    tables: int
    tables_size: int


def scratch_size(wanted: int) -> int:
    """Bytes of scratch for a program that wants so many.  A guest's RAM must not follow each
    program, as what is kept of its boot fits no other size: there is more than most want, and it
    costs nothing until it is written to."""
    return max(_SCRATCH, 1 << (wanted - 1).bit_length())


_Map = tuple[tuple[int, int, int], ...]  # see Board.memory_map


def place(board: Board, memory: int, scratch: int) -> tuple[PhysicalLayout, int, _Map]:
    """Where scratch is behind the memory of the guest, how many bytes of RAM that takes, and where
    those are.  Scratch is in one piece: where RAM has a hole in its way, it lies behind that."""
    behind = scratch + _TABLES + _FIRMWARE
    at = memory
    while True:
        size = at + behind
        ranges = board.memory_map(size)
        start, offset, length = next(r for r in ranges if r[1] <= at < r[1] + r[2])
        if size <= offset + length:
            break
        at = offset + length
    found = start + at - offset
    end = found if at == memory else start_of(ranges, memory)
    return PhysicalLayout(end, found, scratch, found + scratch, _TABLES), size, ranges


def start_of(ranges: _Map, offset: int) -> int:
    """The physical address of an offset in the file behind RAM."""
    return next(start + offset - at for start, at, size in ranges if at <= offset < at + size)


def _head(kernel: Path) -> bytes:
    try:
        with kernel.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""  # QEMU says what is wrong with it


def can_be_saved(config: VmConfig, board: Board) -> bool:
    """Whether others may go on from where such a guest had booted: not from one with an initrd of
    the user's, in which nobody sets the clock; with arguments of the user's for QEMU, which may
    name files that change; with folders of the host whose devices are there from the start, as
    QEMU cannot save them; or under KVM."""
    if config.states is None or not config.control or config.qemu_args or config.accel != "tcg":
        return False
    return isinstance(config.initrd, bytes) and not (config.shares and not board.CARD_SLOT)


def guest_arguments(config: VmConfig, board: Board) -> list[str]:
    """QEMU's arguments but for descriptors and the initrd: those of guests that are alike are the
    same."""
    return [*_devices(config, board, {name: name for name in _CHANNELS}, ""), *_boot(config, board)]


def _devices(config: VmConfig, board: Board, fds: Mapping[str, str], ram: str) -> list[str]:
    """The machine.  fds: descriptors of the channels; ram: path of the file behind its memory."""
    c, m = config, board
    _, size, _ = place(board, c.memory, c.scratch)
    argv = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-machine", f"{m.MACHINE},accel={c.accel},memory-backend=ram"]
    cpu = "host" if c.accel == "kvm" else m.cpu_for(_head(c.kernel))
    argv += ["-cpu", cpu] if cpu else []
    argv += ["-object", f"memory-backend-file,id=ram,size={size},mem-path={ram},share=on"]
    argv += ["-m", f"{size // MEGABYTE}M"]
    argv += [] if says_cpus(c.qemu_args) else ["-smp", str(c.cpus)]
    for name in _CHANNELS:
        argv += ["-chardev", f"socket,id={name},fd={fds[name]}"]
    for name, device in zip(("console", "output", "control"), m.SERIAL, strict=True):
        # Without a name it is the machine's own port, of which there is one.
        card = ["-device", f"{device},chardev={name}"]
        argv += card if device else ["-serial", f"chardev:{name}"]
    argv += slots(c.shares, board.CARD_SLOT) if can_be_saved(c, board) else []
    return [*argv, "-gdb", "chardev:gdb", "-mon", "chardev=monitor,mode=control"]


def _boot(config: VmConfig, board: Board) -> list[str]:
    """The kernel and its command line; the initrd is told behind it."""
    layout, _, _ = place(board, config.memory, config.scratch)
    start = board.memory_map(config.memory)[0][0]
    end, size = layout.end, layout.end - start
    append = config.boot.command_line(end, size, config.append, own=config.control)
    return ["-kernel", str(config.kernel), "-append", append]


class Qemu:
    """A running QEMU.  Raises TargetError when it cannot be started."""

    def __init__(
        self,
        config: VmConfig,
        board: Board,
        on_output: Callable[[bytes], None] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """on_output: gets what the command prints, from within calls of this object.  waits: it
        boots nothing, and waits for the state of a guest (warm.py)."""
        if config.memory % (2 * MEGABYTE) or config.scratch % (2 * MEGABYTE):
            raise TargetError("guest memory and scratch are multiples of 2 MB")
        program = find_program(board.QEMU, board.PACKAGE)
        if not config.kernel.is_file():
            raise TargetError(f"{config.kernel}: no such kernel")
        if isinstance(config.initrd, Path) and not config.initrd.is_file():
            raise TargetError(f"{config.initrd}: no such initrd")
        self._config = config
        self._board = board
        self._on_output = on_output
        self.layout, self._size, self._map = place(board, config.memory, config.scratch)
        self.console = Console(config.boot.signs)
        self._control_partial = b""
        self._messages = b""
        self._control: deque[str] = deque()
        self._open: set[str] = set()
        self._closed = False
        self._archive: SharedMemory | None = None
        self._servers: list[FileServer] = []
        self.memory = SharedMemory("guest memory", self._size, config.memory + _ALSO_USED)
        try:
            self._start(program, waits)
        except BaseException:
            self._close_servers()
            self.memory.close()
            raise

    def _start(self, program: str, waits: bool) -> None:
        names = (*_CHANNELS, "messages")
        ours, theirs = {}, {}
        for name in names:
            ours[name], theirs[name] = stream_pair()
        inherit = [self.memory.fd, *(sock.fileno() for sock in theirs.values())]
        config, fds = self._config, {name: str(theirs[name].fileno()) for name in _CHANNELS}
        argv = [program, *_devices(config, self._board, fds, self.memory.path)]
        if waits:
            argv += ["-incoming", "defer"]
        else:
            argv += _boot(config, self._board)
            if isinstance(config.initrd, bytes):
                self._archive = SharedMemory("initrd", len(config.initrd))
                self._archive.view[:] = config.initrd
                inherit.append(self._archive.fd)
            if config.initrd is not None:
                argv += ["-initrd", self._archive.path if self._archive else str(config.initrd)]
        for share in config.shares:
            server = FileServer(share)
            self._servers.append(server)
            if not can_be_saved(config, self._board):
                inherit.append(server.socket.fileno())
                argv += server.arguments()
        try:
            self._child = Child([*argv, *config.qemu_args], inherit, theirs["messages"].fileno())
        finally:
            for sock in theirs.values():
                sock.close()
        self.gdb = ours.pop("gdb")
        self.monitor = OwnMonitor(ours.pop("monitor"))
        self._open = set(ours)
        self._pump = Pump(ours, last="control")

    def tell_output(self, on_output: Callable[[bytes], None] | None) -> None:
        """Who gets what the command prints, from now on."""
        self._on_output = on_output

    @property
    def pid(self) -> int:
        return self._child.pid

    # Physical memory.

    def _offset(self, address: int, size: int) -> int:
        for start, offset, length in self._map:
            if start <= address and address + size <= start + length:
                return offset + address - start
        raise TargetError(f"physical address {address:#x} is not in the guest's memory")

    def read_physical(self, address: int, size: int) -> bytes:
        """Guest RAM.  Raises TargetError outside of it."""
        offset = self._offset(address, size)
        return bytes(self.memory.view[offset : offset + size])

    def view_physical(self, address: int, size: int) -> memoryview:
        """Guest RAM, writable.  Not for code that may already have run (QEMU translated it)."""
        offset = self._offset(address, size)
        return self.memory.view[offset : offset + size]

    def write_physical(self, address: int, data: bytes) -> None:
        """Guest RAM; see view_physical()."""
        self.view_physical(address, len(data))[:] = data

    def own_memory(self) -> Iterator[memoryview]:
        """The RAM that has ever been written to, without what is kinst's own.  Pieces are whole
        pages."""
        layout = self.layout
        start = self._offset(layout.scratch, 0)
        end = self._offset(layout.tables, 0) + layout.tables_size
        for low, size in self.memory.extents():
            high = low + size
            for piece in ((low, min(high, start)), (max(low, end), high)):
                if piece[0] < piece[1]:
                    yield self.memory.view[piece[0] : piece[1]]

    def clear_scratch(self) -> None:
        """Make scratch zeros.  QEMU and the firmware may have had something there: a large initrd
        is loaded at the end of RAM, for the kernel to move it away."""
        offset = self._offset(self.layout.scratch, self.layout.scratch_size)
        self.memory.clear(offset, self.layout.scratch_size)

    # What the guest says.

    def fileno(self) -> int:
        """Readable when poll() has work."""
        return self._pump.fileno()

    def poll(self) -> Gone | None:
        """Take what has arrived from the guest, without waiting; Gone when it ended."""
        for name, data in self._pump.take():
            if not data:
                self._open.discard(name)
            elif name == "console":
                self.console.take(data)
            elif name == "output":
                if self._on_output is not None:
                    self._on_output(data)
            elif name == "control":
                *lines, self._control_partial = (self._control_partial + data).split(b"\n")
                self._control += [line.decode("ascii", "replace").strip() for line in lines]
            else:
                self._messages = (self._messages + data)[-4096:]
        if not self._open:
            return self.ended(1.0)
        panic = self.console.panic
        if panic and time.monotonic() > self.console.panic_at + _AFTER_PANIC:
            return Gone(panic, self.console.last_lines(), "panic")
        return None

    def ended(self, grace: float) -> Gone | None:
        """Why QEMU ended, if it does within grace seconds."""
        deadline = time.monotonic() + grace
        while (status := self._child.status()) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        for name, data in self._pump.take():
            if name == "console":
                self.console.take(data)
            elif name == "messages":
                self._messages += data
        text = self._messages.decode("utf-8", "replace").strip().splitlines()
        troubles = [trouble for server in self._servers if (trouble := server.trouble())]
        if self.console.panic:
            reason = self.console.panic
        elif troubles:
            reason = troubles[0]
        elif status == 0 and not text:
            reason = "the guest shut down or reset itself"
        else:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            why = f": {text[-1].removeprefix(self._board.QEMU + ': ')}" if text else ""
            reason = f"QEMU ended {how}{why}"
        # What QEMU says of itself explains its end; the guest's last lines would only hide it.
        console = "" if text and not self.console.panic else self.console.last_lines()
        return Gone(reason, console, "panic" if self.console.panic else "")

    # The control channel.

    def wait_for(self, done: Callable[[], bool], timeout: float, what: str) -> None:
        """Poll until done().  Raises TargetError when the guest ends, or after timeout seconds
        (the guest has not <what>)."""
        deadline = time.monotonic() + timeout
        while True:
            gone = self.poll()
            if done():
                return
            if gone is not None:
                raise gone_error(gone)
            left = deadline - time.monotonic()
            if left <= 0:
                late = f"the guest has not {what} in {timeout:g} s"
                raise gone_error(Gone(late, self.console.last_lines(), "hang"))
            select.select([self], [], [], min(left, 0.5))

    def control_line(self, verb: str) -> str | None:
        """What follows `verb` in the oldest control line with it, which is taken; else None.

        Raises TargetError for an `error` line.
        """
        for line in self._control:
            found, _, rest = line.partition(" ")
            if found in (verb, "error"):
                self._control.remove(line)
                if found == "error":
                    raise TargetError(f"the guest's init says: {rest}")
                return rest
        return None

    def command_ended(self) -> CommandEnded | None:
        status = self.control_line("exit")
        return None if status is None else CommandEnded(int(status))

    def send_control(self, line: str) -> None:
        if not self._config.control:
            raise TargetError(
                "commands need kinst's own initrd: this guest has no one to run them",
                "leave out --initrd, or -c",
            )
        self._pump.send("control", line.encode() + b"\n")

    def send_input(self, data: bytes) -> None:
        """To the command, where that has the output port as its terminal.  From any thread."""
        self._pump.send("output", data)

    def plug_shares(self) -> None:
        """Put the devices of the host's folders into the machine, which runs, unless they are
        there from the start.  Once.  Raises TargetError."""
        if can_be_saved(self._config, self._board):
            for server in self._servers:
                server.plug(self.monitor)

    def close(self) -> None:
        """End QEMU and give its memory back.  Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.gdb.close()
        self.monitor.close()
        self._child.end()
        self._close_servers()
        self._pump.close()
        for memory in (self.memory, self._archive):
            if memory is not None:
                memory.close()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()


def gone_error(gone: Gone) -> GoneError:
    """The reason, and the console's end below it."""
    text = f"{gone.reason}\n{gone.console}" if gone.console else gone.reason
    return GoneError(text, gone.kind)
