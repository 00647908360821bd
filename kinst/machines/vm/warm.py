"""Warm starts: a guest continues from the saved state of an equal guest that had just booted.

Two guests are equal if they have the same key. The key is made of all that a state depends on:
QEMU's arguments (with the kernel's command line, CPUs, memory and devices), the programs and files
that they name, and the host's CPU. QEMU itself checks only some of this: it loads the state of
another CPU model, or of other devices, without an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from kinst.core.board import Board
from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.page_tables import Root
from kinst.machines.vm.qemu import (
    Qemu,
    VmConfig,
    can_be_saved,
    guest_arguments,
    prepare_line,
)
from kinst.machines.vm.saved_states import SavedRam, SavedStates
from kinst.wire.child_process import find_program
from kinst.wire.memory import AnonymousFile

_FOLDER = "guests"
_SHORT = 4096  # letters of a command that is prepared as soon as the guest runs
_FORMAT = "with bearings"  # part of the key; changes with the format
_CPU = ("model name", "flags", "CPU implementer", "CPU part", "Features", "isa", "uarch")


@dataclass(frozen=True, slots=True)
class SavedLocation:
    """Where the kernel is in the memory of a saved state.

    Attributes:
        root: the kernel's page tables.
        text: virtual address at which the kernel's code starts.
    """

    root: Root
    text: int

    @property
    def line(self) -> bytes:
        """The values of this object as one line of JSON, with its newline: the form in which a
        saved state stores them."""
        return json.dumps([*astuple(self.root), self.text]).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> SavedLocation:
        """Parse a line that SavedLocation.line has made, and return its values."""
        *root, text = json.loads(line)
        return cls(Root(*root), text)


class WarmStart:
    """Saved state for guests of one configuration; the state may not exist yet."""

    def __init__(self, folder: Path, key: str) -> None:
        self._states = SavedStates(folder)
        self._key = key

    @property
    def is_there(self) -> bool:
        return self._states.has(self._key)

    def delete(self) -> None:
        """Delete the saved state, if there is one."""
        self._states.delete(self._key)

    def save(self, qemu: Qemu, location: SavedLocation) -> int:
        """Save the state of a stopped guest, from which later guests continue.

        Returns the size of the file in bytes, 0 if the state could not be saved.

        Args:
            location: where the kernel is in the guest's memory.
        """
        with AnonymousFile("devices") as file:
            try:
                qemu.monitor.save_devices(file.fd)
            except TargetError:
                return 0
            devices = location.line + file.read()
        return self._states.save(self._key, qemu.memory.view, qemu.memory.extents(), devices)

    def load(self, qemu: Qemu, command: str = "") -> None:
        """Load the saved state into a waiting QEMU, let its guest run, and set the guest's clock.

        Args:
            command: shell command that the guest is to prepare as well; "" for no command.

        Raises TargetError if that fails.
        """
        devices = self._states.load(self._key, qemu.memory.view).partition(b"\n")[2]
        with AnonymousFile("devices") as file:
            file.write(devices)
            qemu.monitor.load_devices(file.fd)
        qemu.monitor.execute("cont")
        qemu.send_control(f"clock {round(time.time())}")
        if command:
            qemu.send_control(prepare_line(command))

    def open(self, size: int) -> tuple[SavedRam, SavedLocation]:
        """Open the saved state for reading, without a QEMU.

        Returns the guest's RAM, and where the kernel is in it.

        Args:
            size: bytes of RAM that the guest has.

        Raises TargetError if the saved state is damaged or missing.
        """
        ram = self._states.open(self._key, size)
        return ram, SavedLocation.of(ram.devices.partition(b"\n")[0])


class Loading:
    """Thread that loads a saved state into a QEMU (WarmStart.load()) while kinst does other
    work.

    Attributes:
        command: shell command that the guest prepares as soon as it runs; "" for no command.
    """

    def __init__(self, warm: WarmStart, qemu: Qemu, command: str = "") -> None:
        self.command = command
        self._error: Exception | None = None
        self._warm, self._qemu = warm, qemu
        self._thread = threading.Thread(target=self._load, name="kinst-warm", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            self._warm.load(self._qemu, self.command)
        except Exception as error:  # finish() raises it
            self._error = error

    def finish(self) -> None:
        """Wait until the saved state is loaded.

        Raises TargetError if loading has failed, and OSError if there are no more file descriptors.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error


class EarlyGuest:
    """QEMU that is started before the D program is compiled, and loads a saved state when load() is
    called; implements EarlyStart (core/machine.py).

    The VmConfig of this QEMU is a guess, since the D program may want more scratch. take() compares
    the guess with the final VmConfig.
    """

    def __init__(self, config: VmConfig, board: Board, warm: WarmStart, command: str) -> None:
        """Start QEMU.

        Args:
            command: shell command that the guest prepares as soon as it runs; "" for no command.
        """
        self._config, self._warm, self._command = config, warm, command
        self._qemu: Qemu | None = Qemu(config, board, waits=True)
        self._loading: Loading | None = None

    def load(self) -> None:
        if self._qemu is not None and self._loading is None:
            self._loading = Loading(self._warm, self._qemu, self._command)

    def take(self, wanted: object) -> tuple[Qemu, Loading] | None:
        """Hand over the QEMU and the loading of its saved state, if its VmConfig equals `wanted`.
        If not, end the QEMU and return None. Also return None if the QEMU was handed over before.

        Args:
            wanted: the final VmConfig.
        """
        qemu = self._qemu
        if qemu is None or wanted != self._config:
            self.close()
            return None
        self.load()
        assert self._loading is not None
        self._qemu = None
        return qemu, self._loading

    def close(self) -> None:
        if self._qemu is not None:
            self._qemu.close()
            self._qemu = None


def early_guest(config: VmConfig, board: Board, command: str) -> EarlyGuest | None:
    """Start a QEMU that can load the saved state for a configuration; None if no state is saved.

    Args:
        command: shell command that the guest prepares as soon as it runs; "" for no command.
    """
    warm = warm_start(config, board)
    if warm is None or not warm.is_there:
        return None
    can_prepare = not config.shares and len(command) < _SHORT
    return EarlyGuest(config, board, warm, command if can_prepare else "")


def warm_start(config: VmConfig, board: Board) -> WarmStart | None:
    """Return the saved state for guests of a configuration; the state may not exist yet.

    None if the state of such guests is never saved. Raises TargetError if QEMU is missing.
    """
    if config.states is None or not can_be_saved(config, board):
        return None
    return WarmStart(config.states / _FOLDER, _key(config, board))


def _key(config: VmConfig, board: Board) -> str:
    assert isinstance(config.initrd, bytes)
    program = os.path.realpath(find_program(board.QEMU, board.PACKAGE))
    parts = [
        _FORMAT,
        program,
        *guest_arguments(config, board),
        _identity(program),
        _identity(config.kernel),
        hashlib.sha256(config.initrd).hexdigest(),
        *_host_cpu(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _identity(path: str | Path) -> Sequence[int]:
    """Return numbers that change if a file is changed or replaced.

    They come from stat(2); a checksum of the contents would take longer.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror}") from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _host_cpu() -> list[str]:
    """Return the lines of /proc/cpuinfo that identify the model of the host's first CPU."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    return [line for line in first.splitlines() if line.partition("\t")[0].strip() in _CPU]
