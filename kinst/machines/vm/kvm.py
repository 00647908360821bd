"""Whether KVM works on this host.

On some hosts /dev/kvm can be opened, but a guest hangs early in its boot.  So prove() boots a
kernel without a file system: KVM works if the kernel gets as far as to panic because it has none.
The verdict is valid until the host boots or QEMU changes; verdict() only reads a file.

Tested by tests/machines/vm/test_machine.py.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from kinst.core.board import Board
from kinst.core.boot import Boot
from kinst.core.errors import TargetError
from kinst.machines.vm.qemu import MEGABYTE, Qemu, VmConfig
from kinst.wire.child_process import boot_id, find_program

_DEVICE = Path("/dev/kvm")
_END_OF_BOOT = "Unable to mount root fs"


def accelerator(cache: Path, board: Board) -> str:
    """Return "kvm" if it has been proved on this host since its last boot, otherwise "tcg"."""
    return "kvm" if verdict(cache, board) else "tcg"


def verdict(cache: Path, board: Board) -> bool | None:
    """Return the result of prove(); None if it was not called since the host's last boot."""
    try:
        said = json.loads(_file(cache, board).read_text())
        key, works = said["key"], said["works"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return bool(works) if key == _key(board) else None


def prove(cache: Path, board: Board, kernel: Path, boot: Boot, deadline: float = 8.0) -> bool:
    """Boot a kernel under KVM, and save in the cache folder whether it comes up.

    Returns at once if there is no KVM.

    Args:
        deadline: seconds for the whole boot.

    Raises TargetError only if QEMU or the kernel is missing.
    """
    works = _opens(board) and _boots(board, kernel, boot, deadline)
    cache.mkdir(parents=True, exist_ok=True)
    file = _file(cache, board)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"key": _key(board), "works": works}))
    part.replace(file)
    return works


def _file(cache: Path, board: Board) -> Path:
    """Return the file with the verdict; each QEMU program has its own."""
    return cache / f"kvm-{board.QEMU}.json"


def _key(board: Board) -> str:
    """Return a key of this boot of the host and of this QEMU.

    The file's identity is part of it instead of its version, which only a process could tell."""
    program = find_program(board.QEMU, board.PACKAGE)
    status = os.stat(program)
    return f"{boot_id()} {program} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _opens(board: Board) -> bool:
    if os.uname().machine not in board.HOST_MACHINES:
        return False
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _boots(board: Board, kernel: Path, boot: Boot, deadline: float) -> bool:
    config = VmConfig(
        kernel, boot, control=False, memory=256 * MEGABYTE, scratch=2 * MEGABYTE, accel="kvm"
    )
    end = time.monotonic() + deadline
    qemu = Qemu(config, board)
    try:
        qemu.wait_for(lambda: _END_OF_BOOT in "\n".join(qemu.console.lines), deadline, "booted")
    except TargetError:
        # QEMU failed at once, or the panic ended it before its text was read.
        return _END_OF_BOOT in "\n".join(qemu.console.lines) and time.monotonic() < end
    finally:
        qemu.close()
    return True
