"""--live, on the kernel that kinst runs on, but in a guest with this machine's files.

So it is never the machine that the tests run on.  live_in_guest.py makes the checks, all in one
guest and one process; this module judges them.  The same kernel in a guest of kinst's shows what
must be counted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kinst.kernels.fetch import prepared as prepared_kernel
from tests import ROOT
from tests.vm.command import counts, kinst
from tests.vm.live.live_guest_run import run_in_guest
from tools.kernel_headers import module_for

pytestmark = [pytest.mark.vm, pytest.mark.slow]
READS = int(os.environ.get("KINST_TEST_LIVE_READS", "1000000"))
CHOSEN = os.environ.get("KINST_TEST_LIVE_CHECKS", "").split()  # all
CPUS = os.environ.get("KINST_TEST_LIVE_CPUS", "2")
# "5.10", or a folder in which one was built; by default that of the other tests.
KERNEL = os.environ.get("KINST_TEST_LIVE_KERNEL", "")
BUILD = Path(KERNEL) if "/" in KERNEL else None
BOOTED = ("--build" if BUILD else "--kernel", KERNEL) if KERNEL else ()
SCRIPT = "-m tests.vm.live.live_in_guest"
LIVEPATCH = ROOT / "tests/programs/livepatch"


class Found(dict[str, Any]):
    """Results of the selected checks, by name."""

    def __missing__(self, name: str) -> Any:
        if CHOSEN and name not in CHOSEN:
            pytest.skip(f"the check {name} was not asked for")
        pytest.fail(f"the check {name} was not made: the guest did not come to it")


@pytest.fixture(scope="module")
def found(
    reads: Path,
    guest_program: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Found:
    if BUILD is not None:
        debug = BUILD / "vmlinux"
        release = (BUILD / "include/config/kernel.release").read_text().strip()
    else:
        prepared = prepared_kernel("amd64", KERNEL)
        assert prepared is not None, "`kinst --kernel VERSION` fetches it"
        debug, release = prepared.debug, prepared.release
    folder = tmp_path_factory.mktemp("live")
    out = folder / "out"
    (patch,) = module_for("amd64", release, LIVEPATCH, folder / "livepatch", BUILD)
    programs = (reads, guest_program("live_requests"), guest_program("lateness"))
    words = (sys.executable, SCRIPT, debug, READS, *programs, *CHOSEN)
    line = f"KINST_TEST_LIVEPATCH={patch} {' '.join(map(str, words))} >{out}"
    done = run_in_guest(release, folder, line, "--cpus", CPUS, *BOOTED, build=BUILD)
    lines = out.read_text().splitlines() if out.exists() else []
    print(done, *lines, f"load {os.getloadavg()}", sep="\n")
    return Found({name: result for name, result, _ in map(json.loads, lines)})


def test_reads_are_counted_exactly_by_each_way(found: Mapping[str, Any]) -> None:
    assert found["exact"]["jump"] == READS
    assert found["exact"]["trap"] == READS
    assert found["exact"]["target"] == [[1, 1, 50]]


def test_every_instruction_is_counted_as_in_a_guest_of_kinsts(
    found: Mapping[str, Any], reads: Path
) -> None:
    program = 'kinst::vfs_read: /execname == "reads"/ { @[probename] = count(); }'
    run = kinst("-q", *BOOTED, "-n", program, "-c", "reads 1000", copy=[reads])
    there = counts(run.good().out)
    assert found["exact"]["all"] == {key[0]: count for key, count in there.items()}
    # Other processes in the guest read meanwhile: a few that start and end.
    wanted = READS // 10
    for every in found["exact"]["every"]:
        for place in found["exact"]["all"]:
            assert wanted <= every[place] <= wanted + 200, (place, every)


def test_each_cpu_is_sampled_at_its_rate(found: Mapping[str, Any]) -> None:
    seconds, rows, same, stacks = found["sampled"]
    assert len(rows["cpus"]) == int(CPUS)
    for _, count in rows["cpus"]:
        # A guest whose host is busy loses ticks, but never has too many.
        assert 0.02 * 97 * seconds < count < 1.1 * 97 * seconds + 2
    # Each is either in the kernel or in user mode, and "reads" is in both.
    assert {(kernel, user) for kernel, user, _ in rows["where"]} == {(0, 1), (1, 0)}
    assert [right for right, _ in rows["pid"]] == [1]
    assert stacks > 5
    assert same == stacks


def test_what_cannot_be_is_refused_in_a_line(found: Mapping[str, Any]) -> None:
    said = found["refused"]
    assert "cannot be stopped" in said["stop"]
    assert "one at a time" in said["second"]
    assert said["mode"] == "0o600"
    assert said["other user"] == "Permission denied"
    assert said["rmmod"] == "Resource temporarily unavailable"


def test_ten_thousand_sites_take_three_seconds(found: Mapping[str, Any]) -> None:
    sites, _, rounds, same = found["many"]
    told(found["many"])  # how late a thread was also depends on the host, so it is not checked
    assert sites > 10_000
    for way in (0, 1):  # to plant, to unplant
        assert min(times[way] for times, *_ in rounds) * 10_000 / sites < 3.0
    assert same


def told(many: tuple[int, int, Any, bool]) -> None:
    sites, exits, rounds, _ = many
    print(f"{sites} sites, {exits} exits, load {os.getloadavg()}")
    for (planted, removed), without, planting in rounds:
        print(f"planted in {planted:.2f} s, unplanted in {removed:.2f} s; a thread was late, ms, by"
              f" {without} with nothing to do, and by {planting} meanwhile")  # fmt: skip


def test_a_process_that_runs_is_followed(found: Mapping[str, Any]) -> None:
    counted, reason, status, said = found["followed"]
    assert counted == {"reads": 300}
    assert (reason, status) == ("command", 0)
    assert "no such process" in said


def test_its_end_at_any_moment_leaves_nothing(found: Mapping[str, Any]) -> None:
    ways, taken_out, seen, wrong, same = found["killed"]
    assert min(ways.values()) > 0
    assert taken_out == 0
    assert seen > 0  # it was planted when it was killed
    assert wrong == 0
    assert same


def test_who_is_silent_is_taken_out(found: Mapping[str, Any]) -> None:
    same, told = found["silent"]
    assert len(same) >= 2
    assert all(same)
    assert told


def test_malformed_requests_change_nothing(found: Mapping[str, Any]) -> None:
    made, accepted, same = found["malformed"]
    assert made >= 20_000, made
    assert not accepted
    assert same


def test_the_module_is_there_as_long_as_kinst(found: Mapping[str, Any]) -> None:
    assert found["unloaded"] == [False, True, False]


def test_the_kernel_complains_of_nothing(found: Mapping[str, Any]) -> None:
    assert found["log"] == []


def test_the_kernels_own_probes_on_the_same_function(found: Mapping[str, Any]) -> None:
    """The second prober may be refused; no prober's bytes are lost."""
    assert len({name for name, *_ in found["orders"]}) == 6
    for name, order, said, changed in found["orders"]:
        print(name, order, said)
        assert not changed, (name, order, said, changed)


def test_what_is_left_to_ftrace_has_its_effect(found: Mapping[str, Any]) -> None:
    """-x plant=no-callsite lets no prober be refused, in any order."""
    assert len({name for name, *_ in found["left_to_ftrace"]}) == 5
    for name, order, said, changed in found["left_to_ftrace"]:
        assert not said and not changed, (name, order, said, changed)


def test_cpus_that_go_and_come(found: Mapping[str, Any]) -> None:
    reads, said, ages = found["changes"]["turned_off"]
    assert reads == 3 * (READS // 10)
    assert said[-1] == CPUS and str(int(CPUS) - 1) in said
    # Samples of each CPU until the end, also of the one that was off.
    assert sorted(ages) == [str(cpu) for cpu in range(int(CPUS))]
    assert max(ages.values()) < 2.0, ages


def test_a_machine_that_sleeps(found: Mapping[str, Any]) -> None:
    reads, said, log = found["changes"]["slept"]
    assert all(any(what in line for line in log) for what in ("suspend entry", "suspend exit"))
    assert said[-1] == CPUS
    assert reads == 2 * (READS // 10)


def test_probes_on_what_writes_and_meets_probes(found: Mapping[str, Any]) -> None:
    path = found["changes"]["on_its_own_path"]
    for way in ("auto", "trap"):
        sites, reads, hit = path[way]
        assert sites > 100 and reads == READS // 10 and hit, (way, path[way])
    assert all(said != "planted" for name, said in path.items() if name not in ("auto", "trap"))


def test_probes_that_leave_no_time_are_switched_off(found: Mapping[str, Any]) -> None:
    said, same = found["overloaded"]
    assert "has heard nothing of kinst for 5 s" in said and "no time" in said, said
    assert same


def test_all_at_random(found: Mapping[str, Any]) -> None:
    """Run for a minute; for longer with KINST_TEST_SOAK."""
    done, wrong, same = found["soaked"]
    print(done)
    assert done and not wrong and same, (done, wrong)
