"""Machine code by the GNU assembler, for tests that need code."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Prefixes of the tools' names, and the assembler's options.
_TOOLS = {
    "amd64": ("", ("--64",)),
    "arm64": ("aarch64-linux-gnu-", ("-march=armv8.5-a",)),
    "riscv64": ("riscv64-linux-gnu-", ("-march=rv64gc", "-mno-relax")),
}


def assembled(isa: str, source: str, folder: Path) -> bytes:
    """Return the bytes of .text of an assembler source; files are created in `folder`."""
    prefix, options = _TOOLS[isa]
    (folder / "a.s").write_text(source + "\n")
    for command in (
        [f"{prefix}as", *options, "-o", "a.o", "a.s"],
        [f"{prefix}objcopy", "-O", "binary", "-j", ".text", "a.o", "a.bin"],
    ):
        subprocess.run(command, cwd=folder, check=True)
    return (folder / "a.bin").read_bytes()
