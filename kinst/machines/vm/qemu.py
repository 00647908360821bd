"""A QEMU process with a kernel: starting, watching and ending it.

kinst and QEMU communicate through inherited file descriptors: guest RAM is shared memory; the stub
and the serial ports are socket pairs.  None of them has a file name.

There are three serial ports: the kernel's console, the output of the guest's command, and the
conversation with kinst's init (guest_init.sh), in lines.  The ISA's Board has their names in the
guest and QEMU's arguments for them.  This module does not know page tables or breakpoints.

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

_CHANNELS = ("console", "output", "control", "gdb", "monitor")  # sockets of QEMU
_AFTER_PANIC = 3.0
_FIRMWARE = 1 << 20  # SeaBIOS keeps its tables at the end of RAM
_TABLES = 1 << 20  # bytes for kinst's own page tables
MEGABYTE = 1 << 20
MEMORY = 1024 * MEGABYTE  # of a guest by default
_SCRATCH = 256 * MEGABYTE  # the least scratch of a guest
_ALSO_USED = 64 * MEGABYTE  # of scratch that is used, an estimate; most of it stays empty


@dataclass(frozen=True, slots=True)
class VmConfig:
    """What to boot.

    Attributes:
        kernel: the kernel's boot image.
        boot: how the kernel's system is booted.
        initrd: file or bytes of the archive to boot with.
        control: whether kinst's own init is in the initrd.
        append: more of the kernel's command line.
        qemu_args: more arguments for QEMU.
        cpus: the most CPUs that the guest may ever have.
        memory: bytes of memory.
        scratch: bytes of scratch.
        accel: "tcg" or "kvm".
        shares: folders of the host.
        surroundings: environment of commands, if a folder of the host is their root.
        beside: kinst's init is not process 1 but runs beside the user's own.
        states: folder of saved states; None to save none.
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
    """Guest physical addresses of what kinst sets aside.

    Attributes:
        end: end of the kernel's memory.
        scratch: start of scratch.
        scratch_size: bytes of scratch.
        tables: start of the room for page tables.
        tables_size: bytes of that room.
    """

    end: int
    scratch: int
    scratch_size: int
    tables: int
    tables_size: int


def scratch_size(wanted: int) -> int:
    """Return the bytes of scratch of a guest for a program that wants `wanted` bytes.

    The size does not follow each program, since a saved state fits only one size of RAM.  Most
    programs need less; scratch takes no memory until it is written."""
    return max(_SCRATCH, 1 << (wanted - 1).bit_length())


_Map = tuple[tuple[int, int, int], ...]  # see Board.memory_map


def place(board: Board, memory: int, scratch: int) -> tuple[PhysicalLayout, int, _Map]:
    """Lay out RAM: the memory of the guest, then scratch and page tables of kinst.

    Scratch is contiguous: if the board has a hole in RAM there, it is after the hole.

    Returns:
        The layout, the bytes of RAM, and the memory map.
    """
    extra = scratch + _TABLES + _FIRMWARE
    at = memory
    while True:
        size = at + extra
        ranges = board.memory_map(size)
        start, offset, length = next(r for r in ranges if r[1] <= at < r[1] + r[2])
        if size <= offset + length:
            break
        at = offset + length
    first = start + at - offset
    end = first if at == memory else start_of(ranges, memory)
    return PhysicalLayout(end, first, scratch, first + scratch, _TABLES), size, ranges


def start_of(ranges: _Map, offset: int) -> int:
    """Return the physical address of an offset in the file with RAM."""
    return next(start + offset - at for start, at, size in ranges if at <= offset < at + size)


def _head(kernel: Path) -> bytes:
    try:
        with kernel.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""  # QEMU reports the error


def can_be_saved(config: VmConfig, board: Board) -> bool:
    """Return whether the state of such a guest can be saved and loaded.

    It cannot under KVM; with the user's initrd, which has nothing that sets the clock; with the
    user's arguments for QEMU, which may name files that change; and with folders of the host whose
    devices are present from the start, which QEMU cannot save."""
    if config.states is None or not config.control or config.qemu_args or config.accel != "tcg":
        return False
    return isinstance(config.initrd, bytes) and not (config.shares and not board.CARD_SLOT)


def guest_arguments(config: VmConfig, board: Board) -> list[str]:
    """Return QEMU's arguments without file descriptors and initrd, the same for guests that are
    alike."""
    return [*_devices(config, board, {name: name for name in _CHANNELS}, ""), *_boot(config, board)]


def _devices(config: VmConfig, board: Board, fds: Mapping[str, str], ram: str) -> list[str]:
    """Return QEMU's arguments for the machine.

    Args:
        fds: file descriptors of the channels.
        ram: path of the file with its RAM.
    """
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
        # Without a name of a device, it is the one port that the machine has by itself.
        card = ["-device", f"{device},chardev={name}"]
        argv += card if device else ["-serial", f"chardev:{name}"]
    argv += slots(c.shares, board.CARD_SLOT) if can_be_saved(c, board) else []
    return [*argv, "-gdb", "chardev:gdb", "-mon", "chardev=monitor,mode=control"]


def _boot(config: VmConfig, board: Board) -> list[str]:
    """Return QEMU's arguments for the kernel and its command line, without the initrd."""
    layout, _, _ = place(board, config.memory, config.scratch)
    start = board.memory_map(config.memory)[0][0]
    end, size = layout.end, layout.end - start
    append = config.boot.command_line(end, size, config.append, own=config.control)
    return ["-kernel", str(config.kernel), "-append", append]


class Qemu:
    """A running QEMU.  Raises TargetError if it cannot be started."""

    def __init__(
        self,
        config: VmConfig,
        board: Board,
        on_output: Callable[[bytes], None] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """
        Args:
            on_output: gets the output of the command, from within calls of this object.
            waits: boot nothing, and wait for a saved state (warm.py).
        """
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
        """Set the function that gets the output of the command."""
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
        """Read guest RAM.  Raises TargetError if the address is outside of it."""
        offset = self._offset(address, size)
        return bytes(self.memory.view[offset : offset + size])

    def view_physical(self, address: int, size: int) -> memoryview:
        """Return guest RAM, writable.  Code that has run must not be written here, since QEMU keeps
        its translation."""
        offset = self._offset(address, size)
        return self.memory.view[offset : offset + size]

    def write_physical(self, address: int, data: bytes) -> None:
        """Write guest RAM, under the same condition as view_physical()."""
        self.view_physical(address, len(data))[:] = data

    def own_memory(self) -> Iterator[memoryview]:
        """Yield the parts of RAM that were ever written, in whole pages, without kinst's own
        memory."""
        layout = self.layout
        start = self._offset(layout.scratch, 0)
        end = self._offset(layout.tables, 0) + layout.tables_size
        for low, size in self.memory.extents():
            high = low + size
            for piece in ((low, min(high, start)), (max(low, end), high)):
                if piece[0] < piece[1]:
                    yield self.memory.view[piece[0] : piece[1]]

    def clear_scratch(self) -> None:
        """Zero scratch.  QEMU and the firmware may have used it: a large initrd is loaded at the
        end of RAM, and the kernel moves it."""
        offset = self._offset(self.layout.scratch, self.layout.scratch_size)
        self.memory.clear(offset, self.layout.scratch_size)

    # What the guest says.

    def fileno(self) -> int:
        """Return a file descriptor that is readable when poll() has work."""
        return self._pump.fileno()

    def poll(self) -> Gone | None:
        """Process output of the guest, without waiting; return Gone if it has ended."""
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
        """Return why QEMU has ended, if it ends within `grace` seconds, or None."""
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
        # A message of QEMU explains its end; after it the guest's last lines would only distract.
        console = "" if text and not self.console.panic else self.console.last_lines()
        return Gone(reason, console, "panic" if self.console.panic else "")

    # The control channel.

    def wait_for(self, done: Callable[[], bool], timeout: float, what: str) -> None:
        """Poll until done().

        Args:
            what: what the guest has not done, as a participle, for the error message.

        Raises TargetError if the guest ends, or after `timeout` seconds."""
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
        """Remove the oldest control line that begins with `verb`, and return the rest of it; None
        if there is no such line.

        Raises TargetError for an `error` line.
        """
        for line in self._control:
            first, _, rest = line.partition(" ")
            if first in (verb, "error"):
                self._control.remove(line)
                if first == "error":
                    raise TargetError(f"the guest's init says: {rest}")
                return rest
        return None

    def command_ended(self) -> CommandEnded | None:
        status = self.control_line("exit")
        return None if status is None else CommandEnded(int(status))

    def send_control(self, line: str) -> None:
        if not self._config.control:
            raise TargetError(
                "commands need kinst's init, which this guest's initrd does not have",
                "leave out --initrd, or -c",
            )
        self._pump.send("control", line.encode() + b"\n")

    def send_input(self, data: bytes) -> None:
        """Send input to the command, if the output port is its terminal.  Any thread may call
        it."""
        self._pump.send("output", data)

    def plug_shares(self) -> None:
        """Plug the devices of the host's folders into the running machine, unless they are present
        from the start.  Call it once.  Raises TargetError."""
        if can_be_saved(self._config, self._board):
            for server in self._servers:
                server.plug(self.monitor)

    def close(self) -> None:
        """End QEMU and free its memory.  Safe to call twice."""
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
    """Return an error with the reason and, below it, the last lines of the console."""
    text = f"{gone.reason}\n{gone.console}" if gone.console else gone.reason
    return GoneError(text, gone.kind)
