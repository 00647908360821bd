"""Every instruction of 200 functions, planted at once, under a workload of several processes.

The functions are on the read, open, stat, mmap, fork and exec paths.  The workload uses those
calls and checks every result, so that a kernel that only seems to work is noticed.
KINST_E2E_SECONDS sets how long it runs in the short test; the slow one runs the full 30 s.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests import ROOT
from tests.vm.command import SECONDS, counts, guest_script, kinst, warnings

pytestmark = pytest.mark.vm

NAMES = ROOT / "tests/vm/functions.txt"
SHORT = float(os.environ.get("KINST_E2E_SECONDS", "10"))
AS_BEFORE = re.compile(r"^kinst: kernel text is as before \((\d+) bytes compared\)$", re.M)
MATCHED = re.compile(r"matched (\d+) probes$", re.M)


@pytest.fixture(scope="module")
def functions(prepared: Prepared) -> list[str]:
    """Return the functions of the list that nm(1) finds in this kernel exactly once."""
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    seen = Counter(w[2] for w in map(str.split, shown.stdout.splitlines()) if w[1] in "tT")
    return [name for name in NAMES.read_text().split() if seen[name] == 1]


def every_instruction(functions: list[str]) -> str:
    """Return probe descriptions of them."""
    assert len(functions) >= 200
    return ", ".join(f"kinst::{name}:" for name in functions)


def work_under_trace(
    description: str, least: int, program: Path, folder: Path, seconds: float, actions: str
) -> dict[tuple[str, ...], int]:
    """Run the workload under a trace with every check, and return the counts.

    Args:
        least: number of probes that must be planted.
    """
    script = guest_script(
        folder,
        "all.sh",
        f"echo ==before; dmesg -r; echo ==work; workload {seconds:g}; echo ==after; dmesg -r",
    )
    done = kinst(
        "-v", "-n", f"{description} {{ {actions} }}", "-c", "all.sh",
        copy=[program, script], seconds=SECONDS + 4 * seconds,
    ).good()  # fmt: skip
    (matched,) = MATCHED.findall(done.err)
    assert int(matched) >= least
    before, _, rest = done.guest.partition("==work\n")
    work, _, after = rest.partition("==after\n")
    assert work.rstrip().endswith("workload done"), work
    # The log's buffer keeps older messages: only new ones count.
    assert warnings(after) == warnings(before), after
    (compared,) = AS_BEFORE.findall(done.err)
    # All text, not only the sites: a recent kernel has more than 10 MB of it.
    assert int(compared) > 10_000_000
    assert "drop" not in done.err, done.err
    done_calls = dict(re.findall(r"^workload (\w+) (\d+)$", work, re.M))
    assert all(int(count) > 0 for count in done_calls.values()) and len(done_calls) == 9
    return counts(done.out) | {("done", k): int(v) for k, v in done_calls.items()}


def test_every_instruction_counted(
    functions: list[str],
    guest_program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Count by function and instruction, which allows two more checks.

    The entries of a function are at least the calls that the workload made, and all instructions
    of a straight line run equally often.
    """
    found = work_under_trace(
        every_instruction(functions),
        20_000,
        guest_program("workload"),
        tmp_path,
        SHORT,
        "@[probefunc, probename] = count();",
    )
    assert found["vfs_read", "0"] >= found["done", "read"] + found["done", "pipe"]
    assert found["copy_process", "0"] >= found["done", "fork"] + found["done", "exec"]
    assert len({key[0] for key in found if key[-1].isdigit()}) >= 100


def test_every_function_of_the_kernel(
    prepared: Prepared, guest_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """fbt:::entry: an empty function means all, as in dtrace(1)."""
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    names = [w[2] for w in map(str.split, shown.stdout.splitlines()) if w[1] in "tT"]
    found = work_under_trace(
        "fbt:::entry",
        len(names) * 8 // 10,  # the others are refused, are second parts, or have no instructions
        guest_program("workload"),
        tmp_path,
        SHORT,
        "@[probefunc] = count();",
    )
    assert found["vfs_read",] >= found["done", "read"] + found["done", "pipe"]
    assert found["copy_process",] >= found["done", "fork"] + found["done", "exec"]
    assert len(found) >= 1000


@pytest.mark.slow
def test_every_instruction_for_thirty_seconds(
    functions: list[str],
    guest_program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """The clauses are called, instead of only counting."""
    found = work_under_trace(
        every_instruction(functions),
        20_000,
        guest_program("workload"),
        tmp_path,
        30,
        "@[probefunc] = count(); @span = quantize(regs[R_RSP]); hits++;",
    )
    assert found["vfs_read",] > found["done", "read"]
