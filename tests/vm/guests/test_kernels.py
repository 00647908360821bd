"""Kernels other than the usual ones; docs/kernels.md lists which of these tests each has passed.

They are fetched on first use by their package names, 0.3 to 1.3 GB each, with a message.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepare, prepared
from tests import ROOT
from tests.gdb_rig import report
from tests.vm.command import counts, guest_script, warnings
from tests.vm.isa_guest import Guest
from tests.vm.isas.test_inline import drawn
from tests.vm.isas.test_modules import TRAFFIC
from tests.vm.language.locals_rig import compare
from tests.vm.language.test_inline import WORK, in_flight, tables

pytestmark = pytest.mark.vm

SEED = 20261122
READS = 100_000
PAIRS = 50  # of an instruction and a local variable
NAMES = ROOT / "tests/vm/functions.txt"
QUICK = ("amd64", "6.12")  # those for which make test has time
KERNELS = (
    ("amd64", "5.10"), ("amd64", "6.1-generic"), QUICK, ("amd64", "6.12-generic"),
    ("amd64", "7.2"), ("amd64", "7.3"),
    ("arm64", "5.10"), ("arm64", "6.12"), ("arm64", "6.12-16k"), ("arm64", "7.3"),
    ("riscv64", "7.2"),
)  # fmt: skip
PROGRAM = """\
self uint64_t last;
fbt::vfs_read:entry, fbt::ksys_read:entry { @[execname, probefunc] = count(); }
fbt::vfs_read:entry /execname == "reads"/ { @n[arg2] = count(); }
fbt::vfs_read:entry /self->last && timestamp <= self->last/ { @back = count(); }
fbt::vfs_read:entry /execname == "reads"/ { self->last = timestamp; @cpu["cpu", cpu] = count(); }
fbt::vfs_read:entry /execname == "reads" && !shown++/ { @s[func(caller)] = count(); }
"""


def _all_but_quick(one: tuple[str, str]) -> object:
    marks = () if one == QUICK else (pytest.mark.slow,)
    return pytest.param(one, id="-".join(one), marks=marks)


@pytest.fixture(scope="module", params=list(map(_all_but_quick, KERNELS)))
def guest(
    request: pytest.FixtureRequest,
    program_for: Callable[[str, str], Path],
    pytestconfig: pytest.Config,
) -> Guest:
    """Return a guest of each kernel, fetched if need be."""
    isa, asked = request.param
    found = prepared(isa, asked)
    if found is None:
        terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
        said = ""

        def tell(what: str, part: float | None) -> None:
            nonlocal said
            work = re.sub(r"\d+ of (\d+ MB)", r"\1", what)
            if terminal is not None and work != said:
                terminal.write_line(f"{isa} {asked}: {work}")
            said = work

        found = prepare(isa, tell, asked)
    return Guest(isa, found, program_for, found.release)


@pytest.mark.parametrize("way", ["auto", "trap"])
def test_reads_are_counted_exactly(guest: Guest, way: str, tmp_path: Path) -> None:
    """Count the entries of two functions that each read(2) calls once, made by its own process.

    Also checked are its third argument, which is 1, an increasing clock, the CPU, and the caller.
    """
    program = tmp_path / "reads.d"
    program.write_text(PROGRAM)
    done = guest.trace(
        "-v", "-x", f"plant={way}", "-s", str(program), "-c", f"reads {READS}",
        copy=[guest.reads()],
    )  # fmt: skip
    found = counts(done.out)
    assert found["reads", "vfs_read"] == found["reads", "ksys_read"] == READS
    assert found["1",] == READS
    assert sum(n for key, n in found.items() if key[0] == "cpu") == READS
    assert () not in found  # @back
    assert found["vmlinux`ksys_read",] == 1
    assert "drop" not in done.err, done.err
    assert "kernel text is as before" in done.err


def _functions(debug: Path) -> set[str]:
    """Return the addresses of a kernel's functions, by readelf.

    Left out are second parts, and the room before a function, which has its own symbol.
    """
    shown = subprocess.run(
        ["readelf", "-sW", str(debug)], capture_output=True, text=True, check=True
    )
    rows = (line.split() for line in shown.stdout.splitlines())
    return {
        row[1]
        for row in rows
        if len(row) == 8
        and row[3] == "FUNC"
        and row[2] != "0"
        and not row[7].startswith(("__pfx_", "__cfi_"))
        and ".cold" not in row[7]
    }


@pytest.mark.slow
def test_every_function_under_a_workload(guest: Guest, tmp_path: Path) -> None:
    """fbt:::entry while a program checks the results of its system calls: no new warning in the
    kernel's log, and all text is restored."""
    count = len(_functions(guest.kernel.debug))
    script = guest_script(
        tmp_path,
        "all.sh",
        "echo ==before; dmesg -r; echo ==work; workload 10; echo ==after; dmesg -r",
    )
    done = guest.trace(
        "-v", "-n", "fbt:::entry { @[probefunc] = count(); }", "-c", "all.sh",
        copy=[guest.program("workload", guest.isa), script],
    )  # fmt: skip
    (matched,) = re.findall(r"matched (\d+) probes$", done.err, re.M)
    # The others are refused, or were needed during boot only.
    assert int(matched) >= count * 8 // 10
    before, _, rest = done.guest.partition("==work\n")
    work, _, after = rest.partition("==after\n")
    assert work.rstrip().endswith("workload done"), work
    assert warnings(after) == warnings(before), after
    assert "kernel text is as before" in done.err and "drop" not in done.err, done.err
    found = counts(done.out)
    calls = {k: int(n) for k, n in re.findall(r"^workload (\w+) (\d+)$", work, re.M)}
    assert found["vfs_read",] >= calls["read"] + calls["pipe"] > 0
    assert len(found) >= 1000


@pytest.mark.slow
def test_inline_entries_equal_returns(guest: Guest, tmp_path: Path) -> None:
    """Inline functions are drawn from those of find(1)'s path."""
    names = drawn(guest)
    program = tmp_path / "inline.d"
    program.write_text(
        "".join(
            f'kinst::{n}:entry {{ @E["{n}"] = count(); }}\n'
            f'kinst::{n}:return {{ @R["{n}"] = count(); }}\n'
            for n in names
        )
        + 'END { printa("E %s %@d\\n", @E); printa("R %s %@d\\n", @R); }\n'
    )
    script = guest_script(tmp_path, "work.sh", f"find /sys/kernel/mm /proc/self >/dev/null\n{WORK}")
    done = guest.trace("-q", "-Z", "-s", str(program), "-c", "work.sh", copy=[script])
    found = tables(done.out)
    entered = [name for name in names if ("E", name) in found]
    assert len(entered) >= 25 and sum(found["E", name] for name in entered) > 1000
    # Calls that were between entry and return at the start or the end.
    apart = {name: in_flight(name, found) for name in entered if in_flight(name, found)}
    assert not {name for name, n in apart.items() if abs(n) > 2}, apart
    assert len(apart) <= len(entered) // 10, apart


@pytest.mark.slow
def test_a_module(guest: Guest) -> None:
    """Functions and sections of a module are read from the kernel.

    dummy_xmit runs once for each packet that the device reports as sent, and its caller is as in
    the debug files.
    """
    done = guest.trace(
        "-v", "--module", "dummy",
        "-n", "fbt:dummy:dummy_xmit:entry { @[func(caller)] = count(); }",
        "-n", "kinst:dummy:dummy_xmit: { @all[probefunc] = count(); }",
        "-c", TRAFFIC, copy=[],
    )  # fmt: skip
    sent, found = int(done.guest), counts(done.out)
    ((caller, entered),) = ((key[0], n) for key, n in found.items() if "`" in key[0])
    # A packet may leave after the two counters are read and before the trace ends.
    assert 0 < sent <= entered <= sent + 5
    assert caller.startswith("vmlinux`dev_hard_start_xmit")
    assert found["dummy_xmit",] > 5 * entered
    assert "kernel text is as before" in done.err


@pytest.mark.slow
def test_locals_are_as_gdb_says(guest: Guest) -> None:
    """Pairs of an instruction and a variable, drawn at random in functions that run."""
    symbols = open_elf(guest.kernel.debug).symbols
    names = [n for n in NAMES.read_text().split() if len(symbols.indexes(n)) == 1]
    seed = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")
    workload = guest.program("workload", guest.isa)
    pairs = compare(guest.kernel, workload, names, PAIRS, seed, print, guest.isa)
    print(report(pairs))
    outcomes = [pair.outcome for pair in pairs]
    assert len(outcomes) == PAIRS
    assert "different" not in outcomes
    assert outcomes.count("equal") > PAIRS // 4
