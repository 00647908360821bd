"""--live's module by itself, in a guest: sites that are made by hand, of each kind that it plants.

All of --live is in test_live.py, which is slow: starting kinst in a guest takes a minute.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from kinst.machines.live.set_up import SOURCES
from tests.vm.command import Result
from tests.vm.live.live_guest_run import run_in_guest
from tools.kernel_headers import module_for

pytestmark = pytest.mark.vm
SCRIPT = "-m tests.vm.live.live_module_in_guest"
FUNCTION, READS = "vfs_read", 2000
LEAST_PART = 0.75  # of a timer's periods that are counted
# These must not be in the kernel's log.
BAD = re.compile(r"BUG|WARNING|Oops|general protection|Call Trace")


def pushes(debug: Path) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Return offset and size of the instructions that push a register at the function's entry, and
    of the next one, by objdump."""
    words = ["objdump", "-d", f"--disassemble={FUNCTION}", "-w", str(debug)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found, start = [], 0
    for line in said.splitlines():
        one = re.match(r"\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*(\S+)", line)
        if one is None:
            continue
        address, size, name = int(one[1], 16), len(one[2].split()), one[3]
        start = start or address
        if name == "push":
            found.append((address - start, size))
        elif found:
            return found, (address - start, size)
    raise AssertionError(said[:1000])


@pytest.fixture(scope="module")
def found(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("live-module")
    release = prepared.debug.name.removeprefix("vmlinux-")
    (module,) = module_for("amd64", release, SOURCES, folder / "module")
    entry, behind = pushes(prepared.debug)
    run, size = [], 0
    for _, length in entry:
        if size < 5:
            run.append(length)
            size += length
    assert len(run) > 1 and size >= 5
    words = (
        sys.executable, SCRIPT, module, FUNCTION, reads,
        f"{entry[0][0]}:{','.join(map(str, run))}", f"{behind[0]}:{behind[1]}",
    )  # fmt: skip
    done = run_in_guest(prepared.release, folder, f"{' '.join(map(str, words))} >{folder}/out")
    return judged(done, folder / "out")


def judged(done: Result, out: Path) -> dict[str, object]:
    text = out.read_text() if out.exists() else ""
    assert text, done
    return dict(json.loads(text))


def test_hits_of_a_jump_a_run_and_a_trap_are_counted(found: dict[str, list[int]]) -> None:
    assert found["planted"] == [True, True, True]
    for count in found["counts"]:
        # The processes that start and end the program read, too.
        assert READS <= count < READS + 100, found["counts"]


def test_all_is_as_before(found: dict[str, object]) -> None:
    assert found["left"] == 0
    assert found["same"] and found["back"]
    assert found["led"]  # breakpoints came directly to it meanwhile
    log = str(found["log"])
    assert not BAD.search(log), log[-3000:]


def test_calls_of_a_timer_that_were_missed_are_counted(found: dict[str, list[float]]) -> None:
    """A timer's code takes longer than its period.

    Calls plus missed calls are as many as the periods in the time that passed, which is between
    `least` and `most` seconds.  A CPU that has had no time for a call when the timer is stopped
    does not count its last periods: a small part of them all, even on a busy host.  The calls alone
    are at most half of them.
    """
    calls, missed, least, most, cpus, period = found["timer"]
    assert calls > 0 and missed > 0
    periods = calls + missed
    assert periods > LEAST_PART * cpus * least * 1e9 / period, found["timer"]
    assert periods <= cpus * (most * 1e9 / period + 1), found["timer"]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("not several", "no such instructions"),
        ("only one", "no such instructions"),
        ("changed", "changed it"),
        ("no start", "no such instructions"),
        ("overlapping", "overlap"),
        ("no handler", "no jump into scratch and no breakpoint"),
    ],
)
def test_what_is_wrong_is_refused(found: dict[str, dict[str, str]], what: str, why: str) -> None:
    assert why in found["told"][what]
    assert found["untouched"]
