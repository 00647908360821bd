"""One guest for many measurements: booted once, commands and D programs run in it by turns.

The kinst command boots a guest for each run; to compare costs the guest has to stay the same,
so this drives the stages of kinst.session itself.  Each D program gets a part of scratch of its
own, because code that QEMU has run may not be changed behind its back.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinst.cli.options import parse
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core.errors import KinstError
from kinst.core.layout import LEAF
from kinst.core.probe import ProbeName
from kinst.core.target import CommandEnded, Gone, Target
from kinst.image.elf import open_elf
from kinst.machines.vm.cpus import CPUS
from kinst.providers import load_all
from kinst.render import Destination, renderer
from kinst.session.build import build, fill, split
from kinst.session.counters import map_counters, share_counters
from kinst.session.enable import enable
from kinst.session.kernel import RunningKernel
from kinst.session.place import means_of, place
from kinst.session.program import compile_request
from kinst.session.report import Report
from kinst.session.run import Trace
from kinst.session.sizes import counters_room, scratch_needed, sizes
from kinst.session.target import attach, find_files, isa_of, open_target
from kinst.session.values import (
    Compiled,
    Counters,
    Placed,
    Placement,
    PlantedImage,
    Request,
    ScratchMemory,
    TracedMachine,
)
from kinst.systems import of_image
from kinst.wire import native

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "programs"
# Bytes of scratch for one D program without its counters, at most, and for one with much data.
PART, LARGE_PART = 2 * LEAF, 6 * LEAF
TRAMPOLINES = 1 << 20  # of that for code
_BUFFERS, _RECORDING_BUFFERS = 1 << 16, 1 << 21
COMMAND_SECONDS = 120.0


# Compilers and the packages that they are in.
_COMPILERS = {
    "amd64": ("gcc", "gcc libc6-dev"),
    "arm64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    "riscv64": ("riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu"),
}


def compile_programs(names: Sequence[str], folder: Path, isa: str = "amd64") -> list[str]:
    """Compile tests/programs/NAME.c statically into folder, for a guest of an ISA; their paths.

    Raises KinstError when the compiler cannot."""
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


def silent_report() -> Report:
    """A report that keeps nothing."""
    return Report(
        write=lambda _: None, say=lambda _: None, progress=lambda *_: None,
        stop_requested=lambda: False, started=time.monotonic(),
    )  # fmt: skip


@dataclass(slots=True)
class Program:
    """A D program, compiled and in its own part of scratch, ready to be planted any number of
    times.  ways: how its sites are planted; hits are counted by whoever reads its output."""

    compiled: Compiled
    parts: Placement
    placed: Placed
    built: PlantedImage

    @property
    def ways(self) -> set[str]:
        return {choice.way for _, choice in self.parts.planted} | (
            {"stop"} if self.parts.stopped else set()
        )


@dataclass(slots=True)
class Ran:
    """What a command did.  output: the guest's.  trace: kinst's.  said: kinst's messages.
    status: the command's exit status, None while a trace does not tell."""

    output: str
    trace: str = ""
    said: list[str] = field(default_factory=list)


class Guest:
    """A booted kernel.  Raises KinstError when it cannot be."""

    def __init__(self, copies: Sequence[str], programs: int, large: int = 0, vm: str = "") -> None:
        """copies: files for the guest's /bin.  programs: how many D programs there will be, and
        large: how many of them print or have variables.  vm: its ISA, as --vm has it."""
        self._output = bytearray()
        request = Request(copies=tuple(copies), vm=vm)
        self.isa = isa_of(request)
        files = find_files(request, lambda *_: None)
        # On some ISAs all of them must be in reach of the kernel's text.
        self._counters = LEAF if self.isa.shared_counters else counters_room(CPUS)
        room = (programs - large) * PART + large * LARGE_PART
        room += programs * self._counters
        elf = open_elf(files.debug)
        system, output = of_image(elf), self._output.extend
        self.target: Target = open_target(request, self.isa, files, system, room, output)
        try:
            personality = attach(self.target, elf, system, print)
            self.kernel = RunningKernel(self.target, personality, self.isa)
            text = personality.text
            self._traced = TracedMachine(self.isa, self.target, personality, self.kernel, text)
            address = self.target.map_scratch(room, text)
            if address is None:
                raise KinstError("this guest has no scratch memory")
            self._address = address
            self._view = self.target.scratch_view()
            self._used = 0
            self._limit = room
            self.target.resume()
        except BaseException:
            self.target.close()
            raise

    def close(self) -> None:
        self.target.close()

    def run(self, command: str) -> str:
        """Run a shell command in the guest, with nothing of kinst's planted; its output.

        Raises KinstError when it fails or does not end."""
        self._output.clear()
        self.target.prepare_command(command)
        self.target.start_command()
        self.target.resume()
        deadline = time.monotonic() + COMMAND_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            event = self.target.wait(left)
            if isinstance(event, Gone):
                raise KinstError(f"the guest is gone: {event.reason}\n{event.console}")
            if isinstance(event, CommandEnded):
                text = self._output.decode("utf-8", "replace")
                if event.status:
                    raise KinstError(f"`{command}` ended with {event.status}: {text.strip()}")
                return text
        raise KinstError(f"`{command}` has not ended in {COMMAND_SECONDS:g} s")

    def compile(self, *argv: str, records: bool = False) -> Program:
        """Compile what a kinst command line says (-n, -x, ...).  records: it prints.

        Raises KinstError."""
        # Small areas, so that many programs fit in reach of the kernel's text.
        compiled = compile_request(parse(["-q", *argv]).request, self.isa, target_pid=0)
        buffers = _RECORDING_BUFFERS if records else _BUFFERS
        compiled = replace(
            compiled, options=replace(compiled.options, aggsize=1 << 18, bufsize=buffers)
        )
        self.target.stop()
        memory = self._part(scratch_needed(compiled.options, compiled.program, CPUS, TRAMPOLINES))
        traced = self._traced
        enabled, _ = enable(compiled.program, load_all(), traced.kernel, zero=False)
        means = means_of(traced, memory, compiled.plant)
        parts = split(enabled, means, traced)
        probed: list[tuple[ProbeName, int, tuple[int, ...]]] = [
            (e.probe.name, e.probe.id, e.clauses) for e in parts.running
        ]
        room = sizes(compiled.options, compiled.program).aggs
        layout = lay_out_program(compiled.program, probed, compiled.options.strsize, room)
        scratch = place(
            memory.address, memory.size, traced.cpus, compiled.options, compiled.program, layout,
            parts.running,
        )  # fmt: skip
        placed = Placed(memory, scratch, layout, self._map_counters(memory, layout.counters_size))
        built = build(compiled.program, parts, placed, traced)
        self.target.resume()
        return Program(compiled, parts, placed, built)

    def _part(self, size: int) -> ScratchMemory:
        """The next part of scratch.  Its view has the counters behind, as in a session."""
        at, self._used = self._used, self._used + size + self._counters
        if self._used > self._limit:
            raise KinstError("more D programs than the benchmark has set aside memory for")
        view = self._view[at : self._used]
        return ScratchMemory(view, self._address + at, native.address_of(view), size)

    def _map_counters(self, part: ScratchMemory, size: int) -> Counters | None:
        """Counters at the end of the part that was given out last."""
        start = part.address - self._address
        if self.isa.shared_counters:
            return share_counters(part.address, part.size, size, self._counters)
        bases = self._traced.facts.per_cpu_bases if self._traced.facts else ()
        made = map_counters(self.target, bases, self._used, size)
        if made is None:
            return None
        return replace(made, offsets=tuple(at - start for at in made.offsets))

    def trace(self, program: Program, command: str) -> Ran:
        """Plant, run the command, unplant.  Raises KinstError."""
        text, said = list[str](), list[str]()
        report = replace(silent_report(), write=text.append, say=said.append)
        destination = Destination(text.append, said.append)
        self._output.clear()
        self.target.stop()
        _reset(program.placed)
        fill(program.placed.memory.view, program.placed.scratch, program.built)
        self.target.prepare_command(command)
        trace = Trace(
            program.compiled, program.parts, program.placed, program.built, self._traced, report
        )
        shown = renderer("dtrace")(destination, trace.schema)
        for event in trace.events(command):
            shown.show(event)
        return Ran(self._output.decode("utf-8", "replace"), "".join(text), said)


def _reset(placed: Placed) -> None:
    """All data of the program as it was before its first run; its code is not touched."""
    memory = placed.memory
    behind = len(memory.view) - memory.size
    memory.view[: placed.scratch.text] = bytes(placed.scratch.text)
    memory.view[memory.size :] = bytes(behind)
