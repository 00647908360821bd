"""Code in an emulator by the million: many_pairs.c, compiled and called.

A pair is a piece of code and a random state: the original and its replacement start from the
state, and their outcomes are compared (emulation.py defines outcomes).  One millisecond of Python
is as long as a hundred pairs here.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import unicorn
from unicorn import arm64_const, riscv_const, x86_const

from kinst.core.columns import U64
from kinst.core.paths import cache_folder
from tests.isa.kernel_text import Text

_SOURCE = Path(__file__).with_name("many_pairs.c")
_UNICORN = Path(unicorn.__file__).parent
SCRATCH_SIZE = 2 << 20
MASK = (1 << 64) - 1
U32 = npt.NDArray[np.uint32]
GENERAL, STACK, BITS, SMALL, COUNT, WIDE, CONSTANT = range(7)  # as in many_pairs.c


class Register(ctypes.Structure):
    """One register of a state and of an outcome; many_pairs.c documents the fields."""

    _fields_ = (
        ("id", ctypes.c_int32), ("kind", ctypes.c_int32), ("base", ctypes.c_uint64),
        ("random", ctypes.c_uint64), ("compared", ctypes.c_uint64), ("lost", ctypes.c_uint64),
        ("unfit", ctypes.c_uint64),
    )  # fmt: skip


class Pair(ctypes.Structure):
    """A piece of code and its replacement; many_pairs.c documents the fields."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "low", "high", "start", "also_low", "also_high", "also_start", "planted", "below",
            "counted", "vectors", "steps",
        )
    )  # fmt: skip


class _Found(ctypes.Structure):
    _fields_ = (
        ("compared", ctypes.c_int64), ("skipped", ctypes.c_int64), ("different", ctypes.c_int64),
        ("seed", ctypes.c_uint64), ("text", ctypes.c_char * 256),
    )  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Result of a comparison.

    Attributes:
        compared: states from which both were run.
        skipped: states from which the original cannot be run, or does not end.
        difference: the first difference, with the state that makes it; "" if there is none.
    """

    compared: int
    skipped: int
    difference: str


@dataclass(frozen=True)
class Processor:
    """An ISA's processor: its registers by the names that differences use, and the address of
    scratch.

    Attributes:
        model: number of the CPU model in the emulator, or -1 for its own choice.
        set_once: registers that never change.
    """

    name: str
    arch: int
    mode: int
    registers: Mapping[str, Register]
    sp: str
    pc: int
    scratch: int
    nop: bytes
    model: int = -1
    trap_behind: int = 0
    traps_by_hook: bool = False
    repeats: bool = False
    smallest_page: int = 4096
    set_once: Mapping[int, int] = field(default_factory=dict)


def amd64(gs_base: int = 0) -> Processor:
    """Return the amd64 processor; gs_base of 0 stands for a random one."""
    u = x86_const
    pointers = 0xFFFF_8880_0000_0000
    base = 0xFFFF_8881_0000_0000
    kinds = {"rdx": SMALL, "rcx": COUNT}
    names = (
        "rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi",
        "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
    )  # fmt: skip
    table = {
        "gs_base": Register(
            u.UC_X86_REG_GS_BASE, BITS, gs_base or base, 0 if gs_base else 63 << 12
        ),
        "fs_base": Register(u.UC_X86_REG_FS_BASE, BITS, base + (1 << 30), 63 << 12),
        "rsp": Register(u.UC_X86_REG_RSP, STACK, 0xFFFF_C900_0000_0000, 0, MASK),
        # Arithmetic flags, direction and interrupts; code after setting the trap flag is not
        # followed.
        "eflags": Register(u.UC_X86_REG_EFLAGS, BITS, 2, 0xED5, MASK, 0x8D5, 0x100),
    }
    table |= {
        name: Register(
            getattr(u, f"UC_X86_REG_{name.upper()}"), kinds.get(name, GENERAL), pointers, 1 << 30,
            MASK, MASK,
        )
        for name in names
    }  # fmt: skip
    table |= {
        f"xmm{n}": Register(getattr(u, f"UC_X86_REG_XMM{n}"), WIDE, 0, 0, MASK) for n in range(16)
    }
    return Processor(
        "amd64", unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, table, "rsp", u.UC_X86_REG_RIP,
        0xFFFF_FFFF_9FE0_0000, b"\x90", trap_behind=1, repeats=True,
    )  # fmt: skip


def arm64() -> Processor:
    u = arm64_const
    table = {
        f"x{n}": Register(
            getattr(u, f"UC_ARM64_REG_X{n}"), GENERAL, 0xFFFF_0000_0000_0000, 1 << 30, MASK
        )
        for n in range(31)
    }
    table |= {
        "tpidr_el1": Register(u.UC_ARM64_REG_TPIDR_EL1, BITS, 0xFFFF_0000_8000_0000, 63 << 12),
        # EL1 with its own stack pointer, before that is written; NZCV and DAIF.
        "pstate": Register(u.UC_ARM64_REG_PSTATE, BITS, 5, 0xF000_03C0, 0xF000_03C0),
        "sp": Register(u.UC_ARM64_REG_SP, STACK, 0xFFFF_8000_0D00_0000, 0, MASK),
    }
    table |= {
        f"q{n}": Register(getattr(u, f"UC_ARM64_REG_Q{n}"), WIDE, 0, 0, MASK) for n in range(32)
    }
    return Processor(
        "arm64", unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, table, "sp", u.UC_ARM64_REG_PC,
        0xFFFF_8000_0400_0000, bytes.fromhex("1f2003d5"), u.UC_CPU_ARM64_MAX, smallest_page=1024,
        set_once={u.UC_ARM64_REG_CPACR_EL1: 3 << 20},  # enable vector registers
    )  # fmt: skip


def riscv64() -> Processor:
    u = riscv_const
    table = {
        "privilege": Register(u.UC_RISCV_REG_PRIV, CONSTANT, 1, 0, MASK),  # supervisor
        # SIE and SUM at the start; a trap may change SPIE and SPP.
        "sstatus": Register(
            u.UC_RISCV_REG_SSTATUS, BITS, 0, 1 << 1 | 1 << 18, MASK ^ (1 << 5 | 1 << 8)
        ),
        "sepc": Register(u.UC_RISCV_REG_SEPC, CONSTANT, 0),
        "x2": Register(u.UC_RISCV_REG_X2, STACK, 0xFFFF_FFC6_0000_0000, 0, MASK),
    }
    table |= {
        f"x{n}": Register(
            getattr(u, f"UC_RISCV_REG_X{n}"), GENERAL, 0xFFFF_FFD6_0000_0000, 1 << 30, MASK, MASK
        )
        for n in (1, *range(3, 32))
    }
    return Processor(
        "riscv64", unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64, table, "x2",
        u.UC_RISCV_REG_PC, 0xFFFF_FFFF_8400_0000, b"\x01\0", traps_by_hook=True,
    )  # fmt: skip


_HANDLE, _INT, _LONG, _WORD = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_uint64
_BYTES, _PLACE = ctypes.c_char_p, ctypes.c_void_p
_ARGUMENTS = {
    "pairs_open": (
        _INT, _INT, _INT, _PLACE, _INT, _INT, _INT, _INT, _INT, _INT, _WORD, _WORD, _BYTES, _WORD,
        _WORD, _WORD, _BYTES, _WORD,
    ),
    "pairs_register": (_HANDLE, _INT, _WORD),
    "pairs_close": (_HANDLE,),
    "pairs_forget": (_HANDLE,),
    "pairs_write": (_HANDLE, _WORD, _BYTES, _WORD),
    "pairs_read": (_HANDLE, _WORD, _PLACE, _WORD),
    "pairs_compare": (_HANDLE, _PLACE, _LONG, _WORD, _PLACE, _LONG, _PLACE, _PLACE, _PLACE),
    "pairs_state": (_HANDLE, _PLACE, _WORD, _PLACE),
}  # fmt: skip


class Pairs:
    """A processor, a kernel's text, and scratch for replacements."""

    def __init__(self, processor: Processor, text: Text) -> None:
        self._lib, self._about = _library(), processor
        self._registers = tuple(processor.registers)
        table = (Register * len(self._registers))(*processor.registers.values())
        code = text.code
        self._handle = self._lib.pairs_open(
            processor.arch, processor.mode, processor.model, table, len(table),
            processor.registers[processor.sp].id, processor.pc, processor.trap_behind,
            processor.traps_by_hook, processor.repeats, processor.smallest_page,
            text.address, code, len(code),
            processor.scratch, SCRATCH_SIZE, processor.nop,
            len(processor.nop),
        )  # fmt: skip
        assert self._handle, "the emulator cannot be set up"
        for register, value in processor.set_once.items():
            self._lib.pairs_register(self._handle, register, value)
        self._free = processor.scratch

    def close(self) -> None:
        self._lib.pairs_close(self._handle)

    def reserve(self, size: int) -> int:
        """Return the address of so many bytes of scratch, from its start again if it is full.

        The last page of scratch is for the tests themselves.
        """
        if self._free + size + 64 > self._about.scratch + SCRATCH_SIZE - 4096:
            self._free = self._about.scratch
            self._lib.pairs_forget(self._handle)
        at = self._free
        self._free += (size + 31) & -16
        return at

    def write(self, address: int, code: bytes) -> None:
        """Write code to scratch, or to the planted text."""
        done = self._lib.pairs_write(self._handle, address, code, len(code))
        assert done == 0, f"{address:#x} is in neither"

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of scratch."""
        found = ctypes.create_string_buffer(size)
        done = self._lib.pairs_read(self._handle, address, found, size)
        assert done == 0, f"{address:#x} is not in scratch"
        return found.raw

    def forget(self) -> None:
        """Discard translated code; to be called after overwriting code that has run."""
        self._lib.pairs_forget(self._handle)

    def compare(
        self,
        pair: Pair,
        states: int,
        seed: int,
        traps: Sequence[tuple[int, int]] = (),
        visits: U32 | None = None,
        lost: U64 | None = None,
    ) -> Found:
        """Run both from random states.

        Args:
            traps: addresses of breakpoints, each with the address that it leads to.
            visits: a counter for each byte of the original, to which its executions are added.
            lost: for each byte of the original, bits of registers that are dead when control
                leaves there.
        """
        found = _Found()
        table: U64 = np.array(sorted(traps), np.uint64).reshape(-1, 2)
        self._lib.pairs_compare(
            self._handle, ctypes.byref(pair), states, seed,
            table.ctypes.data_as(ctypes.c_void_p), len(table),
            None if visits is None else visits.ctypes.data_as(ctypes.c_void_p),
            None if lost is None else lost.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(found),
        )  # fmt: skip
        text = ""
        if found.different:
            said = re.sub(r"register (\d+)", self._name, found.text.decode())
            text = f"{said}, from {self._state(pair, found.seed)}"
        return Found(found.compared, found.skipped, text)

    def _name(self, match: re.Match[str]) -> str:
        return self._registers[int(match[1])]

    def _state(self, pair: Pair, seed: int) -> str:
        values = (_WORD * (2 * len(self._registers)))()
        self._lib.pairs_state(self._handle, ctypes.byref(pair), seed, values)
        narrow = [n for n in self._registers if self._about.registers[n].kind != WIDE]
        places = {name: 2 * k for k, name in enumerate(self._registers)}
        return " ".join(f"{name}={values[places[name]]:#x}" for name in narrow)


def _library() -> ctypes.CDLL:
    """Return many_pairs.c, compiled once for each version of it and of the emulator."""
    shared = _UNICORN / "lib" / "libunicorn.so.2"
    made = f"{unicorn.__version__} {shared}".encode() + _SOURCE.read_bytes()
    key = hashlib.sha256(made).hexdigest()[:16]
    library = cache_folder() / "tests" / f"many_pairs-{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as work:
            to = Path(work, library.name)
            command = (
                "gcc", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
                f"-I{_UNICORN / 'include'}", str(_SOURCE), "-o", str(to), str(shared),
                f"-Wl,-rpath,{shared.parent}",
            )  # fmt: skip
            subprocess.run(command, check=True)
            os.replace(to, library)
    loaded = ctypes.CDLL(str(library))
    for name, arguments in _ARGUMENTS.items():
        getattr(loaded, name).argtypes = arguments
    loaded.pairs_open.restype = ctypes.c_void_p
    return loaded
