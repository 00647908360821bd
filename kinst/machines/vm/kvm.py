"""Whether KVM truly works here.

/dev/kvm that opens proves nothing: on some hosts a guest then hangs in early boot.  So the
proof is a boot: the kernel is started without a file system, and KVM works when it comes as
far as to panic for want of one.  The verdict holds until the host is booted anew or QEMU
changes; asking for it costs a file read.

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
    """ "kvm" when it has been proved on this host since its last boot, else "tcg"."""
    return "kvm" if verdict(cache, board) else "tcg"


def verdict(cache: Path, board: Board) -> bool | None:
    """What prove() found, or None when it has not been asked here and now."""
    try:
        said = json.loads(_file(cache, board).read_text())
        key, works = said["key"], said["works"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return bool(works) if key == _key(board) else None


def prove(cache: Path, board: Board, kernel: Path, boot: Boot, deadline: float = 8.0) -> bool:
    """Boot a kernel of this kind under KVM and remember in the cache folder whether it comes up.

    deadline: seconds for the whole boot.  Costs nothing where there is no KVM.  Raises
    TargetError only when QEMU or the kernel is missing.
    """
    works = _opens(board) and _boots(board, kernel, boot, deadline)
    cache.mkdir(parents=True, exist_ok=True)
    file = _file(cache, board)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"key": _key(board), "works": works}))
    part.replace(file)
    return works


def _file(cache: Path, board: Board) -> Path:
    """Where the verdict is: each QEMU has its own, so that none is lost to another."""
    return cache / f"kvm-{board.QEMU}.json"


def _key(board: Board) -> str:
    """This boot of this host, and this QEMU: the file's identity stands for its version, which
    would cost a process to ask for."""
    program = find_program(board.QEMU, board.PACKAGE)
    found = os.stat(program)
    return f"{boot_id()} {program} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


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
        # Also: QEMU refused at once, or the panic ended it before its text was looked at.
        return _END_OF_BOOT in "\n".join(qemu.console.lines) and time.monotonic() < end
    finally:
        qemu.close()
    return True
