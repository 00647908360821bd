"""Guests of every instruction set, for the contract tests."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kinst.kernels.fetch import Prepared
from tests.vm.command import ALONE, Result, Row, kinst, listed


@dataclass(frozen=True)
class Guest:
    """Guest, kernel and programs for the tests of one instruction set."""

    isa: str
    kernel: Prepared
    program: Callable[[str, str], Path]
    asked: str = ""  # as --kernel takes it, if not the usual kernel

    def trace(self, *arguments: str, copy: list[Path]) -> Result:
        chosen = ("--kernel", self.asked) if self.asked else ()
        return kinst(f"--vm={self.isa}", *chosen, *arguments, copy=copy).good()

    def reads(self) -> Path:
        """Return the program that calls read(2) on /dev/zero exactly N times."""
        return self.program("reads", self.isa)

    def functions(self, names: Iterable[str]) -> list[str]:
        """Return the names that exactly one function of this kernel has (by nm)."""
        times = _functions(self.kernel.debug)
        return [name for name in names if times[name] == 1]

    def rows(self, functions: Iterable[str], *options: str) -> dict[str, list[Row]]:
        """Return every instruction of some functions by address, as -l -v lists it, each with the
        way of planting it by itself."""
        words = [word for f in functions for word in ("-n", f"kinst::{f}:")]
        found: dict[str, list[Row]] = {}
        for row in listed(self.trace("-l", "-v", *ALONE, *options, *words, copy=[]).out):
            found.setdefault(row.function, []).append(row)
        return found


@cache
def _functions(vmlinux: Path) -> Counter[str]:
    shown = subprocess.run(["nm", str(vmlinux)], capture_output=True, text=True, check=True).stdout
    return Counter(w[2] for w in map(str.split, shown.splitlines()) if w[1:2] in (["t"], ["T"]))
