"""The kernel of the fake machine, compiled once for each ISA and cached in kinst's cache
folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kinst.core.paths import cache_folder

FOLDER = Path(__file__).parent
SOURCES = ("kernel.c", "kernel.lds")
_COMMON = (
    "-g", "-O2", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-Wall",
    "-Wextra", "-Werror", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
    "-fno-delete-null-pointer-checks", "-fno-tree-loop-distribute-patterns", "-fno-ipa-icf",
    "-Wl,-z,max-page-size=4096", "-Wl,-z,noexecstack", "-Wl,--build-id=sha1",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Compiler, options and macros for the kernel of one ISA.

    Attributes:
        compiler: name of the program.
        flags: its options.
        start: the linked address.
        macros: facts about the ISA for kernel.c: the index of the program counter among the saved
            registers (PC), how many bytes to skip a breakpoint that is not kinst's (BREAK_SKIPS),
            and the instructions of a load and of a store that may fault.
    """

    compiler: str
    flags: tuple[str, ...]
    start: int
    macros: Mapping[str, str]


RECIPES = {
    "amd64": Recipe(
        "gcc",
        ("-mcmodel=kernel", "-mno-red-zone", "-mgeneral-regs-only", "-fcf-protection=none"),
        0xFFFF_FFFF_8100_0000,
        {
            "PC": "16", "BREAK_SKIPS": "0", "LOAD_BYTE": '"movb (%[from]), %b[value]"',
            "STORE_BYTE": '"movb %b[value], (%[to])"',
            "SET_ERROR": '"mov $-14, %[error]"', "JUMP_BACK": '"jmp 2b"',
        },
    ),
    "arm64": Recipe(
        "aarch64-linux-gnu-gcc",
        ("-mgeneral-regs-only", "-mno-outline-atomics", "-march=armv8-a"),
        0xFFFF_8000_0800_0000,
        {
            "PC": "31", "BREAK_SKIPS": "4", "LOAD_BYTE": '"ldrb %w[value], [%[from]]"',
            "STORE_BYTE": '"strb %w[value], [%[to]]"',
            "SET_ERROR": '"mov %[error], #-14"', "JUMP_BACK": '"b 2b"',
        },
    ),
    "riscv64": Recipe(
        "riscv64-linux-gnu-gcc",
        ("-march=rv64imac_zicsr_zifencei", "-mabi=lp64", "-mcmodel=medany",
         "-msmall-data-limit=0"),
        0xFFFF_FFFF_8000_0000,
        {
            "PC": "0", "BREAK_SKIPS": "2", "LOAD_BYTE": '"lbu %[value], 0(%[from])"',
            "STORE_BYTE": '"sb %[value], 0(%[to])"',
            "SET_ERROR": '"li %[error], -14"', "JUMP_BACK": '"j 2b"',
        },
    ),
}  # fmt: skip


@cache
def kernel_file(isa: str) -> Path:
    """Return the kernel's ELF file; compile it if the cache has none of these sources.

    Raises:
        AssertionError: it does not compile; with the compiler's messages.
    """
    recipe = RECIPES[isa]
    sources = [FOLDER / name for name in (*SOURCES, f"entry_{isa}.S")]
    command = [
        recipe.compiler, *_COMMON, *recipe.flags,
        *(f"-D{name}={value}" for name, value in recipe.macros.items()),
        f"-Wl,--defsym=START={recipe.start:#x}", "-T", "kernel.lds",
        "kernel.c", f"entry_{isa}.S",
    ]  # fmt: skip
    key = hashlib.sha256(" ".join(command).encode())
    for source in sources:
        key.update(source.read_bytes())
    kernel = cache_folder() / "programs" / key.hexdigest()[:16] / f"fake-{isa}"
    if not kernel.exists():
        kernel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kernel.parent) as work:
            made = Path(work) / "kernel"
            done = subprocess.run(
                [*command, "-o", str(made)], cwd=FOLDER, capture_output=True, text=True,
                env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
            assert not done.returncode, done.stderr
            made.rename(kernel)
    return kernel
