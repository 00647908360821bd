"""The kernel's own breakpoints: a WARN is an instruction that traps (ud2, brk, ebreak), and where
probes are traps as well kinst sits in the same handler.  On every instruction set it still warns,
of the same line, with probes elsewhere and with one on the trapping instruction itself, and the
kernel goes on behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import counts, guest_script
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

# In which WARN_ON_ONCE is, for the amount that tests/programs/warn.c asks for.
ALLOCATORS = ("__alloc_pages", "__alloc_pages_noprof")
TRAPPING = re.compile(r"ud2|brk #0x800|(c\.)?ebreak")
WARNING = re.compile(r"WARNING: CPU: \d+ PID: \d+ at mm/page_alloc\.c:\d+ (\S+)$", re.M)


def warn(guest: Guest, folder: Path, probes: str) -> tuple[str, dict[tuple[str, ...], int]]:
    """(where the kernel says that it warned, what was counted), with everything else checked."""
    # The log is emptied first, and another command runs behind the one that makes it warn.
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
    """(function, offsets of its instructions that trap)."""
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
