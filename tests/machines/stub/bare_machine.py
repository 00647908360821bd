"""A riscv64 machine of two CPUs in QEMU without a kernel: each counts in a loop, as QMP shows."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60.0
START = 0x8000_0000
# Each CPU counts in a register and stores that in its own word.
PROGRAM = """
.globl _start
_start: csrr t1, mhartid
        slli t1, t1, 3
        la t2, counts
        add t2, t2, t1
        li t0, 0
.globl round
round:  addi t0, t0, 1
        sd t0, 0(t2)
        j round
.balign 8
.globl counts
counts: .dword 0, 0
"""


class BareMachine:
    """A QEMU that kinst has not started.

    Attributes:
        pid: its process.
        stub: path of its GDB stub's socket.
        symbols: addresses of the program's labels.
    """

    def __init__(self, pid: int, folder: Path, symbols: dict[str, int]) -> None:
        self.pid, self.stub, self.symbols = pid, folder / "gdb", symbols
        self._qmp = socket.socket(socket.AF_UNIX)
        self._qmp.settimeout(SECONDS)
        end = time.monotonic() + SECONDS
        while self._qmp.connect_ex(str(folder / "qmp")) and time.monotonic() < end:
            time.sleep(0.01)
        self._stream = self._qmp.makefile("rwb")
        self._stream.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the monitor's answer."""
        self._stream.write(json.dumps({"execute": command, "arguments": arguments}).encode())
        self._stream.flush()
        while "return" not in (answer := json.loads(self._stream.readline())):
            assert "error" not in answer, answer
        return answer["return"]

    @property
    def status(self) -> str:
        """Return QEMU's word for whether the machine runs."""
        return str(self.ask("query-status")["status"])

    def counts(self) -> list[int]:
        """Return both CPUs' counts."""
        line = f"xp /2gx {self.symbols['counts']:#x}"
        words = self.ask("human-monitor-command", **{"command-line": line}).split()
        return [int(word, 16) for word in words if word.startswith("0x")]

    def counts_on(self) -> list[bool]:
        """Return for each CPU whether it counts on from now."""
        before, end = self.counts(), time.monotonic() + SECONDS
        while True:
            found = [now > was for now, was in zip(self.counts(), before, strict=True)]
            if all(found) or time.monotonic() > end:
                return found
            time.sleep(0.01)


def compiled(folder: Path) -> tuple[Path, dict[str, int]]:
    """Return the program as an ELF file, and its labels by nm(1)."""
    (folder / "bare.S").write_text(PROGRAM)
    flags = ["-nostdlib", "-static", "-march=rv64imac_zicsr", "-mabi=lp64", "-mcmodel=medany"]
    command = ["riscv64-linux-gnu-gcc", *flags, f"-Wl,-Ttext={START:#x},--build-id=none"]
    subprocess.run([*command, "-o", folder / "bare", folder / "bare.S"], check=True)
    listed = subprocess.run(["nm", folder / "bare"], capture_output=True, text=True, check=True)
    lines = (line.split() for line in listed.stdout.splitlines())
    return folder / "bare", {name: int(at, 16) for at, _, name in lines}


@contextmanager
def bare_machine(folder: Path, arguments: Sequence[str] = ()) -> Iterator[BareMachine]:
    """Run a machine that counts while the context lasts; the stub has had no client yet."""
    program, symbols = compiled(folder)
    command = ["qemu-system-riscv64", "-nodefaults", "-display", "none", "-machine", "virt"]
    command += ["-smp", "2", "-m", "64", "-bios", str(program), *arguments]
    for option in ("gdb", "qmp"):
        command += [f"-{option}", f"unix:{folder}/{option},server=on,wait=off"]
    process = subprocess.Popen(command)
    try:
        machine = BareMachine(process.pid, folder, symbols)
        assert machine.counts_on() == [True, True]
        yield machine
    finally:
        process.kill()
        process.wait()
