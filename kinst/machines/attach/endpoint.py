"""From what the user named to a process and the address of its GDB stub."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.machines.attach.find import AUTO, monitor_of, no_kvm, stub_of, the_only_one
from kinst.machines.attach.monitor import SECONDS, Monitor
from kinst.wire.other_process import OtherProcess
from kinst.wire.qmp import owner_of


@dataclass(frozen=True, slots=True)
class QemuEndpoint:
    """pid: of the machine's process.  stub: where its GDB stub listens.  monitor: the path of its
    QMP socket, "" where there is none.  added: the stub is kinst's, and to be taken away again."""

    pid: int
    stub: str
    monitor: str = ""
    added: bool = False


def process_of(named: str, program: str) -> int:
    """What `named` means: a process id, the path of a QMP socket, or "auto".  program: the emulator
    of the kernel's instruction set.  Raises TargetError where that is no process."""
    if named == AUTO:
        return the_only_one(program)
    return int(named) if _is_number(named) else owner_of(named, SECONDS)


def _is_number(named: str) -> bool:
    return named.isascii() and named.isdecimal()


def find_endpoint(process: OtherProcess, named: str, stub: str) -> QemuEndpoint:
    """Where the stub of a machine is.

    named: as it was named.  stub: its stub's address, where the user gave one.  Where the machine
    has no stub, its monitor is asked to listen for one.  Raises TargetError.
    """
    pid, arguments = process.pid, process.arguments
    folder = _folder(pid)
    path = "" if named == AUTO or _is_number(named) else named
    monitor = path or monitor_of(arguments, folder)
    found = stub or stub_of(arguments, folder)
    if monitor:
        with Monitor(monitor) as qmp:
            _check_state(qmp, pid)
            if not found:
                listens, left = qmp.stub()
                return QemuEndpoint(pid, listens or qmp.add_stub(), monitor, left or not listens)
    if not found:
        raise TargetError(
            f"the QEMU of process {pid} has neither a GDB stub nor a QMP socket in its command"
            " line",
            "start it with -s, or give the stub's address with --gdb",
        )
    return QemuEndpoint(pid, found, monitor)


def remove_stub(place: QemuEndpoint) -> None:
    """Nothing of kinst's listens there any more."""
    if place.added:
        with suppress(TargetError), Monitor(place.monitor) as qmp:
            qmp.remove_stub(place.stub)


def _folder(pid: int) -> str:
    """Where a process was started, or is now; for relative paths in its command line."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _check_state(qmp: Monitor, pid: int) -> None:
    """Raises TargetError for a machine that does not run, that is on its way elsewhere, or whose
    code KVM runs."""
    if qmp.uses_kvm():
        raise no_kvm(pid)
    state = qmp.status()
    if qmp.migrating():
        raise TargetError(f"the guest of process {pid} is migrating", "wait until it has arrived")
    if state != "running":
        raise TargetError(
            f"the guest of process {pid} does not run: QEMU says that it is {state}",
            "let it run (`cont` in QEMU's monitor) and try again",
        )
