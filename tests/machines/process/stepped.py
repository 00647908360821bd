"""Counts of a program's instructions by kinst, and by single steps (tests/programs/stepper.c)."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kinst
from kinst.core.errors import TargetError
from kinst.machines.process.machine import check
from tests import ROOT

_PERSONALITY_ASKED, _NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000
_LIBC = ctypes.CDLL(None)
COUNT = "kinst::*: { @[probefunc, probename] = count(); }"


def traces_programs() -> bool:
    try:
        check()
    except TargetError:
        return False
    return True


needs_programs = pytest.mark.skipif(not traces_programs(), reason="hosts of other instruction sets")


def built(folder: Path, name: str, *options: str, compiler: str = "gcc") -> Path:
    """Compile tests/programs/NAME, and return the program's path."""
    source = ROOT / "tests" / "programs" / name
    program = folder / f"{source.stem}{''.join(options)}".replace("/", "")
    subprocess.run([compiler, "-O2", *options, "-o", program, source], check=True)
    return program


@contextmanager
def unrandomized() -> Iterator[None]:
    """Let programs that are started in the with block have the same addresses every time."""
    before = _LIBC.personality(_PERSONALITY_ASKED)
    _LIBC.personality(before | _NO_RANDOMIZE)
    try:
        yield
    finally:
        _LIBC.personality(before)


@dataclass
class Counted:
    """What kinst has counted of a run.

    Attributes:
        counts: hits by address, of every planted instruction.
        left_out: the reason for each instruction that is not planted, by address.
    """

    counts: dict[int, int]
    left_out: dict[int, str]
    status: int
    output: bytes = b""
    messages: list[str] = field(default_factory=list)


def counted(
    words: Sequence[str | Path], capfdbinary: pytest.CaptureFixture[bytes], program: str = COUNT,
    options: dict[str, str] | None = None,
) -> Counted:  # fmt: skip
    """Run a program, with all of its instructions planted."""
    command = " ".join(map(str, words))
    messages: list[str] = []
    capfdbinary.readouterr()
    with unrandomized(), kinst.process(command, on_message=messages.append) as machine:
        trace = machine.trace(program, command, options)
        events = list(trace.events())
        (table,) = [one.aggregation.rows for one in trace.aggregations().values()]
        sites, left_out = trace.sites, trace.left_out
        trace.close()
    output = capfdbinary.readouterr().out
    counts = {}
    for site in sites:
        if not site.reason:
            key = site.function.name, str(site.address - site.function.address)
            counts[site.address] = int(table.get(key, 0))  # type: ignore[call-overload]
    return Counted(counts, dict(left_out), events[-1].status, output, messages)  # type: ignore[union-attr]


def stepped(
    words: Sequence[str | Path], folder: Path, library: str = ""
) -> tuple[dict[int, int], int, bytes]:
    """Run a program by single steps.

    Args:
        words: the program and its arguments.
        folder: a folder for the stepper.
        library: path of a library whose instructions are counted instead of the program's.

    Returns the hits of its instructions by address (in a library, the address in its file), its
    exit status and its output.
    """
    stepper = built(folder, "stepper.c", "-Wall", "-Werror")
    counts = folder / "counts"
    output = folder / "output"  # a file, as in counted(): programs may look
    with output.open("wb") as file:
        done = subprocess.run(
            [stepper, counts, *words], stdout=file, check=False,
            env={**os.environ, **({"STEPPED": library} if library else {})},
        )  # fmt: skip
    table = dict(struct.iter_unpack("<2Q", counts.read_bytes()))
    return table, done.returncode, output.read_bytes()
