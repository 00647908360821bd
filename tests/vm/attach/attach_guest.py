"""A guest that kinst did not start: a plain QEMU command line, a shell on the console, a GDB
stub."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kinst.kernels.fetch import Prepared
from kinst.kernels.kmod import resolve
from kinst.systems.linux.guest.initramfs import build
from tests import second_boot

INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
mount -t proc proc /proc
stty -F /dev/CONSOLE -echo
while true; do setsid sh </dev/CONSOLE >/dev/CONSOLE 2>&1; sleep 1; done
"""

# For a guest with a disk: the same steps as the initramfs of distributions.
DISK_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
for m in /lib/kinst/*; do /bin/busybox insmod $m; done
while ! [ -e /dev/vda ]; do /bin/busybox sleep 0.1; done
/bin/busybox mkdir -p /new
/bin/busybox mount -t ext4 /dev/vda /new
/bin/busybox cp /bin/reads /bin/rounds /bin/moments /new/usr/bin
exec /bin/busybox switch_root /new /sbin/init
"""
DISK_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")


@dataclass(frozen=True)
class Line:
    """A machine type of QEMU, and the guest's name of the first serial port."""

    command: str
    console: str


LINES = {
    "pc": Line("qemu-system-x86_64 -machine pc", "ttyS0"),
    "q35": Line("qemu-system-x86_64 -machine q35", "ttyS0"),
    "arm64": Line("qemu-system-aarch64 -machine virt -cpu cortex-a57", "ttyAMA0"),
    "riscv64": Line("qemu-system-riscv64 -machine virt", "ttyS0"),
}


class AttachGuest:
    """A running guest.

    Attributes:
        pid: of QEMU.
        debug: the vmlinux of its kernel.
    """

    def __init__(self, pid: int, folder: Path, debug: Path) -> None:
        self.pid = pid
        self.debug = debug
        self.stub = folder / "gdb"
        self.monitor = folder / "qmp"
        self._log = folder / "log"
        self._shell = socket.socket(socket.AF_UNIX)
        self._shell.connect(str(folder / "console"))
        self._marks = 0
        self._shell.sendall(b"stty -echo; exec env PS1= PS2= sh\n")
        self.run("true")  # QEMU has taken the connection, which is a separate descriptor

    def run(self, command: str, seconds: float = 240.0) -> str:
        """Return the output of a command in the guest's shell."""
        self._marks += 1
        mark = f"mark{self._marks}."
        self._shell.settimeout(seconds)
        self._shell.sendall(f"{command}; echo ma''{mark[2:]}\n".encode())
        heard = b""
        while f"{mark}\r\n".encode() not in heard:
            try:
                more = self._shell.recv(1 << 16)
            except TimeoutError:
                raise AssertionError(
                    f"{command!r} has said nothing for {seconds:g} s; the console so far:\n"
                    + self._log.read_text(errors="replace")[-2000:]
                ) from None
            assert more, f"QEMU ended during {command!r}"
            heard += more
        text = heard.decode(errors="replace").replace("\r", "")
        lines = text[: text.index(f"{mark}\n")].splitlines()
        return "\n".join(line for line in lines if "ma''rk" not in line).strip()

    def begin(self, command: str) -> None:
        """Start a command in the guest's shell that may end the guest."""
        self._shell.sendall(f"{command}\n".encode())

    def free(self) -> int:
        """Return the kilobytes that the kernel reports as free."""
        fields = dict(line.split(":") for line in self.run("cat /proc/meminfo").splitlines())
        return int(fields["MemFree"].split()[0])

    def close(self) -> None:
        self._shell.close()


@contextmanager
def attach_guest(
    kind: str,
    prepared: Prepared,
    programs: Path | Sequence[Path],
    folder: Path,
    more: Sequence[str] = (),
    disk: Path | None = None,
) -> Iterator[AttachGuest]:
    """Run a guest of a kind (LINES) while the context lasts.

    Args:
        programs: for its /bin.
        more: arguments of QEMU; if they have neither a stub nor a monitor, a stub on a unix socket
            is added.
        disk: an image with its root file system (debian_root.py), which is not changed.
    """
    line = LINES[kind]
    files = [programs] if isinstance(programs, Path) else programs
    init = folder / "init"
    init.write_text(DISK_INIT if disk else INIT.replace("CONSOLE", line.console))
    init.chmod(0o755)
    initrd = folder / "initrd"
    modules = resolve(prepared.modules, DISK_MODULES, absent=True) if disk else []
    copies = {f"/bin/{path.name}": path for path in files}
    initrd.write_bytes(build(prepared.busybox, {"/e2e-init": init, **copies}, modules))
    argv = f"""{line.command} -nodefaults -display none -no-reboot -m {1024 if disk else 512} -smp 2
        -chardev socket,id=con,path={folder}/console,server=on,wait=off,logfile={folder}/log
        -serial chardev:con -kernel {prepared.kernel} -initrd {initrd}""".split()
    argv += ["-append", f"console={line.console} quiet rdinit=/e2e-init no_timer_check"]
    argv += more or ["-gdb", f"unix:{folder}/gdb,server=on,wait=off"]
    if disk:
        argv += ["-drive", f"file={disk},if=virtio,format=raw,snapshot=on"]
    up = "root@debian" if disk else "Enter 'help'"

    def start() -> subprocess.Popen[bytes]:
        for name in ("console", "gdb", "qmp", "log"):
            (folder / name).unlink(missing_ok=True)
        return subprocess.Popen(argv)

    def comes_up(child: subprocess.Popen[bytes], seconds: float) -> bool:
        log, end = folder / "log", time.monotonic() + seconds
        while time.monotonic() < end:
            assert child.poll() is None, "QEMU ended"
            if log.exists() and up in log.read_text(errors="replace"):
                return True
            time.sleep(0.1)
        return False

    child = second_boot.booted(start, comes_up, _end)
    guest = AttachGuest(child.pid, folder, prepared.debug)
    try:
        yield guest
        assert child.poll() is None, "QEMU ended"
    finally:
        guest.close()
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def guardians(mark: str) -> list[int]:
    """Return the remaining processes of a run of kinst (command.Running): its guardian outlives
    it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environment:
                found.append(int(folder.name))
    return found


def wait_undone(mark: str, seconds: float = 120.0) -> None:
    """Wait until the guardian of a run has ended."""
    end = time.monotonic() + seconds
    while guardians(mark):
        assert time.monotonic() < end, f"a guardian is left: {guardians(mark)}"
        time.sleep(0.05)
