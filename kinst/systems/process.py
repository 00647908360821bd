"""The system `process`: user programs, whose instructions kinst counts.

The loader of kinst.systems finds the value SYSTEM by its name.

Tested by tests/systems/test_process.py, tests/machines/process and tests/test_contracts.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.core.machine import KernelLocation, Target
from kinst.core.probe import Function
from kinst.core.system import System
from kinst.core.types import PROGRAM
from kinst.core.words import MASK
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf
from kinst.image.elf_file import PT_LOAD, PT_NOTE
from kinst.image.program_elf import program_elf
from kinst.systems.elf import ElfKernel, ElfKind

_PT_INTERP, _PT_TLS = 3, 7
_USER_END = 1 << 47  # programs lie below
# Names of notes that user programs have and kernels do not, with their types (0: any): the ABI that
# a program needs (Linux Standard Base 5.0, "Note Section"), and Go's build id.
_NOTES = ((b"GNU\0", 1), (b"Go\0\0", 0))
_NOTE = struct.Struct("<III")
_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_GS = 0x65


class UserProgram(ElfKernel):
    """A user program that has been started, or one library of it. Implements System
    (core/system.py)."""

    def __init__(self, target: Target, image: DebugInfo, location: KernelLocation) -> None:
        """Find the program's code in memory, and index its functions.

        Raises KinstError if the machine runs another program, or the file has no functions.
        """
        program = program_elf(image.elf)
        self.module = location.library or PROGRAM
        super().__init__(target, image, location, program)
        self._program = program
        self._check_unchanged()
        self.facts = replace(
            self.facts, per_cpu_bases=location.counter_bases, cpus=target.cpus,
            process=location.process,
        )  # fmt: skip

    def _check_unchanged(self) -> None:
        """Raise KinstError if the code in memory is not that of the file."""
        for linked, code in self._file.pieces:
            address = linked + self._slide & MASK
            there = self._target.read(address, len(code))
            if there != code:
                pairs = np.frombuffer(there, np.uint8) != np.frombuffer(code, np.uint8)
                raise KinstError(
                    "the program's code in memory differs from its file at"
                    f" {address + int(np.flatnonzero(pairs)[0]):#x}",
                    "a debugger or a kinst that was killed has changed it: start it anew",
                )

    def counterpart(self, name: str) -> str:
        libraries = self._program.needed
        if name not in self._program.imported or not libraries:
            return ""
        if len(libraries) == 1:
            return f"a library's function, pid$target:{libraries[0]}:{name}:entry"
        one_of = f"with one of {', '.join(libraries)} for LIBRARY"
        return f"a library's function, pid$target:LIBRARY:{name}:entry {one_of}"

    def landings(self) -> npt.NDArray[np.uint64]:
        slide = np.uint64(self.facts.slide & MASK)
        starts = self._target.isa.table_starts(self._code[1], self._code[0])
        tables = self._program.table_targets(starts - slide)
        found = np.concatenate([self._program.code_pointers, tables]) + slide
        return np.unique(found)

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return [False] * len(sites)

    def is_fatal(self, address: int) -> bool:
        return True

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """Return "" for each site, since kinst refuses no single instruction of a user program.
        Raises KinstError if an instruction uses the register gs, by which kinst's code finds a
        thread's counters."""
        low, text = self._code
        for address, size in sites:
            for byte in text[address - low : address - low + size]:
                if byte not in _PREFIXES:
                    break
                if byte == _GS:
                    function = self.function_at(address)
                    place = f"{function.name}+{address - function.address}" if function else ""
                    raise KinstError(
                        f"the program uses the register gs itself, at {place or hex(address)}",
                        "kinst needs gs for the counters of each thread",
                    )
        return [""] * len(sites)

    def call_refusal(self, function: Function) -> str:
        if function.address - self.facts.slide not in self._program.resolvers:
            return ""
        code = self.code(function.address, function.size)
        chosen = []
        for address in self._target.isa.table_starts(code, function.address).tolist():
            other = self.function_at(address)
            if other is not None and other.address == address:
                chosen.append(other.name)
        where = f", such as {min(chosen)}" if chosen else ""
        return (
            "it only chooses an implementation when the program starts (IFUNC), and the program's"
            f" calls run in another function{where}"
        )

    @cached_property
    def _code(self) -> tuple[int, bytes]:
        """The first running address of the program's code, and the bytes of this code as they were
        before kinst planted probes."""
        low, high = self.text
        return low, self.code(low, high - low)


class UserProgramKind(ElfKind):
    """The system of user programs. Implements SystemKind (kinst/systems/__init__.py)."""

    name = "process"
    fallback = False

    def knows(self, elf: Elf) -> bool:
        """Return whether an ELF file is a user program, not a kernel. A user program has its
        addresses in the half for user mode. It also has a dynamic linker, thread-local variables,
        or a note that kernels do not have (_NOTES)."""
        loaded = [s for s in elf.segments if s.kind == PT_LOAD]
        if not loaded or any(s.address + s.size > _USER_END for s in loaded):
            return False
        if any(s.kind in (_PT_INTERP, _PT_TLS) for s in elf.segments):
            return True
        notes = (s for s in elf.segments if s.kind == PT_NOTE)
        return any(_has_note(elf.mapped[s.offset : s.offset + s.file_size]) for s in notes)

    def lacks(self, name: str, elf: Elf) -> str:
        lacking = super().lacks(name, elf)
        return lacking and f"{lacking}: in a user program, instructions can only be counted"

    def attach(self, target: Target, image: DebugInfo, location: KernelLocation) -> System:
        return UserProgram(target, image, location)


def _has_note(notes: bytes) -> bool:
    """Return whether a PT_NOTE segment contains a note that user programs have and kernels do not:
    the ABI that the program needs, or Go's build id."""
    at = 0
    while at + _NOTE.size <= len(notes):
        name_size, size, kind = _NOTE.unpack_from(notes, at)
        name = notes[at + _NOTE.size : at + _NOTE.size + name_size]
        if any(name == known and kind in (wanted or kind,) for known, wanted in _NOTES):
            return True
        at += _NOTE.size + (name_size + 3 & -4) + (size + 3 & -4)
    return False


SYSTEM = UserProgramKind()
