"""From what the user named to a process and the address of its GDB stub."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.machines.attach.find import AUTO, check, monitor_of, stub_of, the_only_one
from kinst.wire.other_process import OtherProcess
from kinst.wire.qmp import Monitor, owner_of


@dataclass(frozen=True, slots=True)
class Place:
    """pid: of the machine's process.  stub: where its GDB stub listens.  monitor: the path of its
    QMP socket, "" where there is none.  added: the stub is kinst's, and to be taken away again."""

    pid: int
    stub: str
    monitor: str = ""
    added: bool = False


def located(named: str, stub: str, program: str) -> Place:
    """What `named` means: a process id, the path of a QMP socket, or "auto".

    stub: its stub's address, where the user gave one.  program: the emulator that is expected.
    Where the machine has no stub, its monitor is asked to listen for one.  Raises TargetError.
    """
    monitor = ""
    if named == AUTO:
        pid = the_only_one()
    elif named.isdecimal():
        pid = int(named)
    else:
        pid, monitor = owner_of(named), named
    process = OtherProcess(pid)
    check(process, program)
    folder = _folder(pid)
    arguments = process.arguments
    monitor = monitor or monitor_of(arguments, folder)
    found = stub or stub_of(arguments, folder)
    if monitor:
        with Monitor(monitor) as qmp:
            _check_state(qmp, pid)
            if not found:
                return Place(pid, qmp.add_stub(), monitor, True)
    if not found:
        raise TargetError(
            f"the QEMU of process {pid} has neither a GDB stub nor a QMP socket in its command"
            " line",
            "start it with -s, or give the stub's address with --gdb",
        )
    return Place(pid, found, monitor)


def _folder(pid: int) -> str:
    """Where a process was started, or is now; for relative paths in its command line."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _check_state(qmp: Monitor, pid: int) -> None:
    """Raises TargetError for a machine that does not run, or that is on its way elsewhere."""
    state = qmp.status()
    if qmp.migrating():
        raise TargetError(f"the guest of process {pid} is migrating", "wait until it has arrived")
    if state != "running":
        raise TargetError(
            f"the guest of process {pid} does not run: QEMU says that it is {state}",
            "let it run (`cont` in QEMU's monitor) and try again",
        )
