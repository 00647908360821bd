"""QEMU process that the user has named, and the address of its GDB stub."""

from __future__ import annotations

import os
from contextlib import suppress

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.machines.attach.find import AUTO, encryption_error, monitor_of, stub_of, the_only_one
from kinst.machines.attach.monitor import SECONDS, Monitor
from kinst.wire.other_process import OtherProcess
from kinst.wire.qmp import owner_of


@dataclass(frozen=True, slots=True)
class QemuEndpoint:
    """QEMU process, with the addresses by which kinst reaches it.

    Attributes:
        pid: its process id.
        stub: address of its GDB stub.
        monitor: path of its QMP socket, "" without one.
        added: whether kinst has added the stub, and must remove it.
    """

    pid: int
    stub: str
    monitor: str = ""
    added: bool = False


def process_of(named: str, program: str) -> int:
    """Return the process id of the QEMU that the user has named.

    Args:
        named: a process id, the path of a QMP socket, or "auto".
        program: the emulator for the kernel's ISA, which "auto" prefers.

    Raises TargetError if there is no such process.
    """
    if named == AUTO:
        return the_only_one(program)
    return int(named) if _is_number(named) else owner_of(named, SECONDS)


def _is_number(named: str) -> bool:
    return named.isascii() and named.isdecimal()


def find_endpoint(process: OtherProcess, named: str, stub: str) -> QemuEndpoint:
    """Find the GDB stub of a QEMU; if the QEMU has no stub, make it add a stub through its monitor.

    Args:
        named: a process id, the path of a QMP socket, or "auto".
        stub: address of the stub, "" if the user gave none.

    Raises TargetError if the QEMU has neither a stub nor a monitor, or its guest cannot be traced
    now.
    """
    pid, arguments = process.pid, process.arguments
    folder = _folder(pid)
    path = "" if named == AUTO or _is_number(named) else named
    monitor = path or monitor_of(arguments, folder)
    address = stub or stub_of(arguments, folder)
    if monitor:
        with Monitor(monitor) as qmp:
            _check_state(qmp, pid)
            if not address:
                listens, left = qmp.stub()
                return QemuEndpoint(pid, listens or qmp.add_stub(), monitor, left or not listens)
    if not address:
        raise TargetError(
            f"the QEMU of process {pid} has neither a GDB stub nor a QMP socket in its command"
            " line",
            "start it with -s, or give the stub's address with --gdb",
        )
    return QemuEndpoint(pid, address, monitor)


def remove_stub(endpoint: QemuEndpoint) -> None:
    """Remove the GDB stub of a QEMU if kinst has added it."""
    if endpoint.added:
        with suppress(TargetError), Monitor(endpoint.monitor) as qmp:
            qmp.remove_stub(endpoint.stub)


def _folder(pid: int) -> str:
    """Return a process's working folder, to which paths in its command line are relative."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _check_state(qmp: Monitor, pid: int) -> None:
    """Raise TargetError if a guest does not run, is being migrated, or has encrypted memory."""
    if qmp.encrypts():
        raise encryption_error(pid)
    state = qmp.status()
    if qmp.migrating():
        raise TargetError(f"the guest of process {pid} is migrating", "wait until it has arrived")
    if state != "running":
        raise TargetError(
            f"the guest of process {pid} does not run: QEMU says that it is {state}",
            "let it run (`cont` in QEMU's monitor) and try again",
        )
