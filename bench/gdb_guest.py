"""A guest that gdb debugs, and kinst does not: what a breakpoint costs through QEMU's stub."""

from __future__ import annotations

import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.image.elf import open_elf
from kinst.machines.vm import initramfs
from kinst.machines.vm.qemu import Qemu, VmConfig
from kinst.session.target import find_files, isa_of
from kinst.session.values import Request

SECONDS = 60.0
# gdb talks to a program's standard streams; these two carry them to QEMU's socket.
_BRIDGE = "cat <&{0} & exec cat >&{0}"


def measure_gdb(copies: Sequence[str], function: str, offset: int, command: str) -> dict[str, str]:
    """What `command` printed in the guest with a breakpoint that is ignored, and with one that
    runs commands; by name.  Raises KinstError."""
    ways = {
        "gdb breakpoint, ignored": ["ignore 1 1000000000"],
        "gdb breakpoint, commands": ["commands 1\nsilent\nset $n = $n + 1\ncontinue\nend"],
    }
    return {name: _one(copies, function, offset, command, script) for name, script in ways.items()}


def _one(
    copies: Sequence[str], function: str, offset: int, command: str, script: Sequence[str]
) -> str:
    isa = isa_of(Request())
    files = find_files(Request(), lambda *_: None)
    address = open_elf(files.debug).address(function)
    if address is None or files.kernel is None or files.busybox is None:
        raise KinstError(f"{files.debug} has no {function}")
    archive = initramfs.build(files.busybox, {f"/bin/{Path(c).name}": Path(c) for c in copies})
    output = bytearray()
    config = VmConfig(kernel=files.kernel, initrd=archive, append="nokaslr")
    qemu = Qemu(config, isa.board, output.extend)
    try:
        qemu.wait_for(lambda: qemu.control_line("ready") is not None, SECONDS, "booted")
        qemu.send_control(f"prepare {command.encode().hex()}")
        qemu.wait_for(lambda: qemu.control_line("pid") is not None, SECONDS, "prepared")
        return _debugged(qemu, output, [f"break *{address + offset:#x}", *script])
    finally:
        qemu.close()


def _debugged(qemu: Qemu, output: bytearray, script: Sequence[str]) -> str:
    """Run the prepared command under gdb; its output."""
    bridge = _BRIDGE.format(qemu.gdb.fileno())
    lines = [
        "set pagination off", "set confirm off", "set architecture i386:x86-64", "set $n = 0",
        f"target remote | exec bash -c '{bridge}'", *script, "echo ready\\n", "continue",
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        return _run_gdb(qemu, output, file.name)


def _run_gdb(qemu: Qemu, output: bytearray, script: str) -> str:
    try:
        gdb = subprocess.Popen(
            ["gdb", "-q", "-nx", "-batch", "-x", script], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[qemu.gdb.fileno()],
        )  # fmt: skip
    except FileNotFoundError as error:
        raise KinstError("gdb is not installed", "apt-get install gdb") from error
    try:
        assert gdb.stdout is not None
        said = b""
        deadline = time.monotonic() + SECONDS
        while b"ready\n" not in said:
            left = deadline - time.monotonic()
            if not select.select([gdb.stdout], [], [], max(left, 0))[0]:
                raise KinstError(f"gdb does not get going: {said.decode(errors='replace')}")
            data = gdb.stdout.read1(4096)  # type: ignore[attr-defined]
            if not data:
                raise KinstError(f"gdb ended: {said.decode(errors='replace')}")
            said += data
        time.sleep(0.2)  # it continues
        qemu.send_control("go")
        qemu.wait_for(lambda: qemu.command_ended() is not None, SECONDS, "ended the command")
    finally:
        gdb.kill()
        gdb.wait()
    return output.decode("utf-8", "replace")
