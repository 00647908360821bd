"""A kernel that complains that it makes no progress: kinst ends the program if its probes are the
cause, and only then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinst.consumer.rings import Rings
from kinst.core.machine import Complaint
from kinst.isa import load
from kinst.session import tracee
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import Traced, trace

PROGRAM = 'kinst::work:0 { @ = count(); } END { printf("over\\n"); }'
WORK = [Call("exercise", (n,), n % 2) for n in range(3)]
LOCKUP = Complaint("hang", "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!")


def complaining(monkeypatch: pytest.MonkeyPatch, share: float, *options: str) -> Traced:
    """Trace while the kernel complains, with this share of a CPU's time going into probes."""
    monkeypatch.setattr(tracee, "share_in_probes", lambda *_: share)
    machine = FakeMachine("amd64")
    before = machine.text
    machine.warnings.append(LOCKUP)
    done = trace(
        machine, PROGRAM, WORK, settings=dict.fromkeys(options, ""), command=False, timeout=2.0
    )
    assert machine.text == before
    return done


def test_probes_that_leave_no_time_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    done = complaining(monkeypatch, 0.85)
    assert done.status == 1
    said = "Abort due to systemic unresponsiveness: 85% of a CPU's time went into probes"
    assert any(said in line for line in done.said), done.said
    assert any("soft lockup" in line for line in done.said)
    assert "over" in done.out  # END fires, and the counts so far are shown


@pytest.mark.parametrize(("share", "option"), [(0.02, "quiet"), (0.85, "destructive")])
def test_the_program_goes_on(monkeypatch: pytest.MonkeyPatch, share: float, option: str) -> None:
    """The program goes on if the kernel is stuck in code of its own, and with -w, as with
    dtrace(1)."""
    done = complaining(monkeypatch, share, option)
    assert done.status == 0
    assert any("soft lockup" in line for line in done.said)
    assert not any("unresponsiveness" in line for line in done.said)


def test_errors_that_came_too_fast_for_any_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = iter([([], 5)])
    monkeypatch.setattr(Rings, "faults", lambda _rings, _slot: next(kept, ([], 0)))
    done = trace(FakeMachine("amd64"), PROGRAM, WORK)
    assert [line for line in done.said if "more errors" in line] == [
        "kinst: 5 more errors on CPU 0, before these"
    ]
    assert "over" in done.out


class Cpus:
    """A target of two CPUs, of which the second is at each of these addresses by turns."""

    cpus = 2

    def __init__(self, *places: int) -> None:
        self.running = True
        self._places: Iterator[int] = iter(places * tracee.SAMPLES)

    def stop(self) -> None:
        assert self.running
        self.running = False

    def resume(self) -> None:
        assert not self.running
        self.running = True

    def registers(self, cpu: int) -> dict[str, int]:
        assert not self.running
        return {"rip": next(self._places) if cpu else 0x999}


def test_the_share_is_of_the_cpu_that_is_there_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracee, "APART", 0.0)
    target = Cpus(0x1000, 0x1FFF, 0x2000, 0xFFF)
    found = tracee.share_in_probes(target, load("amd64"), 0x1000, 0x2000)  # type: ignore[arg-type]
    assert found == 0.5
    assert target.running
