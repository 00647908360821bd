"""Test whether KVM works on this host, and the stored result of that test.

On some hosts /dev/kvm can be opened, but a guest hangs early in its boot. So prove() boots a kernel
without a file system: KVM works if the kernel gets as far as to panic for want of a file system.
The result is valid until the host boots or QEMU changes; verdict() only reads it from a file.

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
    """Return "kvm" if prove() has shown since the host's last boot that KVM works, otherwise "tcg".

    Args:
        cache: the cache folder.
    """
    return "kvm" if verdict(cache, board) else "tcg"


def verdict(cache: Path, board: Board) -> bool | None:
    """Return whether KVM works, as prove() has stored it.

    None if prove() was not called since the host's last boot, or QEMU has changed since.

    Args:
        cache: the cache folder.
    """
    try:
        said = json.loads(_file(cache, board).read_text())
        key, works = said["key"], said["works"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return bool(works) if key == _key(board) else None


def prove(cache: Path, board: Board, kernel: Path, boot: Boot, deadline: float = 8.0) -> bool:
    """Boot a kernel under KVM; return whether it comes up, and store that in the cache folder.

    Returns False at once if the host has no KVM for this board.

    Args:
        cache: the cache folder.
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
    """Return the path of the file with the stored result; each QEMU program has a file of
    its own.
    """
    return cache / f"kvm-{board.QEMU}.json"


def _key(board: Board) -> str:
    """Return a string that changes when the host boots or QEMU is replaced.

    It has the identity of QEMU's file instead of QEMU's version, for which QEMU would have to run.
    """
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
