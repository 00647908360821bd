"""A guest that kinst did not start, reached through QEMU's GDB stub."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kinst.kernels.fetch import Prepared
from kinst.systems.linux.guest.initramfs import build
from tests import second_boot

# The commands of a round, by default: 10 reads.
READS = "reads 10 >/dev/null"
# The guest's init: after each sleep it runs some commands and reports them on the console.
INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
mount -t proc proc /proc
n=0
while true; do
    COMMANDS
    n=$((n + 1))
    echo "round $n" >/dev/CONSOLE
    sleep 0.2
done
"""


@dataclass(frozen=True)
class Machine:
    """A machine type of QEMU, and the guest's name of the first serial port."""

    command: str
    console: str


MACHINES = {
    "amd64": Machine("qemu-system-x86_64 -machine q35", "ttyS0"),
    "arm64": Machine("qemu-system-aarch64 -machine virt -cpu cortex-a57", "ttyAMA0"),
    "riscv64": Machine("qemu-system-riscv64 -machine virt", "ttyS0"),
}


@dataclass
class Stub:
    """A running guest.

    Attributes:
        address: as kinst's --gdb takes it.
    """

    address: str
    console: Path

    def rounds(self) -> int:
        found = re.findall(r"^round (\d+)", self.console.read_text(errors="replace"), re.M)
        return int(found[-1]) if found else 0

    def goes_on(self, seconds: float = 240.0) -> bool:
        """Return whether the guest does some more rounds from now on."""
        until, end = self.rounds() + 3, time.monotonic() + seconds
        while self.rounds() < until and time.monotonic() < end:
            time.sleep(0.1)
        return self.rounds() >= until


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def stub_guest(
    isa: str,
    prepared: Prepared,
    reads: Path,
    folder: Path,
    listen: str,
    commands: str = READS,
    cpus: int = 2,
) -> Iterator[Stub]:
    """Run a guest of the ISA while the context lasts.

    Args:
        listen: unix or tcp.
        commands: the shell commands of a round, with CONSOLE for the console's device.
    """
    machine = MACHINES[isa]
    init = folder / "init"
    init.write_text(INIT.replace("COMMANDS", commands).replace("CONSOLE", machine.console))
    init.chmod(0o755)
    # kinst's own /init is there too, but rdinit= selects ours.
    initrd = folder / "initrd"
    initrd.write_bytes(build(prepared.busybox, {"/e2e-init": init, "/bin/reads": reads}))
    console = folder / "console"
    port = free_port()
    unix = f"{folder}/gdb"
    chosen, address = {
        "unix": (f"unix:{unix},server,nowait", unix),
        "tcp": (f"tcp:127.0.0.1:{port}", f"127.0.0.1:{port}"),
    }[listen]
    argv = f"""{machine.command} -nodefaults -display none -no-reboot -m 512 -smp {cpus}
        -serial file:{console} -gdb {chosen} -kernel {prepared.kernel} -initrd {initrd}""".split()
    # The last is for amd64, whose kernel checks for timer ticks, which a busy host delivers late.
    append = f"console={machine.console} nokaslr panic=-1 rdinit=/e2e-init no_timer_check"
    stub = Stub(address, console)

    def start() -> subprocess.Popen[bytes]:
        for left in (console, Path(unix)):
            left.unlink(missing_ok=True)
        return subprocess.Popen([*argv, "-append", append])

    def comes_up(child: subprocess.Popen[bytes], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (console.exists() and stub.rounds() > 0) and time.monotonic() < end:
            assert child.poll() is None, "QEMU ended"
            time.sleep(0.1)
        return console.exists() and stub.rounds() > 0

    child = second_boot.booted(start, comes_up, _end)
    try:
        yield stub
        assert child.poll() is None
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
