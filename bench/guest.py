"""A guest for many measurements: it is booted once, and runs commands untraced and D programs
alternately.

The kinst command boots a guest for each run, but costs can be compared only within one guest, so
this module uses the library.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import kinst
from kinst import KinstError, TargetError
from kinst.events import Batch, Lost, Output

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "programs"
COMMAND_SECONDS = 60.0
# Sizes of aggregation and record buffers: small, except for programs that make records.
_AGGREGATIONS, _BUFFERS, _RECORDING_BUFFERS = 1 << 18, 1 << 16, 1 << 20


# Compiler for each ISA, and the Debian packages that have it.
_COMPILERS = {
    "amd64": ("gcc", "gcc libc6-dev"),
    "arm64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    "riscv64": ("riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu"),
}


def compile_programs(names: Sequence[str], folder: Path, isa: str = "amd64") -> list[str]:
    """Compile tests/programs/NAME.c statically for a guest, and return the paths of the programs.
    Raises KinstError if that fails.

    Args:
        names: names of the programs.
        folder: folder for the compiled programs.
        isa: name of the guest's instruction set.
    """
    paths = []
    compiler, packages = _COMPILERS[isa]
    for name in names:
        made = folder / name
        command = [compiler, "-O2", "-static", "-o", str(made), str(PROGRAMS / f"{name}.c")]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError as error:
            hint = f"apt-get install {packages}"
            raise KinstError(f"{compiler} is not installed", hint) from error
        if done.returncode:
            raise KinstError(f"{name}.c does not compile: {done.stderr.strip()}")
        paths.append(str(made))
    return paths


class GuestHangsError(KinstError):
    """A command in the guest has not ended in time.

    In QEMU 7.2 this happens to a guest that writes its own text, as kprobes do: a CPU loops in code
    that was translated before the write (docs/safety.md).
    """


@dataclass(frozen=True, slots=True)
class Ran:
    """Results of a traced command.

    Attributes:
        output: output of the command.
        aggregations: the program's aggregations by name.
        records: number of records that arrived.
        lost: kinst's messages about lost records.
    """

    output: str
    aggregations: dict[str, kinst.Table]
    records: int
    lost: tuple[str, ...]


class Guest:
    """A guest that kinst has booted for measurements."""

    def __init__(
        self, copies: Sequence[str], isa: str = "amd64", append: str = "", *, cold: bool = False,
        modules: Sequence[str] = (), seconds: float = COMMAND_SECONDS,
    ) -> None:  # fmt: skip
        """Boot the guest. Raises KinstError if it does not come up.

        Args:
            copies: files for the guest's /bin.
            isa: name of the guest's instruction set.
            append: text to append to the kernel's command line.
            cold: whether to boot, with new addresses of the kernel, even if there is a saved state.
            modules: kernel modules to load at boot.
            seconds: time that a command may take.
        """
        self._seconds = seconds
        self.machine = kinst.boot(
            isa, copies=copies, append=append, modules=modules, cold=cold, on_message=print
        )

    def close(self) -> None:
        self.machine.close()

    def run(self, command: str) -> str:
        """Run a shell command in the guest untraced, and return its output.

        Raises KinstError if the command fails or does not end.
        """
        try:
            done = self.machine.execute(command, self._seconds)
        except TargetError as error:
            raise GuestHangsError(f"`{command[:40]} ...`: {error}") from error
        text = done.output.decode("utf-8", "replace")
        if done.status:
            raise KinstError(f"`{command}` ended with {done.status}: {text.strip()}")
        return text

    def compile(self, text: str, plant: str = "", records: bool = False) -> kinst.Program:
        """Return a compiled D program. Raises KinstError.

        Args:
            text: D text.
            plant: way to plant; "" for the best way.
            records: whether the program makes records, which need larger buffers.
        """
        options: dict[str, str | int] = {
            "aggsize": _AGGREGATIONS,
            "bufsize": _RECORDING_BUFFERS if records else _BUFFERS,
        }
        return self.machine.compile(text, {**options, **({"plant": plant} if plant else {})})

    def ways(self, program: kinst.Program) -> list[str]:
        """Return the way to plant each site of a program."""
        return [probe.way for probe in self.machine.list_probes(program) if probe.way]

    def trace(self, program: kinst.Program, command: str) -> Ran:
        """Trace a command, and return the results. Raises KinstError, also if the command does not
        end."""
        output, records, lost = bytearray(), 0, list[str]()
        late = threading.Event()
        with self.machine.trace(program, command) as trace:

            def stop() -> None:
                late.set()
                trace.stop()

            timer = threading.Timer(self._seconds, stop)
            timer.daemon = True
            timer.start()
            try:
                for event in trace.events():
                    match event:
                        case Batch():
                            records += len(event)
                        case Output(data):
                            output += data
                        case Lost():
                            lost.append(event.text)
                found = trace.aggregations()
            finally:
                timer.cancel()
        if late.is_set():
            raise GuestHangsError(f"`{command}` has not ended in {self._seconds:g} s, traced")
        return Ran(output.decode("utf-8", "replace"), found, records, tuple(lost))
