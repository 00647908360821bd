"""The kernel's own breakpoints: a WARN is an instruction that traps (ud2, brk, ebreak).

If probes are traps as well, kinst is in the same handler.  On every instruction set the kernel
still warns, of the same line, with probes elsewhere and with a probe on the trapping instruction
itself, and continues after it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import counts, guest_script
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

# This function has a WARN_ON_ONCE for the amount that tests/programs/warn.c asks for.
ALLOCATORS = ("__alloc_pages", "__alloc_pages_noprof")
TRAPPING = re.compile(r"ud2|brk #0x800|(c\.)?ebreak")
WARNING = re.compile(r"WARNING: CPU: \d+ PID: \d+ at mm/page_alloc\.c:\d+ (\S+)$", re.M)


def warn(guest: Guest, folder: Path, probes: str) -> tuple[str, dict[tuple[str, ...], int]]:
    """Return (where the kernel reports the warning, counts), after checking everything else."""
    # The log is cleared first, and another command runs after the one that triggers the warning.
    script = guest_script(
        folder, "warns.sh",
        "dmesg -c > /dev/null; warn; echo ==; dmesg -r; echo ==; reads 1000",
    )  # fmt: skip
    done = guest.trace(
        "-v", "-x", "plant=trap",
        "-n", f"kinst::ksys_read:{probes} {{ @[execname, probefunc, probename] = count(); }}",
        "-c", "warns.sh", copy=[guest.program("warn", guest.isa), guest.reads(), script],
    )  # fmt: skip
    before, log, after = done.guest.split("==\n")
    assert before == "warn ok\n" and after.startswith("reads 1000 "), done.guest
    (place,) = WARNING.findall(log)
    assert "kernel text is as before" in done.err
    found = counts(done.out)
    assert found["reads", "ksys_read", "0"] >= 1000
    return place, found


def trapping(guest: Guest) -> tuple[str, set[str]]:
    """Return (function, offsets of its instructions that trap)."""
    (function,) = guest.functions(ALLOCATORS)
    rows = guest.rows([function], "-x", "plant=trap")[function]
    return function, {str(row.offset) for row in rows if TRAPPING.fullmatch(row.text)}


@pytest.mark.parametrize(
    "guest",
    ["riscv64", *(pytest.param(isa, marks=pytest.mark.slow) for isa in ("amd64", "arm64"))],
    indirect=True,
)
def test_a_probe_on_what_traps(guest: Guest, tmp_path: Path) -> None:
    function, offsets = trapping(guest)
    _, found = warn(guest, tmp_path, f", kinst::{function}:")
    hits = {key[2]: n for key, n in found.items() if key[1] == function and key[2] in offsets}
    assert list(hits.values()) == [1]


@pytest.mark.slow
def test_probes_elsewhere(guest: Guest, tmp_path: Path) -> None:
    function, offsets = trapping(guest)
    place, _ = warn(guest, tmp_path, "")
    name, _, offset = place.partition("/")[0].partition("+")
    assert name == function and str(int(offset, 16)) in offsets
