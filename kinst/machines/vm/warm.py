"""Warm starts: a guest goes on from where one like it was when it had just booted.

What is alike is said by a key of all that the state depends on: QEMU's arguments (which hold the
kernel's command line, CPUs, memory and devices), the programs and files behind them, and the host's
CPU.  QEMU itself compares only some of that: it takes the state of another CPU model or of other
devices without a word.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from kinst.core.board import Board
from kinst.core.errors import TargetError
from kinst.core.page_tables import Root
from kinst.machines.vm.qemu import Qemu, VmConfig, can_be_saved, guest_arguments
from kinst.machines.vm.saved_states import SavedRam, SavedStates
from kinst.wire.child_process import find_program
from kinst.wire.memory import AnonymousFile

_FOLDER = "guests"
_FORMAT = "with bearings"  # of what is kept
_CPU = ("model name", "flags", "CPU implementer", "CPU part", "Features", "isa", "uarch")


@dataclass(frozen=True, slots=True)
class SavedBearings:
    """What is known of a guest whose state is kept.  root: its page tables.  text: where the
    kernel's code begins by these."""

    root: Root
    text: int

    @property
    def line(self) -> bytes:
        """With its end."""
        return json.dumps([*astuple(self.root), self.text]).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> SavedBearings:
        *root, text = json.loads(line)
        return cls(Root(*root), text)


class WarmStart:
    """What is kept of guests of one configuration."""

    def __init__(self, folder: Path, key: str) -> None:
        self._states = SavedStates(folder)
        self._key = key

    @property
    def is_there(self) -> bool:
        return self._states.has(self._key)

    def forget(self) -> None:
        """It is of no use."""
        self._states.forget(self._key)

    def keep(self, qemu: Qemu, bearings: SavedBearings) -> int:
        """Save the state of a guest that stands, as the one from which others go on; its bytes, 0
        where it could not be kept."""
        with AnonymousFile("devices") as file:
            try:
                qemu.monitor.save_devices(file.fd)
            except TargetError:
                return 0
            devices = bearings.line + file.read()
        return self._states.save(self._key, qemu.memory.view, qemu.memory.extents(), devices)

    def load(self, qemu: Qemu) -> None:
        """Bring that state into a QEMU that waits for it, and let the guest go on, which sets its
        clock.  Raises TargetError where that cannot be done."""
        devices = self._states.load(self._key, qemu.memory.view).partition(b"\n")[2]
        with AnonymousFile("devices") as file:
            file.write(devices)
            qemu.monitor.load_devices(file.fd)
        qemu.monitor.execute("cont")
        qemu.send_control(f"clock {round(time.time())}")

    def open(self, size: int) -> tuple[SavedRam, SavedBearings]:
        """The state, to be looked at without a QEMU.  size: bytes of RAM.  Raises TargetError."""
        ram = self._states.open(self._key, size)
        return ram, SavedBearings.of(ram.devices.partition(b"\n")[0])


class Loading:
    """load() on a thread of its own: kinst has much else to do meanwhile."""

    def __init__(self, warm: WarmStart, qemu: Qemu) -> None:
        self._error: Exception | None = None
        self._warm, self._qemu = warm, qemu
        self._thread = threading.Thread(target=self._load, name="kinst-warm", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            self._warm.load(self._qemu)
        except Exception as error:  # handed to the caller of finish()
            self._error = error

    def finish(self) -> None:
        """Wait for it.  Raises what it failed with: TargetError, or OSError where there are no more
        descriptors."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class EarlyGuest:
    """The EarlyStart protocol (core/machine.py): a QEMU that the state of a booted guest is brought
    into."""

    def __init__(self, config: VmConfig, board: Board, warm: WarmStart) -> None:
        self._config = config
        self._qemu: Qemu | None = Qemu(config, board, waits=True)
        self._loading = Loading(warm, self._qemu)

    def take(self, wanted: object) -> tuple[Qemu, Loading] | None:
        """See core/machine.py.  wanted: a VmConfig."""
        qemu = self._qemu
        if qemu is None or wanted != self._config:
            self.close()
            return None
        self._qemu = None
        return qemu, self._loading

    def close(self) -> None:
        """See core/machine.py."""
        if self._qemu is not None:
            self._qemu.close()
            self._qemu = None


def early_guest(config: VmConfig, board: Board) -> EarlyGuest | None:
    """A guest that goes on from a state that is kept; None where there is none of it."""
    warm = warm_start(config, board)
    return EarlyGuest(config, board, warm) if warm is not None and warm.is_there else None


def warm_start(config: VmConfig, board: Board) -> WarmStart | None:
    """Where the state of a guest like this is kept; None for one that is not to be kept.  Raises
    TargetError where QEMU is missing."""
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
    """Changes when a file does, or is replaced: to read it would take longer."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror}") from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _host_cpu() -> list[str]:
    """What /proc/cpuinfo says of its first CPU that does not change from one moment to the next."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    return [line for line in first.splitlines() if line.partition("\t")[0].strip() in _CPU]
