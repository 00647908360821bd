"""QEMU process with a guest: starting, watching and ending it.

kinst and QEMU communicate through inherited file descriptors: guest RAM is shared memory; the stub
and the serial ports are socket pairs. None of these has a file name.

There are three serial ports: the kernel's console, the output of the guest's command, and the
control port, on which kinst and its init (guest_init.sh) exchange lines. The ISA's Board has the
ports' names in the guest and QEMU's arguments for them. This module does not know page tables or
breakpoints.

Tested by tests/machines/vm/test_machine.py.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kinst.core.board import Board
from kinst.core.boot import Boot
from kinst.core.dataclass import dataclass
from kinst.core.errors import GoneError, TargetError
from kinst.core.machine import CommandEnded, Gone
from kinst.machines.vm.accelerators import KVM, TCG, says_accelerator
from kinst.machines.vm.console import Console
from kinst.machines.vm.cpus import CPUS, says_cpus
from kinst.machines.vm.files import FileServer, Share, Surroundings, slots
from kinst.wire.child_process import Child, Pump, find_program
from kinst.wire.memory import SharedMemory
from kinst.wire.qmp import OwnMonitor
from kinst.wire.sockets import stream_pair, wait_until_ready

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
    """Configuration of a QEMU and of the guest that it boots.

    Attributes:
        kernel: the kernel's boot image.
        boot: how the kernel's system is booted.
        initrd: file or bytes of the archive to boot with.
        control: whether kinst's own init is in the initrd.
        append: text to add to the kernel's command line.
        qemu_args: the user's own arguments for QEMU.
        cpus: the largest number of CPUs that the guest may ever have.
        memory: bytes of the guest's memory.
        scratch: bytes of scratch.
        accel: the accelerator, KVM or TCG.
        shares: folders of the host that the guest can use.
        surroundings: environment of commands whose root is a folder of the host; None for other
            commands.
        beside: whether kinst's init runs beside the user's own init instead of as process 1.
        states: folder of saved states; None to save none.
        halted: whether QEMU waits before the first instruction until a debugger lets it run.
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
    accel: str = TCG
    shares: tuple[Share, ...] = ()
    surroundings: Surroundings | None = None
    beside: bool = False
    states: Path | None = None
    halted: bool = False


@dataclass(frozen=True, slots=True)
class PhysicalLayout:
    """Guest physical addresses of the RAM that kinst sets aside for itself.

    Attributes:
        end: end of the memory that the kernel may use.
        scratch: start of scratch.
        scratch_size: bytes of scratch.
        tables: start of the memory for kinst's page tables.
        tables_size: bytes of that memory.
    """

    end: int
    scratch: int
    scratch_size: int
    tables: int
    tables_size: int


def scratch_size(wanted: int) -> int:
    """Return how many bytes of scratch to set aside in a guest for a program that wants `wanted`
    bytes.

    The size is _SCRATCH or, if the program wants more, the next power of two. So there are few
    sizes, which matters because a saved state fits only one size of RAM. Scratch takes no memory of
    the host until it is written.
    """
    return max(_SCRATCH, 1 << (wanted - 1).bit_length())


_Map = tuple[tuple[int, int, int], ...]  # see Board.memory_map


def lay_out_ram(board: Board, memory: int, scratch: int) -> tuple[PhysicalLayout, int, _Map]:
    """Lay out a guest's RAM: the guest's own memory, then kinst's scratch and page tables.

    Scratch is contiguous: if a hole in the board's RAM would split it, it begins after the hole.

    Returns the layout, the bytes of RAM, and the memory map (Board.memory_map()).

    Args:
        memory: bytes of the guest's own memory.
        scratch: bytes of scratch.
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
    """Return the guest physical address of an offset in the file with the guest's RAM.

    Args:
        ranges: the memory map (Board.memory_map()).
    """
    return next(start + offset - at for start, at, size in ranges if at <= offset < at + size)


def _head(kernel: Path) -> bytes:
    try:
        with kernel.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""  # QEMU reports the error


def can_be_saved(config: VmConfig, board: Board) -> bool:
    """Return whether the state of a guest with this configuration can be saved and loaded.

    Four things prevent it:
    - there is no folder for saved states;
    - the initrd is the user's own, in which nothing sets the clock after loading;
    - the user gives QEMU arguments, which may name files that change;
    - the guest uses folders of the host, and the board has no slots to plug their devices into
      later. QEMU cannot save such devices.
    """
    if config.states is None or not config.control or config.qemu_args:
        return False
    return isinstance(config.initrd, bytes) and not (config.shares and not board.CARD_SLOT)


def guest_arguments(config: VmConfig, board: Board) -> list[str]:
    """Return the part of QEMU's arguments that decides which saved states a guest can use. Guests
    that can use each other's saved states have equal arguments.

    The initrd is left out, and file descriptors have constant names.
    """
    return [*_devices(config, board, {name: name for name in _CHANNELS}, ""), *_boot(config, board)]


def _devices(config: VmConfig, board: Board, fds: Mapping[str, str], ram: str) -> list[str]:
    """Return QEMU's arguments for CPUs, memory and devices.

    Args:
        fds: file descriptor of each of QEMU's sockets, by the socket's name.
        ram: path of the file with the guest's RAM.
    """
    c, m = config, board
    _, size, _ = lay_out_ram(board, c.memory, c.scratch)
    argv = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-machine", f"{m.MACHINE},memory-backend=ram"]
    argv += [] if says_accelerator(c.qemu_args) else ["-accel", c.accel]
    cpu = "host" if c.accel == KVM else m.cpu_for(_head(c.kernel))
    argv += ["-cpu", cpu] if cpu else []
    argv += ["-object", f"memory-backend-file,id=ram,size={size},mem-path={ram},share=on"]
    argv += ["-m", f"{size // MEGABYTE}M"]
    argv += [] if says_cpus(c.qemu_args) else ["-smp", str(c.cpus)]
    for name in _CHANNELS:
        argv += ["-chardev", f"socket,id={name},fd={fds[name]}"]
    for name, device in zip(("console", "output", "control"), m.SERIAL, strict=True):
        # Without a device name, the port is the one that the machine has by itself.
        card = ["-device", f"{device},chardev={name}"]
        argv += card if device else ["-serial", f"chardev:{name}"]
    argv += slots(c.shares, board.CARD_SLOT) if can_be_saved(c, board) else []
    return [*argv, "-gdb", "chardev:gdb", "-mon", "chardev=monitor,mode=control"]


def _boot(config: VmConfig, board: Board) -> list[str]:
    """Return QEMU's arguments for the kernel and its command line, without those for the initrd."""
    layout, _, _ = lay_out_ram(board, config.memory, config.scratch)
    start = board.memory_map(config.memory)[0][0]
    end, size = layout.end, layout.end - start
    append = config.boot.command_line(end, size, config.append, own=config.control)
    return ["-kernel", str(config.kernel), "-append", append]


class Qemu:
    """Running QEMU process.

    Making this object starts the process, and raises TargetError if it cannot be started.
    """

    def __init__(
        self,
        config: VmConfig,
        board: Board,
        on_output: Callable[[bytes], None] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Start QEMU.

        Args:
            on_output: called with the output of the guest's command, from within methods of this
                object.
            waits: whether QEMU waits for a saved state (warm.py) instead of booting the kernel.
        """
        if config.memory % (2 * MEGABYTE) or config.scratch % (2 * MEGABYTE):
            raise TargetError("guest memory and scratch memory must be multiples of 2 MB")
        program = find_program(board.QEMU, board.PACKAGE)
        if not config.kernel.is_file():
            raise TargetError(f"{config.kernel}: no such kernel")
        if isinstance(config.initrd, Path) and not config.initrd.is_file():
            raise TargetError(f"{config.initrd}: no such initrd")
        self._config = config
        self._board = board
        self._on_output = on_output
        self.layout, self._size, self._map = lay_out_ram(board, config.memory, config.scratch)
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
            argv += ["-S"] if config.halted else []
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
        """Set the function that is called with the output of the guest's command."""
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
        """Read guest RAM.  Raises TargetError if any of the addresses is outside of RAM."""
        offset = self._offset(address, size)
        return bytes(self.memory.view[offset : offset + size])

    def view_physical(self, address: int, size: int) -> memoryview:
        """Return a writable view of guest RAM.  Raises TargetError outside of RAM.

        Code that has been executed must not be written here: QEMU would keep its old translation.
        """
        offset = self._offset(address, size)
        return self.memory.view[offset : offset + size]

    def write_physical(self, address: int, data: bytes) -> None:
        """Write guest RAM.  Raises TargetError outside of RAM.

        Code that has been executed must not be written here: QEMU would keep its old translation.
        """
        self.view_physical(address, len(data))[:] = data

    def search(self, code: bytes) -> list[int]:
        """Return the physical addresses at which these bytes are in the guest's RAM, ascending.

        RAM that was never written is left out.
        """
        return [
            start + low + match.start() - offset
            for low, size in self.memory.extents()
            for start, offset, length in self._map
            if offset <= low < offset + length
            for match in re.finditer(re.escape(code), self.memory.view[low : low + size])
        ]

    def own_memory(self) -> Iterator[memoryview]:
        """Yield the parts of the guest's own RAM that were ever written, in whole pages.

        kinst's scratch and page tables are left out.
        """
        layout = self.layout
        start = self._offset(layout.scratch, 0)
        end = self._offset(layout.tables, 0) + layout.tables_size
        for low, size in self.memory.extents():
            high = low + size
            for piece in ((low, min(high, start)), (max(low, end), high)):
                if piece[0] < piece[1]:
                    yield self.memory.view[piece[0] : piece[1]]

    def clear_scratch(self) -> None:
        """Zero scratch after the boot.

        QEMU and the firmware may have written there: they load a large initrd at the end of RAM.
        """
        offset = self._offset(self.layout.scratch, self.layout.scratch_size)
        self.memory.clear(offset, self.layout.scratch_size)

    # What the guest says.

    def fileno(self) -> int:
        """Return a file descriptor that is readable when poll() has output to process."""
        return self._pump.fileno()

    def poll(self) -> Gone | None:
        """Process the output of QEMU and its guest so far, without waiting.

        Returns Gone if QEMU has ended or the kernel has panicked; otherwise None.
        """
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
        """Return why QEMU has ended; None if it still runs after `grace` seconds."""
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
        """Process the output of QEMU and its guest until `done` returns True.

        Args:
            timeout: seconds.
            what: for the error message, what the guest has not done, as a participle ("booted").

        Raises TargetError if the guest ends before, or after `timeout` seconds.
        """
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
            wait_until_ready([self], seconds=min(left, 0.5))

    def control_line(self, verb: str) -> str | None:
        """Take the oldest line from kinst's init that begins with the word `verb`, and return the
        text after that word; None if there is no such line.

        Raises TargetError if the init has reported an error (a line that begins with `error`).
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
        """Send input to the guest's command, if the command has a terminal.  Any thread may call
        this.
        """
        self._pump.send("output", data)

    def plug_shares(self) -> None:
        """Plug the devices of the host's folders into the running machine; call this once.

        Does nothing if the devices are present from the start. Raises TargetError.
        """
        if can_be_saved(self._config, self._board):
            for server in self._servers:
                server.plug(self.monitor)

    def close(self) -> None:
        """End QEMU and free the guest's memory.  Safe to call twice."""
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


def prepare_line(command: str, size: str = "") -> str:
    """Return the line that asks kinst's init to prepare a shell command.

    Args:
        size: rows and columns of the command's terminal; "" if it gets none.
    """
    return f"prepare {command.encode('utf-8', 'surrogateescape').hex()} {size}".strip()


def gone_error(gone: Gone) -> GoneError:
    """Return an error with the reason why a machine has ended and, below it, its console's last
    lines.
    """
    text = f"{gone.reason}\n{gone.console}" if gone.console else gone.reason
    return GoneError(text, gone.kind)
