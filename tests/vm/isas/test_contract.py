"""Contract of every instruction set: kinst's machine for it boots, and counts, values and restored
text are right.

test_kprobes.py, test_inline.py, test_endings.py and test_stub.py test more of the contract.
Programs for the guest are cross-compiled.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.vm.command import counts, guest_script, warnings
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

READS = 100_000
MANY = 1_000_000
NAMES = ROOT / "tests/vm/functions.txt"
# Functions that every timer tick, wake-up and lock executes.  If each instruction is a trap
# (riscv64) and the host is busy, a guest with probes at all of them may have little time for
# anything else, so they are left to the slow tests.
EVERYWHERE = re.compile(
    r"_raw_spin_lock|update_(curr|load_avg)|task_tick_fair|__schedule|schedule|try_to_wake_up"
    r"|ttwu_do_activate|(pick_next|put_prev|enqueue|dequeue)_task_fair|select_task_rq_fair"
    r"|set_next_entity"
)


@pytest.mark.parametrize(
    "way, count",
    [
        ("auto", READS), ("trap", READS), ("stop", 50),
        pytest.param("auto", MANY, marks=pytest.mark.slow),
        pytest.param("trap", MANY, marks=pytest.mark.slow),
        pytest.param("stop", 1000, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_reads_are_counted_exactly(guest: Guest, way: str, count: int) -> None:
    """Count the entries of two functions that each read(2) calls once, made by its own process.

    The clause also adds up the third argument, which is 1.
    """
    done = guest.trace(
        "-v", "-x", f"plant={way}", "-n",
        "fbt::vfs_read:entry, kinst::ksys_read:0 { @[execname, probefunc] = count(); }"
        'fbt::vfs_read:entry /execname == "reads"/ { @n[arg2] = count(); }',
        "-c", f"reads {count}", copy=[guest.reads()],
    )  # fmt: skip
    found = counts(done.out)
    assert found["reads", "vfs_read"] == found["reads", "ksys_read"] == count
    assert found["1",] == count
    assert "drop" not in done.err, done.err
    if way != "stop":
        assert "kernel text is as before" in done.err


def test_the_caller_of_every_instruction(guest: Guest) -> None:
    """ksys_read calls vfs_read for read(2), so it is the caller at every instruction."""
    done = guest.trace(
        "-q", "-n",
        'kinst::vfs_read: /execname == "reads"/ { @[probename, func(caller)] = count(); }',
        "-c", "reads 100", copy=[guest.reads()],
    )  # fmt: skip
    found = counts(done.out)
    assert len(found) > 30
    assert {name for _, name in found} == {"vmlinux`ksys_read"}
    assert set(found.values()) == {100}


@pytest.mark.parametrize(
    "guest",
    ["riscv64", *(pytest.param(isa, marks=pytest.mark.slow) for isa in ("amd64", "arm64"))],
    indirect=True,
)
def test_every_instruction_of_many_functions(guest: Guest, tmp_path: Path) -> None:
    """All are planted at once under a workload that checks its results.

    Nothing breaks, the kernel's log has no new warning, and all text is restored.
    """
    names = [name for name in NAMES.read_text().split() if not EVERYWHERE.fullmatch(name)]
    functions = guest.functions(names)
    assert len(functions) > 150
    script = guest_script(
        tmp_path,
        "all.sh",
        "echo ==before; dmesg -r; echo ==work; workload 3; echo ==after; dmesg -r",
    )
    program = ", ".join(f"kinst::{name}:" for name in functions)
    done = guest.trace(
        "-v", "-n", f"{program} {{ @[probefunc] = count(); }}", "-c", "all.sh",
        copy=[guest.program("workload", guest.isa), script],
    )  # fmt: skip
    (matched,) = re.findall(r"matched (\d+) probes$", done.err, re.M)
    assert int(matched) > 20_000
    before, _, rest = done.guest.partition("==work\n")
    work, _, after = rest.partition("==after\n")
    assert work.rstrip().endswith("workload done"), work
    assert warnings(after) == warnings(before), after
    assert "kernel text is as before" in done.err
    assert counts(done.out)["vfs_read",] > 0


def test_entries_and_returns_balance(guest: Guest) -> None:
    done = guest.trace(
        "-q", "-n",
        'fbt::ksys_read:entry, fbt::ksys_read:return, fbt::vfs_read:entry, fbt::vfs_read:return '
        '/execname == "reads"/ { @[probefunc, probename] = count(); }',
        "-c", "reads 1000", copy=[guest.reads()],
    )  # fmt: skip
    found = counts(done.out)
    for function in ("ksys_read", "vfs_read"):
        assert found[function, "entry"] == found[function, "return"] == 1000
