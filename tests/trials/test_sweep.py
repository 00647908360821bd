"""Sweeps on machines that pretend to have guests: order, replaced guests, repeats and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinst.core.errors import KinstError
from kinst.trials import guest_run, sweep
from kinst.trials.failures import usual_values
from kinst.trials.injection import Injection, TargetFunctions, in_order
from kinst.trials.outcomes import Try
from kinst.trials.programs import LISTING
from kinst.trials.results_file import ResultsFile
from kinst.trials.sweep import REPEATS, Baseline, Worker, run_sweep
from tests.trials.pretended_guest import CALLS, NULL, Fault, PretendedMachines

TARGETS = TargetFunctions({usual_values("ENOMEM", 12)["pointer"]: [("", "kmalloc")]}, ())


def injection(machine: Any) -> Injection:
    return Injection(machine, TARGETS, ["m:f"])


def swept(
    machines: PretendedMachines, results: ResultsFile | None = None, jobs: int = 1
) -> dict[int, Try]:
    """Run a whole sweep, and return the results by number."""
    machine = machines.open()
    what = injection(machine)

    def worker(first: Any = None) -> Worker:
        return Worker(machines.open, what, "cmd", lambda number: None, first)

    workers = [worker(machine), *(worker() for _ in range(jobs - 1))]
    base = workers[0].baseline(0)
    numbers = in_order(what.calls(base.run), first=False)
    results = results or ResultsFile("", {})
    run_sweep(workers, numbers, base, results, lambda one: None)
    assert machines.opened == machines.closed
    return results.tries


def test_the_baseline_lists_the_calls() -> None:
    machine = PretendedMachines({}).open()
    what = injection(machine)
    base = Worker(lambda: machine, what, "cmd", lambda number: None).baseline(0)
    calls = what.calls(base.run)
    assert [one.number for one in calls] == list(range(1, CALLS + 1))
    assert calls[0].stack == calls[1].stack == ("kmalloc+0x0", "f+0x8")
    assert (base.status, base.limit) == (0, sweep.LEAST_LIMIT)
    assert in_order(calls, first=False) == [1, 3, 5, 2, 4, 6]
    assert in_order(calls, first=True) == [1, 3, 5]


def test_no_fault() -> None:
    machines = PretendedMachines({})
    tries = swept(machines)
    assert sorted(tries) == list(range(1, CALLS + 1))
    assert {one.outcome for one in tries.values()} == {"failed"}
    assert tries[1].stack[1] == "f+0x8" and not any(one.again for one in tries.values())
    # All tries in the guest of the baseline, in one trace.
    assert machines.scripts == [(1, [LISTING, LISTING]), (1, [1, 3, 5, 2, 4, 6])]


def test_an_oops_is_repeated_in_a_new_guest_and_the_rest_goes_on_in_another() -> None:
    machines = PretendedMachines({3: Fault(log=NULL)})
    tries = swept(machines)
    assert [(n, one.outcome, one.again) for n, one in sorted(tries.items()) if one.is_fault] == [
        (3, "oops", "oops")
    ]
    assert len(tries) == CALLS and tries[3].title == NULL
    assert machines.scripts[1:] == [(1, [1, 3, 5, 2, 4, 6]), (2, [3]), (3, [5, 2, 4, 6])]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(gone="panic", log="Kernel panic - not syncing: x"), "panic"),
        (Fault(gone="hang"), "hang"),
        (Fault(hang="second"), "hang"),
        (Fault(second=1), "broken"),
        (Fault(log="WARNING: CPU: 0 PID: 1 at f.c:1 f"), "warn"),
    ],
)
def test_other_faults(fault: Fault, outcome: str) -> None:
    tries = swept(PretendedMachines({4: fault}))
    assert (tries[4].outcome, tries[4].again) == (outcome, outcome)
    assert sorted(tries) == list(range(1, CALLS + 1))
    assert {one.outcome for n, one in tries.items() if n != 4} == {"failed"}


def test_a_guest_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_run, "_AFTER_HANG", 0.1)
    tries = swept(PretendedMachines({2: Fault(silent=True)}))
    assert (tries[2].outcome, tries[2].again) == ("hang", "hang")
    assert "soft lockup" in tries[2].title


def test_nothing_runs_after_an_interrupt() -> None:
    """A try that is over need not be repeated: its machine is about to be closed."""
    machines = PretendedMachines({3: Fault(log=NULL)})
    what = injection(machines.open())
    worker = Worker(machines.open, what, "cmd", lambda number: worker.stop())
    with pytest.raises(KinstError, match="interrupted"):
        worker.tries([3], Baseline(guest_run.GuestRun(), 0, 10))
    assert [numbers for _, numbers in machines.scripts] == [[3]]


def test_other_errors_are_repeated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with their guest: one trace repeats all of a chunk."""
    monkeypatch.setattr(Injection, "_size", lambda *_: 4)
    machines = PretendedMachines({2: Fault(error=22), 3: Fault(error=22), 5: Fault(grown={"a": 1})})
    tries = swept(machines)
    assert [(n, one.outcome, one.again) for n, one in sorted(tries.items()) if one.is_fault] == [
        (2, "errno", "errno"), (3, "errno", "errno"), (5, "leak", "leak"),
    ]  # fmt: skip
    assert (1, [3, 2]) in machines.scripts and machines.opened == 1


def test_a_fault_that_does_not_occur_again_is_told_so() -> None:
    tries = swept(PretendedMachines({5: Fault(log=NULL, times=1)}))
    assert (tries[5].outcome, tries[5].again) == ("oops", "failed")


def test_leaks() -> None:
    """A cache that grows in each repeat has leaked; one that grew once, or in one series of repeats
    only, has not."""
    faults = {
        1: Fault(grown={"kmalloc-64": 1}),
        2: Fault(grown={"dentry": 1}, times=1),
        3: Fault(grown={"pid": 1}, times=1 + REPEATS),
    }
    machines = PretendedMachines(faults)
    tries = swept(machines)
    assert tries[1].outcome == tries[1].again == "leak" and tries[1].grown == {"kmalloc-64": 1}
    assert [(tries[n].outcome, tries[n].grown) for n in (2, 3)] == [("failed", {})] * 2
    series = {n: machines.scripts.count((1, [n] * REPEATS)) for n in (1, 2, 3)}
    assert series == {1: 2, 2: 1, 3: 2} and machines.opened == 1


def test_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Injection, "_size", lambda *_: 4)
    tries = swept(PretendedMachines({6: Fault(error=19)}))
    assert (tries[6].outcome, tries[6].again) == ("errno", "errno")
    assert tries[6].title == "f returned ENODEV, not ENOMEM"


def test_results_go_on_where_they_ended(tmp_path: Path) -> None:
    path, key = str(tmp_path / "results"), {"command": "cmd"}
    first = ResultsFile(path, key)
    first.add(Try(1, "survived"))
    first.add(Try(3, "oops", stack=("kmalloc+0x0",)))
    with open(path, "a") as file:
        file.write('{"number": 5, "outc')  # killed while it wrote
    machines = PretendedMachines({})
    tries = swept(machines, ResultsFile(path, key))
    assert machines.scripts[1:] == [(1, [5, 2, 4, 6])]
    assert tries[3].outcome == "oops" and len(tries) == CALLS
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [line.get("number") for line in lines] == [None, 1, 3, 5, 2, 4, 6]
    with pytest.raises(KinstError, match=r"results of another sweep \(other command\)"):
        ResultsFile(path, {"command": "another"})
    Path(path).write_text("no results\n")
    with pytest.raises(KinstError, match="not a file of results"):
        ResultsFile(path, key)


def test_two_guests_at_once() -> None:
    machines = PretendedMachines({3: Fault(log=NULL)})
    tries = swept(machines, jobs=2)
    assert len(tries) == CALLS and tries[3].outcome == "oops"
    assert {number for number, _ in machines.scripts} >= {1, 2}


def test_an_error_ends_the_sweep() -> None:
    machines = PretendedMachines({})
    machine = machines.open()
    what = injection(machine)
    base = Worker(machines.open, what, "cmd", lambda number: None, machine).baseline(0)

    def broken() -> Any:
        raise KinstError("no memory")

    worker = Worker(broken, what, "cmd", lambda number: None)
    with pytest.raises(KinstError, match="no memory"):
        run_sweep([worker], [1], base, ResultsFile("", {}), lambda one: None)


def test_a_command_that_hangs_by_itself() -> None:
    machines = PretendedMachines({LISTING: Fault(hang="first")})
    worker = Worker(machines.open, injection(machines.open()), "cmd", lambda number: None)
    with pytest.raises(KinstError, match="does not end in the same way"):
        worker.baseline(0)


def test_a_time_limit_is_the_users() -> None:
    machine = PretendedMachines({}).open()
    base = Worker(lambda: machine, injection(machine), "cmd", lambda number: None).baseline(33)
    assert isinstance(base, Baseline) and base.limit == 33
