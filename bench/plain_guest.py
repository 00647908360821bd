"""A guest that kinst has not started, to attach to.

It has a plain QEMU command line with a GDB stub, a shell on the console, and a monitor that reports
when the guest is stopped.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.gdb_guest import archive
from kinst import KinstError, kernel_files

BOOT_SECONDS = 240.0
COMMAND_SECONDS = 240.0
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
exec </dev/CONSOLE >/dev/CONSOLE 2>&1
stty raw -echo
echo is up
while read -r line; do sh -c "$line"; echo is done; done
"""


@dataclass(frozen=True)
class Line:
    """Parts of the QEMU command line for an ISA.

    Attributes:
        command: QEMU, machine and CPU, as for kinst's own guests.
        console: the guest's name for its first serial port.
        parameters: kernel parameters that change the guest's speed.
    """

    command: str
    console: str
    parameters: str = ""


LINES = {
    "amd64": Line("qemu-system-x86_64 -machine q35", "ttyS0", "tsc=reliable no_timer_check"),
    "arm64": Line("qemu-system-aarch64 -machine virt -cpu cortex-a57", "ttyAMA0", "kpti=off"),
    "riscv64": Line("qemu-system-riscv64 -machine virt", "ttyS0"),
}


class PlainGuest:
    """A guest that kinst has not started, with the kernel, machine and CPU of kinst's own guests.

    Attributes:
        pid: process id of QEMU.
        debug: vmlinux of the guest's kernel.
    """

    def __init__(self, programs: Sequence[str], isa: str = "amd64", append: str = "") -> None:
        """Boot the guest. Raises KinstError if it does not come up.

        Args:
            programs: files for the guest's /bin.
            isa: name of the guest's instruction set.
            append: text to append to the kernel's command line.
        """
        line, files = LINES[isa], kernel_files(isa)
        assert files.kernel is not None and files.busybox is not None
        self.debug = files.debug
        self._folder = tempfile.TemporaryDirectory(prefix="kinst-bench-")
        here = Path(self._folder.name)
        contents = {f"bin/{Path(path).name}": Path(path).read_bytes() for path in programs}
        contents["bin/busybox"] = files.busybox.read_bytes()
        contents["init"] = _INIT.replace("CONSOLE", line.console).encode()
        (here / "initrd").write_bytes(archive(contents))
        self._console, console = socket.socketpair()
        self._watch, watch = socket.socketpair()
        append = f"console={line.console} quiet {line.parameters} {append}"
        argv = [
            *line.command.split(), "-nodefaults", "-display", "none", "-no-reboot", "-m", "1G",
            "-smp", "2", "-kernel", str(files.kernel), "-initrd", f"{here}/initrd",
            "-append", append,
            "-chardev", f"socket,id=console,fd={console.fileno()}", "-serial", "chardev:console",
            "-chardev", f"socket,id=watch,fd={watch.fileno()}", "-mon", "watch,mode=control",
            "-gdb", f"unix:{here}/gdb,server=on,wait=off",
        ]  # fmt: skip
        self._qemu = subprocess.Popen(argv, pass_fds=(console.fileno(), watch.fileno()))
        console.close()
        watch.close()
        self.pid = self._qemu.pid
        self.stops = Stops(self._watch)
        try:
            self._until(b"is up", BOOT_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, command: str) -> None:
        """Start a shell command in the guest; wait() returns its output."""
        self._console.sendall(command.encode() + b"\n")

    def wait(self) -> str:
        return self._until(b"is done", COMMAND_SECONDS)

    def run(self, command: str) -> str:
        """Run a shell command in the guest, and return its output. Raises KinstError if it does not
        end."""
        self.start(command)
        return self.wait()

    def _until(self, end: bytes, seconds: float) -> str:
        deadline, heard = time.monotonic() + seconds, b""
        while end not in heard:
            self._console.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                part = self._console.recv(1 << 16)
            except TimeoutError:
                part = b""
            if not part:
                raise KinstError(f"the plain guest is silent: {heard[-400:]!r}")
            heard += part
        return heard.decode("utf-8", "replace")

    def close(self) -> None:
        self._qemu.kill()
        self._qemu.wait()
        for sock in (self._console, self._watch):
            sock.close()
        self._folder.cleanup()


class Stops:
    """Recorder of the times at which a machine was stopped (QMP events STOP and RESUME)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._stopped = 0.0
        self._stood: list[tuple[float, float]] = []
        sock.sendall(b'{"execute": "qmp_capabilities"}\n')
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._sock.makefile():
            event = json.loads(line)
            stamp = event.get("timestamp", {})
            at = stamp.get("seconds", 0) + stamp.get("microseconds", 0) / 1e6
            with self._lock:
                if event.get("event") == "STOP":
                    self._stopped = at
                elif event.get("event") == "RESUME":
                    self._stood.append((self._stopped, at))

    def take(self) -> list[tuple[float, float]]:
        """Return (start, end) of each stop since the last call, as values of time.time()."""
        with self._lock:
            found, self._stood = self._stood, []
        return found
