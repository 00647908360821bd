"""A guest that gdb debugs without kinst, to measure the cost of a breakpoint through QEMU's GDB
stub.

The guest has the kernel that kinst boots, and this benchmark's own initial RAM disk, whose first
program waits for a command on the second serial port and runs it.
"""

from __future__ import annotations

import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import kinst
from kinst import KinstError

SECONDS = 60.0
INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo ready
read -r command
sh -c "$command"
echo ended
poweroff -f
"""


def measure_gdb(copies: Sequence[str], function: str, offset: int, command: str) -> dict[str, str]:
    """Return the output of a command in the guest for two kinds of breakpoints of gdb: one that is
    ignored, and one that runs gdb commands.

    Args:
        copies: programs for the guest.
        function: function of the breakpoint.
        offset: offset of the breakpoint in the function.
        command: shell command of the guest.

    Raises:
        KinstError: the guest or gdb failed.
    """
    ways = {
        "gdb breakpoint, ignored": ["ignore 1 1000000000"],
        "gdb breakpoint, commands": ["commands 1\nsilent\nset $n = $n + 1\ncontinue\nend"],
    }
    return {name: _one(copies, function, offset, command, script) for name, script in ways.items()}


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a cpio archive of files. Source:
    Documentation/driver-api/early-userspace/buffer-format.rst of Linux ("newc")."""
    out = bytearray()

    def add(name: str, mode: int, data: bytes) -> None:
        fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out.extend(b"070701" + b"".join(b"%08x" % field for field in fields))
        for part in (name.encode() + b"\0", data):
            out.extend(part)
            out.extend(bytes(-len(out) % 4))

    for folder in ("bin", "dev", "proc"):
        add(folder, 0o040755, b"")
    for name, data in files.items():
        add(name, 0o100755, data)
    add("TRAILER!!!", 0, b"")
    return bytes(out)


def _one(
    copies: Sequence[str], function: str, offset: int, command: str, script: Sequence[str]
) -> str:
    files = kinst.kernel_files()
    assert files.kernel is not None and files.busybox is not None
    contents = {f"bin/{Path(copy).name}": Path(copy).read_bytes() for copy in copies}
    contents |= {"bin/busybox": files.busybox.read_bytes(), "init": INIT.encode()}
    with tempfile.TemporaryDirectory() as folder:
        initrd, stub = Path(folder, "initrd"), Path(folder, "gdb")
        initrd.write_bytes(archive(contents))
        argv = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
            "-machine", "q35,accel=tcg", "-m", "1G", "-smp", "2", "-no-reboot",
            "-kernel", str(files.kernel), "-initrd", str(initrd),
            "-append", "nokaslr quiet panic=-1", "-serial", "null", "-serial", "stdio",
            "-gdb", f"unix:{stub},server=on,wait=off",
        ]  # fmt: skip
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as qemu:
            try:
                assert qemu.stdin is not None and qemu.stdout is not None
                _until(qemu.stdout, b"ready\n", "the guest has not booted")
                lines = [f"file {files.debug}", f"break *(&{function} + {offset})", *script]
                with _Debugger(stub, Path(folder, "script"), lines):
                    qemu.stdin.write(command.encode() + b"\n")
                    qemu.stdin.flush()
                    return _until(qemu.stdout, b"ended\n", "the command has not ended")
            finally:
                qemu.kill()


class _Debugger:
    """A gdb that is connected to the stub and has run its script, while the machine runs."""

    def __init__(self, stub: Path, file: Path, lines: Sequence[str]) -> None:
        setting = [
            "set pagination off", "set confirm off", "set architecture i386:x86-64", "set $n = 0",
            f"target remote {stub}", *lines, "echo ready\\n", "continue",
        ]  # fmt: skip
        file.write_text("\n".join(setting) + "\n")
        self._argv = ["gdb", "-q", "-nx", "-batch", "-x", str(file)]

    def __enter__(self) -> None:
        try:
            self._gdb = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise KinstError("gdb is not installed", "apt-get install gdb") from error
        assert self._gdb.stdout is not None
        _until(self._gdb.stdout, b"ready\n", "gdb does not get going")
        time.sleep(0.2)  # let gdb resume the machine

    def __exit__(self, *_: object) -> None:
        self._gdb.kill()
        self._gdb.wait()


def _until(stream: IO[bytes], end: bytes, late: str) -> str:
    """Return the output of a program before the text `end`. Raises KinstError with the message
    `late` if `end` does not come in time."""
    said = b""
    deadline = time.monotonic() + SECONDS
    while end not in said:
        left = deadline - time.monotonic()
        ready = select.select([stream], [], [], max(left, 0))[0]
        data = stream.read1(4096) if ready else b""  # type: ignore[attr-defined]
        if not data:
            raise KinstError(f"{late}: {said.decode(errors='replace')}")
        said += data
    return said.partition(end)[0].decode("utf-8", "replace")
