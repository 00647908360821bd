"""Search for QEMU processes on this host, and for sockets in their command lines.

Source: QEMU's manual, "Invocation": -gdb, -s, -qmp, -chardev, -mon.

Tested by tests/machines/attach/test_parts.py and tests/machines/attach/test_refused_memory.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.page_tables import LEAF_SIZE
from kinst.machines.attach.ram import LEAST
from kinst.wire.other_process import OtherProcess, process_ids

_PROGRAMS = ("qemu-system-", "qemu-kvm", "kvm")
_RUNS_WITHIN = 3.0  # seconds in which a CPU of a running machine takes time
AUTO = "auto"
_KVM = "anon_inode:kvm-vm"  # file descriptor of KVM_CREATE_VM (virt/kvm/kvm_main.c)
# Files by which QEMU gives its guest a device of the host, which writes to the guest's RAM by
# itself: drivers/vfio, drivers/iommu/iommufd, drivers/vhost/vdpa.c.
_DEVICES = ("/dev/vfio/", "anon_inode:[vfio-device]", "/dev/iommu", "/dev/vhost-vdpa-")
# QEMU's objects that encrypt the guest's RAM, and files that they open (docs/system/i386/sev.rst,
# tdx.rst).
_ENCRYPTING = ("sev-guest", "sev-snp-guest", "tdx-guest")
_ENCRYPTED = ("/dev/sev", "anon_inode:[sev", "anon_inode:[tdx")


def is_qemu(process: OtherProcess) -> bool:
    """Return whether a process is a QEMU system emulator, by its file's name or its first
    argument.
    """
    names = (process.program, (process.arguments or [""])[0].rpartition("/")[2])
    return any(name.startswith(_PROGRAMS) for name in names if name)


def candidates() -> list[int]:
    """Return the process ids of this user's QEMU system emulators."""
    pids = []
    for pid in process_ids():
        try:
            process = OtherProcess(pid)
            if process.owner == os.geteuid() and is_qemu(process):
                pids.append(pid)
        except TargetError:
            continue  # it has ended meanwhile
    return pids


def the_only_one(program: str) -> int:
    """Return the process id of the QEMU that "auto" means.

    If there are several QEMUs, those that have a stub or a monitor are preferred; guests of another
    kinst have neither. If several are left, those that run `program` are preferred. Raises
    TargetError, with a list, if several are still left.

    Args:
        program: the emulator for the kernel's ISA.
    """
    pids = candidates()
    if len(pids) > 1:
        pids = [pid for pid in pids if _can_be_reached(pid)] or pids
    if len(pids) > 1:
        pids = [pid for pid in pids if not _is_other(_program_of(pid), program)] or pids
    if not pids:
        raise TargetError("no QEMU of this user's runs here", "start one, or name its process")
    if len(pids) > 1:
        shown = ", ".join(f"{pid} ({_name(pid)})" for pid in pids)
        raise TargetError(f"{len(pids)} QEMUs run here: {shown}", "--attach PID chooses one")
    return pids[0]


def _can_be_reached(pid: int) -> bool:
    """Return whether a QEMU's command line has a GDB stub or a monitor to connect to."""
    try:
        arguments = OtherProcess(pid).arguments
    except TargetError:
        return False  # it has ended meanwhile
    return bool(stub_of(arguments, "/") or monitor_of(arguments, "/"))


def _program_of(pid: int) -> str:
    """Return the file name of a process's program; "" if the process has ended."""
    try:
        return OtherProcess(pid).program
    except TargetError:
        return ""


def _name(pid: int) -> str:
    """Return a QEMU's name (-name), or else its program, for a list."""
    try:
        process = OtherProcess(pid)
        names = list(values_of(process.arguments, "-name"))
        return names[0].partition(",")[0].removeprefix("guest=") if names else process.program
    except TargetError:
        return "ended"


def values_of(arguments: Sequence[str], option: str) -> Iterator[str]:
    """Yield the values of an option in QEMU's arguments.

    Args:
        option: the option with one dash; QEMU accepts two dashes as well.
    """
    for word, value in zip(arguments, (*arguments[1:], ""), strict=False):
        if word in (option, f"-{option}"):
            yield value


def listed(value: str) -> tuple[str, dict[str, str]]:
    """Split a value of the form FIRST,KEY=VALUE,... into FIRST and a map of the other values by
    key.

    A comma within a value is written twice.
    """
    parts = value.replace(",,", "\0").split(",")
    pairs = (part.replace("\0", ",").partition("=") for part in parts)
    first, *rest = ((key, text) for key, _, text in pairs)
    return (f"{first[0]}={first[1]}" if first[1] else first[0]), dict(rest)


def stub_of(arguments: Sequence[str], folder: str) -> str:
    """Return the address of the GDB stub in a QEMU's arguments, as connect() takes it; "" if none.

    Args:
        folder: the process's working folder, to which paths are relative.
    """
    address = "tcp::1234" if {"-s", "--s"} & set(arguments) else ""
    for value in values_of(arguments, "-gdb"):
        address = value
    return _address(address, arguments, folder)


def _address(value: str, arguments: Sequence[str], folder: str) -> str:
    """Return the address on which a character device of QEMU listens, as connect() takes it.

    "" if the device does not listen.

    Args:
        value: tcp:HOST:PORT,..., unix:PATH,... or chardev:ID.
        folder: the process's working folder, to which paths are relative.
    """
    first, _ = listed(value)
    kind, _, where = first.partition(":")
    if kind == "unix":
        return os.path.join(folder, where)
    if kind == "tcp":
        host, _, port = where.rpartition(":")
        return f"{_reachable(host)}:{port}"
    name = where if kind == "chardev" else ""
    for device in values_of(arguments, "-chardev") if name else ():
        backend, settings = listed(device)
        if backend == "socket" and settings.get("id") == name:
            if "path" in settings:
                return os.path.join(folder, settings["path"])
            if "fd" in settings:
                return ""  # connected already
            return f"{_reachable(settings.get('host', ''))}:{settings.get('port', '')}"
    return ""


def _reachable(host: str) -> str:
    """Return the host to connect to for a socket that listens on `host`.

    For a socket that listens on all addresses, that is the loopback address.
    """
    return "127.0.0.1" if host in ("", "0.0.0.0", "*", "::", "[::]") else host


def monitor_of(arguments: Sequence[str], folder: str) -> str:
    """Return the path of the QMP socket in a QEMU's arguments; "" if they name no such socket.

    Args:
        folder: the process's working folder, to which paths are relative.
    """
    for value in values_of(arguments, "-qmp"):
        first, _ = listed(value)
        if first.startswith("unix:"):
            return os.path.join(folder, first.removeprefix("unix:"))
    for value in values_of(arguments, "-mon"):
        first, rest = listed(value)
        name = rest.get("chardev", first.removeprefix("chardev=").removeprefix("chardev:"))
        if rest.get("mode") == "control":
            address = _address(f"chardev:{name}", arguments, folder)
            if "/" in address:
                return address
    return ""


def _is_other(ran: str, program: str) -> bool:
    """Return whether a QEMU emulates a different ISA than the emulator `program` does.

    Args:
        ran: file name of the QEMU's own program, for example qemu-system-x86_64.
    """
    if not ran.startswith("qemu-system-"):
        return False
    return ran != program and not ran.startswith(f"{program}-")


def check(process: OtherProcess, program: str) -> None:
    """Raise TargetError if kinst cannot attach to a process.

    Args:
        program: the emulator for the kernel's ISA.
    """
    pid = process.pid
    if not is_qemu(process):
        name = process.program or "a process whose program cannot be read"
        raise TargetError(f"process {pid} is {name}, not QEMU", "--attach auto finds it")
    ran = process.program
    if _is_other(ran, program):
        raise TargetError(
            f"process {pid} is {ran}, and the kernel's file is for {program}",
            "give the vmlinux of the kernel that runs there",
        )
    if process.owner != os.geteuid() and os.geteuid() != 0:
        raise TargetError(
            f"process {pid} belongs to another user", "run kinst as that user, or as root"
        )
    if other := process.tracer:
        raise TargetError(f"process {pid} is traced by process {other}", "end that first")
    _check_memory(process)


def _check_memory(process: OtherProcess) -> None:
    """Raise TargetError if kinst cannot use the memory of a guest: it cannot read the memory, or it
    cannot replace parts of it in QEMU's address space."""
    pid, files = process.pid, process.descriptors().values()
    if any(name.startswith(_DEVICES) for name in files):
        raise TargetError(
            f"process {pid} gives its guest a device of the host (VFIO or vDPA), which would write"
            " to pages that kinst has replaced",
            "start the guest without the device",
        )
    objects = {listed(value)[0] for value in values_of(process.arguments, "-object")}
    if objects & {*_ENCRYPTING} or any(name.startswith(_ENCRYPTED) for name in files):
        raise encryption_error(pid)
    for mapping in process.mappings():
        if mapping.size >= LEAST and "rw" in mapping.rights:
            page = process.page_size(mapping)
            if page > LEAF_SIZE:
                raise TargetError(
                    f"the RAM of process {pid} is in pages of {page >> 20} MB, of which kinst can"
                    " replace no part",
                    "give the guest pages of 2 MB, or ordinary ones",
                )


def encryption_error(pid: int) -> TargetError:
    """Return the error for a QEMU whose guest's RAM is encrypted."""
    return TargetError(
        f"the memory of the guest of process {pid} is encrypted (SEV or TDX)",
        "trace it from inside (--live)",
    )


def hardware_breakpoints(process: OtherProcess, isa: Isa) -> int:
    """Return how many hardware breakpoints kinst uses in the guest of a QEMU: 0 except under
    KVM.
    """
    under_kvm = _KVM in process.descriptors().values()
    return isa.board.HARDWARE_BREAKPOINTS if under_kvm else 0


def wait_running(process: OtherProcess) -> None:
    """Wait until a CPU of the guest has run.  Raises TargetError if none runs within 3 seconds."""
    before, deadline = process.busy(), time.monotonic() + _RUNS_WITHIN
    pause = 0.001
    while process.busy() == before:
        if time.monotonic() > deadline:
            raise TargetError(
                f"the guest of process {process.pid} does not run: it is paused, or has ended",
                "let it run (`cont` in QEMU's monitor) and try again",
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
