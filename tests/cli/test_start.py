"""Modules that the command loads before a program is checked: errors in it are reported
immediately."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kinst.kernels.fetch import Prepared

HEAVY = ("numpy", "numba", "llvmlite", "iced_x86", "capstone")
REPORT = """
import sys
from kinst.cli import start
status = start.main()
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(status)
"""


def loaded(*words: str) -> Iterator[str]:
    """Return the modules that a failing command line has loaded at its end."""
    ran = subprocess.run(
        [sys.executable, "-c", REPORT, *words],
        env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode in (1, 2), ran.stderr
    assert "kinst: " in ran.stderr
    yield from ran.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("program", [
    "BEGIN { trace(timestmp",
    "BEGIN { x = ; }",
    "kinst::vfs_read:0 { printf(\"%d\"); }",
    "kinst::vfs_read:0 { trace(regs[R_RDY]); }",
])  # fmt: skip
def test_an_error_in_a_program_is_told_without_what_traces(program: str) -> None:
    modules = set(loaded("-n", program))
    assert not modules & set(HEAVY)
    assert not [name for name in modules if name.startswith("kinst.patch.plan")]


def test_a_name_that_no_kernel_has_is_told_without_reading_its_types(prepared: Prepared) -> None:
    assert not set(loaded("-n", "kinst::vfs_read:0 { trace(timestmp); }")) & set(HEAVY)


def test_clauses_of_begin_run_again_without_llvm() -> None:
    """The first process leaves the code in the cache."""
    program = [
        sys.executable,
        "-c",
        REPORT,
        "-q",
        "-n",
        "BEGIN { x = 41; x++; trace(x); exit(0); }",
    ]
    for _ in range(2):
        ran = subprocess.run(program, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == ["42"]
    modules = set(ran.stderr.splitlines()[-1].split())
    assert "numpy" in modules and "llvmlite" not in modules
