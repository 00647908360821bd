"""Instructions that fault on purpose, on every instruction set.

Functions that copy to and from a process are planted whole; the kernel still returns EFAULT for
bad addresses, and its log has nothing new.  A slow test plants 30,000 instructions at once for
half a minute, on the instruction sets that test_everything.py does not test.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.kernels.fetch import prepared as prepared_kernel
from tests import ROOT
from tests.vm.command import counts, guest_script, kinst, warnings

pytestmark = pytest.mark.vm

NAMES = ROOT / "tests/vm/functions.txt"
# Functions that move bytes between the kernel and a process in these kernels, by nm(1).
COPIES = re.compile(
    r"_*(?:arch_|asm_)*(?:fallback_scalar_usercopy|clear_user\w*|copy_(?:to|from)_user\w*"
    r"|copy_user_\w+|read_zero|read_iter_zero|pipe_write)"
)
REFUSED = ("nofault", "nmi", "highpage", "page_mc", "notrace", "nocache", "inatomic")


def symbols(isa: str) -> list[str]:
    """Return the functions that the kernel has once."""
    kernel = prepared_kernel(isa)
    assert kernel is not None, "run `make setup-all`"
    shown = subprocess.run(
        ["nm", str(kernel.debug)], capture_output=True, text=True, check=True
    ).stdout
    seen = Counter(w[2] for w in map(str.split, shown.splitlines()) if w[1:2] in (["t"], ["T"]))
    return [name for name, times in seen.items() if times == 1]


@pytest.mark.parametrize("isa", ["amd64", "riscv64", pytest.param("arm64", marks=pytest.mark.slow)])
def test_faults_on_purpose(
    isa: str, program_for: Callable[[str, str], Path], tmp_path: Path
) -> None:
    names = [n for n in symbols(isa) if COPIES.fullmatch(n) and not any(r in n for r in REFUSED)]
    assert len(names) >= 4, names
    script = guest_script(
        tmp_path,
        "faults.sh",
        "echo ==before; dmesg -r; echo ==work; faults 300; echo ==after; dmesg -r",
    )
    program = ", ".join(f"kinst::{name}:" for name in names)
    done = kinst(
        f"--vm={isa}", "-v", "-Z", "-n", f"{program} {{ @[probefunc] = count(); }}",
        "-c", "faults.sh", copy=[program_for("faults", isa), script],
    ).good()  # fmt: skip
    before, _, rest = done.guest.partition("==work\n")
    work, _, after = rest.partition("==after\n")
    assert work == "faults 300 ok\n"
    assert warnings(after) == warnings(before), after
    assert "kernel text is as before" in done.err
    # Two functions fault, one for each direction, in each of the 300 calls.
    found = {key[0]: count for key, count in counts(done.out).items()}
    faulted = [n for n in found if "user" in n and not n.startswith("_copy") and found[n] >= 300]
    assert len(faulted) >= 2, done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    "isa, actions",
    [("arm64", "@[probefunc] = count(); hits++;"), ("riscv64", "@[probefunc] = count();")],
)
def test_thirty_thousand_instructions(
    isa: str, actions: str, program_for: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The workload checks its results.

    arm64 has clauses that are called.  riscv64, where every site is a trap, has counters: with
    called clauses at each instruction of the scheduler as well, the workload did not end in 8
    minutes on a busy host.
    """
    there = set(symbols(isa))
    names = [name for name in NAMES.read_text().split() if name in there]
    more = ["do_sys_openat2", "path_openat", "link_path_walk", "walk_component", "lookup_fast"]
    names = list(dict.fromkeys(names + [name for name in more if name in there]))
    assert len(names) > 150
    script = guest_script(
        tmp_path, "all.sh",
        "echo ==before; dmesg -r; echo ==work; workload 30; echo ==after; dmesg -r",
    )  # fmt: skip
    program = ", ".join(f"kinst::{name}:" for name in names)
    done = kinst(
        f"--vm={isa}", "-v", "-n", f"{program} {{ {actions} }}",
        "-c", "all.sh", copy=[program_for("workload", isa), script], seconds=900,
    ).good()  # fmt: skip
    (matched,) = map(int, re.findall(r"matched (\d+) probes$", done.err, re.M))
    assert matched > 30_000
    before, _, rest = done.guest.partition("==work\n")
    work, _, after = rest.partition("==after\n")
    assert work.rstrip().endswith("workload done"), work
    assert warnings(after) == warnings(before), after
    assert "kernel text is as before" in done.err
    assert len(counts(done.out)) > 100
