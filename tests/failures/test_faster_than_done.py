"""Work that arrives faster than kinst does it: samples, ticks, output of the command.

The deadline, signals, the end of the command and exit() still end the trace, and missed work is
reported.
"""

from __future__ import annotations

import re
import time
from collections import deque

import pytest

from kinst.api import machine as machines
from kinst.core.machine import CommandEnded, MachineEvent
from kinst.session import tracee
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import Traced, trace

STOP = 0.003  # seconds that a stop takes
PERIOD = 1 / 997  # seconds of the probe below: less than that
SAMPLES = "profile-997 { @samples = count(); @work = count(); }"
PATIENCE = 60.0  # seconds after which a trace is hanging
WORK = [Call("exercise", (n,), n % 2) for n in range(3)]


class SlowMachine(FakeMachine):
    """A machine that takes a while to stop, and whose command needs it to run for `needs` seconds.

    Attributes:
        stood: seconds between each stop and the following resume; the first time, until the trace
            began.
        ran: seconds that it ran.
    """

    def __init__(self, needs: float = 1e9) -> None:
        super().__init__("amd64")
        self.needs, self.stood, self.ran = needs, [0.0], 0.0
        self._began = self._changed = time.monotonic()

    def _count(self) -> None:
        now = time.monotonic()
        took, self._changed = now - self._changed, now
        if self.running:
            self.ran += took
        else:
            self.stood[-1] += took

    def stop(self) -> None:
        assert time.monotonic() < self._began + PATIENCE, "the trace does not end"
        if self.running:
            self._count()
            self.stood.append(0.0)
            super().stop()
            time.sleep(STOP)

    def resume(self) -> None:
        self._count()
        super().resume()

    def wait(self, timeout: float) -> MachineEvent | None:
        event = super().wait(min(timeout, 0.001))
        self._count()
        if self.commands and self.ran > self.needs:
            return CommandEnded(7)
        return None if isinstance(event, CommandEnded) else event

    def rests(self) -> bool:
        """Return whether it ran for at least a quarter of the time for which it stood. The longest
        stop does not count: a busy host may take the CPU away for a second."""
        *others, _ = sorted(self.stood[1:])
        return self.ran > 0.25 * sum(others)


def missed(done: Traced, probe: str) -> int:
    found = re.findall(
        r"kinst: (\d+) firings? of (\S+) w\w+ missed(?: on each CPU)?: ", "\n".join(done.said)
    )
    assert {name for _, name in found} <= {probe}
    return sum(int(count) for count, _ in found)


def ended(machine: SlowMachine, program: str, *, command: bool = False, **request: float) -> Traced:
    before = machine.text
    done = trace(machine, program, WORK, command=command, **request)
    assert machine.text == before
    return done


def test_the_deadline_ends_samples_that_take_longer_than_their_period() -> None:
    machine = SlowMachine()
    began = time.monotonic()
    done = ended(machine, SAMPLES, timeout=1.0)
    took = time.monotonic() - began
    assert 1.0 <= took < PATIENCE
    assert done.status == 0
    # Every period of the trace is a firing on each CPU or is reported as missed.
    fired = int(done.lines[0]) / machine.cpus
    assert fired > 10
    told = fired + missed(done, "profile:::profile-997")
    assert 0.9 / PERIOD < told < 1.1 * took / PERIOD


def test_the_command_runs_to_its_end_beside_samples() -> None:
    """The machine runs for about as long as it is stopped."""
    machine = SlowMachine(needs=0.3)
    done = ended(machine, SAMPLES, command=True)
    assert done.status == 7
    assert len(machine.stood) > 10
    assert machine.rests()


def test_several_samplers_share_the_rest() -> None:
    machine = SlowMachine(needs=0.3)
    program = " ".join(f"profile-{rate} {{ @[{rate}] = count(); }}" for rate in (997, 499, 293))
    done = ended(machine, program, command=True)
    assert done.status == 7
    assert machine.rests()


def test_a_signal_ends_samples() -> None:
    machine = SlowMachine()
    done = ended(machine, SAMPLES + " BEGIN { trace(1); } END { trace(2); }", seconds=0.5)
    assert "2" in done.out.split()


def test_records_and_ticks_go_on_beside_samples() -> None:
    machine = SlowMachine()
    program = SAMPLES + " kinst::work:0 { n++; trace(1); } tick-10ms /n > 0/ { exit(5); }"
    done = ended(machine, program, command=True)
    assert done.status == 5
    assert set(done.out.split()[0]) == {"1"}  # the aggregation follows


def test_a_tick_that_takes_longer_than_its_period_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine does not stop: the clause itself is slow."""
    real, began = tracee.HostRunner.fire, time.monotonic()

    def slow(self: tracee.HostRunner, *arguments: object) -> None:
        assert time.monotonic() < began + PATIENCE, "the trace does not end"
        time.sleep(STOP)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tracee.HostRunner, "fire", slow)
    machine = SlowMachine()
    done = ended(machine, "tick-1ms { @ = count(); }", timeout=0.5)
    assert int(done.lines[0]) > 10
    assert missed(done, "profile:::tick-1ms") > 10


class Endless(deque[bytes]):
    """Output of a command that writes another piece each time that one is taken."""

    def __init__(self) -> None:
        super().__init__([b"first\n"])
        self._until = time.monotonic() + PATIENCE

    def popleft(self) -> bytes:
        assert time.monotonic() < self._until, "the trace does not end"
        self.append(b"more\n")
        return super().popleft()


def test_output_that_never_ends_does_not_hold_up_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "deque", Endless)
    done = ended(SlowMachine(), "tick-10ms /n++ == 3/ { exit(5); }")
    assert done.status == 5
