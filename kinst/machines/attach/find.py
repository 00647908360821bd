"""Which process a virtual machine is, and where its GDB stub listens.

Source: QEMU's manual, "Invocation": -gdb, -s, -qmp, -chardev, -mon.

Tested by tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from kinst.core.errors import TargetError
from kinst.wire.other_process import OtherProcess, process_ids

_PROGRAMS = ("qemu-system-", "qemu-kvm", "kvm")
_RUNS_WITHIN = 3.0  # seconds in which a running machine's CPUs do something
AUTO = "auto"
_KVM = "anon_inode:kvm-vm"  # of KVM_CREATE_VM (virt/kvm/kvm_main.c)


def is_qemu(process: OtherProcess) -> bool:
    """Whether it is a system emulator, by its file's name or by what it was called as."""
    names = (process.program, (process.arguments or [""])[0].rpartition("/")[2])
    return any(name.startswith(_PROGRAMS) for name in names if name)


def candidates() -> list[int]:
    """Ids of this user's processes that are system emulators."""
    found = []
    for pid in process_ids():
        try:
            process = OtherProcess(pid)
            if process.owner == os.geteuid() and is_qemu(process):
                found.append(pid)
        except TargetError:
            continue  # it has ended meanwhile
    return found


def the_only_one(program: str) -> int:
    """The one that `auto` means: among several, one that can be reached, which guests of another
    kinst's cannot, and that is `program`, the emulator of the kernel's instruction set.  Raises
    TargetError that lists them where there are several."""
    found = candidates()
    if len(found) > 1:
        found = [pid for pid in found if _can_be_reached(pid)] or found
    if len(found) > 1:
        found = [pid for pid in found if not _is_other(_ran(pid), program)] or found
    if not found:
        raise TargetError("no QEMU of this user's runs here", "start one, or name its process")
    if len(found) > 1:
        shown = ", ".join(f"{pid} ({_name(pid)})" for pid in found)
        raise TargetError(f"there are {len(found)} machines: {shown}", "--attach PID")
    return found[0]


def _can_be_reached(pid: int) -> bool:
    """Whether a machine's command line names a stub or a monitor for anybody to connect to."""
    try:
        arguments = OtherProcess(pid).arguments
    except TargetError:
        return False  # it has ended meanwhile
    return bool(stub_of(arguments, "/") or monitor_of(arguments, "/"))


def _ran(pid: int) -> str:
    """The file name of a process' program; "" for one that has ended meanwhile."""
    try:
        return OtherProcess(pid).program
    except TargetError:
        return ""


def _name(pid: int) -> str:
    """-name of the machine, or its program."""
    try:
        process = OtherProcess(pid)
        names = list(values_of(process.arguments, "-name"))
        return names[0].partition(",")[0].removeprefix("guest=") if names else process.program
    except TargetError:
        return "ended"


def values_of(arguments: Sequence[str], option: str) -> Iterator[str]:
    """The values of an option of QEMU's, which takes it with one dash or two."""
    for word, value in zip(arguments, (*arguments[1:], ""), strict=False):
        if word in (option, f"-{option}"):
            yield value


def listed(value: str) -> tuple[str, dict[str, str]]:
    """(what comes first, the rest by key) of QEMU's first,key=value,...; a comma is doubled."""
    parts = value.replace(",,", "\0").split(",")
    pairs = (part.replace("\0", ",").partition("=") for part in parts)
    first, *rest = ((key, text) for key, _, text in pairs)
    return (f"{first[0]}={first[1]}" if first[1] else first[0]), dict(rest)


def stub_of(arguments: Sequence[str], folder: str) -> str:
    """Where the GDB stub of a command line listens, as connect() takes it, or "".

    folder: that the process was started in, for relative paths."""
    found = "tcp::1234" if {"-s", "--s"} & set(arguments) else ""
    for value in values_of(arguments, "-gdb"):
        found = value
    return _address(found, arguments, folder)


def _address(value: str, arguments: Sequence[str], folder: str) -> str:
    """Of a character device that listens: tcp:HOST:PORT,..., unix:PATH,..., chardev:ID."""
    first, _ = listed(value)
    kind, _, where = first.partition(":")
    if kind == "unix":
        return os.path.join(folder, where)
    if kind == "tcp":
        host, _, port = where.rpartition(":")
        return f"{_reachable(host)}:{port}"
    name = where if kind == "chardev" else ""
    for one in values_of(arguments, "-chardev") if name else ():
        backend, given = listed(one)
        if backend == "socket" and given.get("id") == name:
            if "path" in given:
                return os.path.join(folder, given["path"])
            if "fd" in given:
                return ""  # connected already
            return f"{_reachable(given.get('host', ''))}:{given.get('port', '')}"
    return ""


def _reachable(host: str) -> str:
    """What listens on every address does on this machine's own."""
    return "127.0.0.1" if host in ("", "0.0.0.0", "*", "::", "[::]") else host


def monitor_of(arguments: Sequence[str], folder: str) -> str:
    """The path of a QMP socket of a command line, or ""."""
    for value in values_of(arguments, "-qmp"):
        first, _ = listed(value)
        if first.startswith("unix:"):
            return os.path.join(folder, first.removeprefix("unix:"))
    for value in values_of(arguments, "-mon"):
        first, rest = listed(value)
        name = rest.get("chardev", first.removeprefix("chardev=").removeprefix("chardev:"))
        if rest.get("mode") == "control":
            found = _address(f"chardev:{name}", arguments, folder)
            if "/" in found:
                return found
    return ""


def _is_other(ran: str, program: str) -> bool:
    """Whether a program emulates another instruction set than `program` does."""
    if not ran.startswith("qemu-system-"):
        return False
    return ran != program and not ran.startswith(f"{program}-")


def check(process: OtherProcess, program: str) -> None:
    """Raises TargetError for a process that is no machine that kinst can attach to.

    program: the emulator of the kernel's instruction set."""
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
    if _KVM in process.descriptors().values():
        raise no_kvm(pid)


def no_kvm(pid: int) -> TargetError:
    """Why the machine of a process cannot be traced where KVM runs it."""
    return TargetError(
        f"process {pid} runs its guest with KVM, where code cannot be changed from outside",
        "start it with -accel tcg, or let kinst boot the kernel (--kernel)",
    )


def wait_running(process: OtherProcess) -> None:
    """Return as soon as a CPU of the machine has run.  Raises TargetError where none does."""
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
