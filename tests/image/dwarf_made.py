"""C files compiled for tests of debug information, and facts from their comments."""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kinst.image.elf_file import open_file
from tests import ROOT

C = ROOT / "tests/c"
COPIES = C / "copies.c"
IDS = {1: "early", 2: "loop", 3: "outer", 4: "visible", 5: "rare"}
CROSS = {
    "amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc", "riscv64": "riscv64-linux-gnu-gcc",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Facts from the comments of copies.c.

    Attributes:
        decl: line by function.
        copies: how often (function, line of the call, caller) occurs.
        open: those that may occur more often.
    """

    decl: dict[str, int]
    copies: Counter[tuple[str, int, str]]
    open: frozenset[tuple[str, int, str]]


def table() -> Table:
    """Read the comments of copies.c."""
    decl: dict[str, int] = {}
    copies: Counter[tuple[str, int, str]] = Counter()
    more = set()
    for number, line in enumerate(COPIES.read_text().splitlines(), 1):
        said = re.search(r";\s*/\* (.* in .*) \*/$|/\* decl (\w+) \*/$", line)
        if not said:
            continue
        if said[2]:
            decl[said[2]] = number
            continue
        for part in said[1].split(" | "):
            function, _, callers = part.partition(" in ")
            for caller in callers.split(", "):
                key = (function, number, caller.rstrip("+"))
                copies[key] += 1
                if caller.endswith("+"):
                    more.add(key)
    return Table(decl, copies, frozenset(more))


def compiled(folder: Path, compiler: str, *flags: str, name: str = "copies") -> Path:
    """Compile copies.c, and link it unless -c is among the flags."""
    made = folder / name
    link = () if "-c" in flags else ("-nostdlib", "-static", "-no-pie")
    command = [compiler, *flags, *link, "-o", str(made), str(COPIES)]
    subprocess.run(command, check=True, timeout=120)
    return made


def marks(path: Path) -> list[tuple[int, str]]:
    """Return the marked instructions of a linked copies.c: (address, function)."""
    file = open_file(path)
    section = file.section(".marks")
    assert section is not None
    pairs = struct.iter_unpack("<QQ", file.data(section))
    return [(address, IDS[number]) for address, number in pairs]


def symbols(path: Path) -> dict[str, tuple[int, int]]:
    """Return address and size of every function, as nm reads them."""
    done = subprocess.run(
        ["nm", "-S", str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return {r[3]: (int(r[0], 16), int(r[1], 16)) for r in rows if len(r) == 4 and r[2] in "tT"}
