"""Kernels that are not Linux, behind QEMU's GDB stub, for kinst and for gdb in turn."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from tests.vm.command import Result, kinst

SECONDS = 240.0
SOURCES = ROOT / "tests/programs/small_kernel"
# Debug information with places of variables; no unwind tables but .debug_frame.
COMPILER = (
    "riscv64-linux-gnu-gcc -Og -g -march=rv64imac_zicsr -mabi=lp64 -mcmodel=medany -ffreestanding"
    " -fno-pic -fno-stack-protector -fno-asynchronous-unwind-tables -nostdlib -static -no-pie"
    " -Wall -Wextra -Werror -Wl,--build-id=none -Wl,--no-warn-rwx-segments"
)


def make_small_kernel(folder: Path) -> Path:
    """Return the ELF file of tests/programs/small_kernel."""
    file = folder / "small.elf"
    sources = [str(SOURCES / name) for name in ("start.S", "kmain.c")]
    script = f"-Wl,-T,{SOURCES / 'kernel.ld'}"
    subprocess.run([*COMPILER.split(), script, *sources, "-o", str(file)], check=True)
    return file


@dataclass(frozen=True)
class OtherKernel:
    """A kernel.

    Attributes:
        elf: file with symbols.
        qemu: the command that runs it, from reset on the same each time.
        gdb: the debugger for it.
    """

    elf: Path
    qemu: tuple[str, ...]
    gdb: str

    @contextmanager
    def machine(self, folder: Path, stopped: bool) -> Iterator[Path]:
        """Start a machine, stopped at reset or running, and return the path of its stub."""
        stub = folder / "gdb.sock"
        stub.unlink(missing_ok=True)
        waiting = ["-S"] if stopped else []
        listen = ["-gdb", f"unix:{stub},server,nowait"]
        child = subprocess.Popen([*self.qemu, *waiting, *listen], stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + SECONDS
            while not stub.exists():
                assert child.poll() is None and time.monotonic() < end, "QEMU does not start"
                time.sleep(0.02)
            yield stub
        finally:
            child.kill()
            child.wait()

    def kinst(self, folder: Path, *arguments: str, stopped: bool = True) -> Result:
        """Run kinst on a new machine."""
        with self.machine(folder, stopped) as stub:
            options = ("--gdb", str(stub), "--kernel", str(self.elf), *arguments)
            return kinst(*options, boots=False)

    def debug(self, folder: Path, stub: Path, commands: Sequence[str]) -> str:
        """Return gdb's output on a machine; the commands end the machine, or leave it to the
        caller."""
        script = folder / "script.gdb"
        head = ["set pagination off", "set confirm off", f"target remote {stub}"]
        script.write_text("\n".join([*head, *commands, ""]))
        argv = [self.gdb, "-q", "-nx", "-batch", "-x", str(script), str(self.elf)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS)
        return done.stdout

    def ask_gdb(self, folder: Path, commands: Sequence[str]) -> str:
        """Return gdb's output on a new machine that is stopped at reset."""
        with self.machine(folder, True) as stub:
            return self.debug(folder, stub, commands)


# A function of gdb's language: whether all registers are as they were at the last stop.  To
# continue from a breakpoint, gdb steps over it.  If the host is busy, QEMU sometimes reports such a
# step before the instruction has run (Debugger.step_over()).  gdb does not notice, and stops at the
# breakpoint again: such a stop is no hit.
AGAIN = """\
python
class Again(gdb.Function):
    last = None

    def invoke(self):
        frame = gdb.newest_frame()
        names = [register.name for register in frame.architecture().registers("general")]
        values = [str(frame.read_register(name)) for name in names]
        again, self.last = values == self.last, values
        return int(again)


Again("again")
end""".splitlines()


def stops(places: dict[str, str], last: str, count: int) -> list[str]:
    """Return gdb commands that print at each place, by its printf arguments.

    A place is a breakpoint's argument.  The commands end when the place `last` is met for the
    count-th time.
    """
    commands = [*AGAIN, "set $n = 0"]
    for place, shown in places.items():
        commands += [f"break {place}", "commands", "silent", "if !$again()"]
        if place == last:
            commands += [f"if $n == {count}", "kill", "quit", "end", "set $n = $n + 1"]
        commands += [f"printf {shown}", "end", "continue", "end"]
    return [*commands, "continue"]
