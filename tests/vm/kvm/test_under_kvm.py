"""kinst under KVM: exact counts in guests that kinst boots, and in guests that plain QEMU runs.

All tests share one guest that has a /dev/kvm (rig.py), in which kinst runs and traces guests of its
own.  Nothing was tried on a real processor.  TCG's SVM does not intercept int3 (QEMU 7.2 and 10.0,
target/i386/tcg: raise_interrupt2), so breakpoints that QEMU's stub writes into code are not tried.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.vm.kvm.rig import AnyRig, LastingRig, OpenRig

pytestmark = [
    pytest.mark.vm, pytest.mark.full,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the guest's kinst is this host's"),
]  # fmt: skip
# Seconds for which a guest is asked to sleep, or a trace to run; how late its end may be.
SLEEP, LATE = 5, 5
TIMED_OUT = 124  # exit status, as of timeout(1)
# The folder of a guest that is open already, for experiments.
OPEN = os.environ.get("KINST_TEST_RIG", "")
FEW_SECONDS = 600.0  # for a check that takes one minute on an idle host
LEAST_SITES = 40  # of vfs_read, that a read of /dev/zero executes: it has no loop


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyRig]:
    if OPEN:
        yield OpenRig(Path(OPEN))
        return
    made = LastingRig(lambda: tmp_path_factory.mktemp("rig"))
    yield made
    made.close()


Counts = dict[str, tuple[int, Sequence[tuple[str, int]], int]]


def check_ways(counts: Counts) -> None:
    """Check that each instruction that runs was counted once in each read.

    Each read(2) of the program executes the same instructions of vfs_read once.
    """
    assert counts
    for way, (reads, rows, lost) in counts.items():
        assert {count for _, count in rows} == {reads}, (way, rows)
        assert len(rows) > LEAST_SITES or way in ("jump", "stop"), (way, rows)
        assert not lost, way


def check_counts(counts: Counts) -> None:
    """Check counts of all ways."""
    check_ways(counts)
    of_ways = {way: {name for name, _ in rows} for way, (_, rows, _) in counts.items()}
    assert of_ways["auto"] == of_ways["trap"] == of_ways.get("warm", of_ways["auto"])
    assert of_ways["jump"] < of_ways["auto"]  # no jump fits over a short instruction
    assert of_ways["stop"] == {"0"}


def check_attached(found: dict[str, Any], cpus: int, pti: bool) -> None:
    assert (found["cpus"], found["pti"]) == (cpus, pti)
    assert "reads 10 ns" in found["runs on"], found["said"]
    assert not found["changed"]


def check_kills(kills: Sequence[Sequence[Any]]) -> None:
    """Check that most kills came while kinst was at work: a trace on a busy host may take longer
    than others."""
    assert kills
    assert sum(was_killed for _, was_killed, *_ in kills) > len(kills) / 2, kills


# Three minutes on an idle host; guests that freeze are replaced.
@pytest.mark.timeout(3600)
def test_counts_are_exact(rig: AnyRig) -> None:
    # By jump alone and by trap alone: the slow tests.
    found = rig.check("boot", seconds=FEW_SECONDS)
    attached = rig.check("attach", "1", "", "auto stop", seconds=FEW_SECONDS)
    assert OPEN or "KVM: no guest has been started under KVM" in found["before"]
    assert "KVM: a guest has come up" in found["after"]
    assert not found["told"]
    check_counts(found["counts"])
    boots = [text.splitlines() for text in found["boots"]]
    assert boots[0][0] == boots[1][0] and "Run /init" in boots[0][0]  # one boot
    assert all(abs(int(guest) - int(host)) < 60 for _, guest, host in boots)
    assert set(attached["counts"]) == {"auto", "stop"}
    check_ways(attached["counts"])
    check_attached(attached, 1, False)


@pytest.mark.slow
@pytest.mark.parametrize(("cpus", "pti"), [(1, False), (2, False), (1, True), (2, True)])
def test_attached_to_other_guests(rig: AnyRig, cpus: int, pti: bool) -> None:
    found = rig.check("attach", str(cpus), "pti=on" if pti else "", "auto jump trap stop")
    check_counts(found["counts"])
    check_attached(found, cpus, pti)


@pytest.mark.slow
def test_through_the_stub_alone(rig: AnyRig) -> None:
    """--gdb: kinst learns from the stub that the guest runs under KVM."""
    found = rig.check("stub")
    check_ways(found["counts"])
    check_attached(found, 2, True)


@pytest.mark.slow
def test_killed_at_any_moment_while_attached(rig: AnyRig) -> None:
    found = rig.check("killed")
    assert not found["wrong"], found
    check_kills(found["kills"])
    assert any(had_changes for _, _, had_changes in found["kills"]), found
    check_ways(found["counts"])


@pytest.mark.slow
def test_killed_at_any_moment_with_a_guest_of_its_own(rig: AnyRig) -> None:
    found = rig.check("killed boots")
    check_kills(found["kills"])
    check_ways(found["counts"])


@pytest.mark.slow
def test_timers_and_limits(rig: AnyRig) -> None:
    """Firings that came, with those that are told as missed, are those of the trace's time: an
    emulated processor is too slow for all of them.  The guest's time stops while its CPUs are
    stopped for profile-97, which is at most half of the time."""
    found = rig.check("timers")
    assert found["command"][0] == 0
    assert found["timeout"][0] == TIMED_OUT and f"ended after {SLEEP} s, by" in found["timeout"][1]
    for name, (_, text) in found.items():
        begun, first, last, ended = (
            int(re.findall(rf"{word} (\d+)\n", text)[0]) / 1e9
            for word in ("begun", "first", "last", "ended")
        )
        seconds = ended - begun
        assert last - first > SLEEP / 2
        assert SLEEP - 0.5 < seconds < SLEEP * (1 if name == "timeout" else 2) + LATE
        fired = [int(count) for count in re.findall(r"profile-97 \d+ (\d+)\n", text)]
        ticked = [int(count) for count in re.findall(r"tick-1s (\d+)\n", text)]
        assert len(fired) == 2 and min(fired) > 0 and min(ticked) > 0
        for timer, hertz, count in (("profile-97", 97, max(fired)), ("tick-1s", 1, sum(ticked))):
            missed = re.findall(rf"(\S+) firings? of \S*{timer} w", text)
            due = count + sum(int(number.replace(",", "")) for number in missed)
            # Timers begin when the probes have been planted.
            assert hertz * (last - first) - 2 < due < hertz * (seconds + 1), (timer, due, text)


@pytest.mark.slow
def test_folders_batches_and_four_cpus(rig: AnyRig) -> None:
    found = rig.check("folders")
    assert found["cpus"] == 4
    assert {count for _, count in found["rows"]} == {2000} and len(found["rows"]) > LEAST_SITES


@pytest.mark.slow
def test_two_guests_of_one_process(rig: AnyRig) -> None:
    found = rig.check("two")
    assert set(found) == {"1", "2"}
    check_ways(found)


@pytest.mark.slow
def test_live_in_a_guest_under_kvm(rig: AnyRig) -> None:
    check_ways(rig.check("live"))
