"""LLVM 19's facts about instructions: sizes, registers read and written, and branches.

LLVM is an authority that shares nothing with kinst's tables.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.core.paths import cache_folder

_SOURCE = Path(__file__).with_name("llvm_instructions.cpp")
_CONFIG = "llvm-config-19"


@dataclass(frozen=True, slots=True)
class Known:
    """Facts of one instruction.

    Attributes:
        size: bytes.
        opcode: LLVM's name of it.
        flags: letters as in llvm_instructions.cpp.
        target: distance of a direct branch from the instruction, in bytes.
        writes: names of registers.
        reads: names of registers.
    """

    size: int
    opcode: str
    flags: str
    target: int | None
    writes: frozenset[str]
    reads: frozenset[str]


def known_to_llvm(triple: str, features: str, codes: Sequence[bytes]) -> list[Known | None]:
    """Return LLVM's facts about each instruction, or None."""
    text = "".join(f"{code.hex()}\n" for code in codes)
    command = [str(_program()), triple, features]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(codes)
    return [None if line == "-" else _parsed(line) for line in lines]


def _parsed(line: str) -> Known:
    size, opcode, flags, target, writes, reads = line.split()
    distance = None if target == "-" else int(target)
    return Known(int(size), opcode, flags.strip("-"), distance, _names(writes), _names(reads))


def _names(text: str) -> frozenset[str]:
    return frozenset() if text == "-" else frozenset(text.split(","))


def _program() -> Path:
    if not shutil.which(_CONFIG):
        pytest.fail(f"{_CONFIG} is not there: run `make setup-all`")
    flags = subprocess.run(
        [_CONFIG, "--cxxflags", "--ldflags", "--libs"], capture_output=True, text=True, check=True
    ).stdout.split()
    key = hashlib.sha256(" ".join(flags).encode() + _SOURCE.read_bytes()).hexdigest()[:16]
    program = cache_folder() / "programs" / key / "llvm_instructions"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(".part")
        subprocess.run(["g++", "-O1", "-o", part, _SOURCE, *flags], check=True)
        part.rename(program)
    return program
