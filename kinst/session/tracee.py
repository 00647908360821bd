"""Machine or process that a trace runs on: a planted machine, or only kinst's own process.

Tested by tests/failures and tests/fake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from kinst.consumer.symbols import NO_NAMES, Names
from kinst.core.bodies import DISPLACED
from kinst.core.errors import GoneError, KinstError, TargetError
from kinst.core.isa import Isa
from kinst.core.machine import (
    BootEnded,
    CommandEnded,
    Complaint,
    Gone,
    MachineEvent,
    Stopped,
    Stopping,
)
from kinst.core.probe import Probe
from kinst.session.apply import apply, fill
from kinst.session.command_life import CommandLife
from kinst.session.host_clauses import HostClock, HostRunner, StoppedRunner
from kinst.session.report import Report
from kinst.session.symbols import names_of
from kinst.session.values import EnabledSite, StartedMachine, TracePlan

PANIC_SECONDS = 0.5  # seconds between two checks whether the kernel has panicked
LOOK_SECONDS = 0.005  # seconds between two checks whether the command has ended
SETTLE_SECONDS = 0.02  # seconds for CPUs that were stopped in a clause to leave it

# Number of samples of the CPUs' program counters, and the seconds between two.
SAMPLES, APART = 40, 0.01
# Share of a CPU's samples in probes that is too large.  The kernel's own work at a breakpoint
# surrounds each probe, so far less than half is much.
SHARE = 0.1

IsActive = Callable[[], bool]  # whether clauses run
PlanAgain = Callable[[], tuple[StartedMachine, TracePlan]]


class Tracee(Protocol):
    """Machine or process that a trace runs on.

    Attributes:
        names: lookup of names for recorded addresses.
        gather: copies the counters to scratch; None if CPUs count in scratch.
        command_status: exit status of the guest's command, known once restore() has returned.
        is_guest: whether the machine is a guest that runs kinst's commands and nothing else.
        is_booting: whether the machine's kernel boots during the trace.
        has_fired: whether a stop-planted probe has fired.
        passer: id of a process of kinst in the guest in which clauses do not fire; 0 if there is
            none.
        user_end: end of the addresses that user programs have; 0 if it is not known.
    """

    names: Names
    command_status: int
    is_guest: bool
    is_booting: bool
    has_fired: bool
    user_end: int

    @property
    def passer(self) -> int: ...

    @property
    def gather(self) -> Callable[[], None] | None: ...

    def plant(self, command: str) -> str:
        """Write the patches, start the guest's command, and let the machine run.

        Returns a sentence that names the runs whose sites are planted one by one, and says why;
        "" if there are no such runs. Raises KinstError if nothing is planted.

        Args:
            command: the guest's command, "" without one.
        """
        ...

    def begin_command(self, report: Report) -> TracePlan | None:
        """Start the guest's command after a traced boot, and let the machine run.

        Called for the machine's event CommandReady: the kernel is up, and the machine is stopped.
        If possible, plant the probes anew, as in any kernel that is up. Returns the new plan of the
        trace; None if the plan for the boot stays in use.
        """
        ...

    def fire(self, enabled: EnabledSite, is_active: IsActive) -> None:
        """Run the clauses of a probe that fires in kinst's own process; those of profile-N for each
        CPU.

        Args:
            is_active: returns whether clauses still run.
        """
        ...

    def hit(self, event: Stopped, is_active: IsActive) -> None:
        """Run the clauses of the probes at which the machine has stopped, and let the machine run.

        Args:
            event: the stop.
            is_active: returns whether clauses still run.
        """
        ...

    def wait(self, seconds: float) -> MachineEvent | None:
        """Wait until the machine reports an event, and return it; None after `seconds`."""
        ...

    def last_words(self) -> MachineEvent | None:
        """Return the event that says why the machine itself has turned the clauses off; None if
        there is no such event.
        """
        ...

    def take_missed(self) -> list[tuple[Probe, int]]:
        """Return how many firings the machine's own timers have missed since the last call, by
        probe.
        """
        ...

    def complaints(self) -> list[Complaint]:
        """Return the problems that the kernel has reported on its console since the last call."""
        ...

    def waits_in(self) -> str:
        """Return the kernel function in which the guest's command waits; "" if it is not known."""
        ...

    def share_in_probes(self) -> float:
        """Return the share of its time that a CPU spends in probes, 0 to 1, for the CPU with the
        largest share.
        """
        ...

    def restore(self, gone: Gone | None, report: Report) -> TargetError | None:
        """Restore the kernel's text and let the machine run.  Returns the error, None for success.

        Args:
            gone: the event of a machine that has ended by itself, and cannot be restored; or None.
        """
        ...


class HostAlone:
    """Implementation of Tracee without a machine: kinst's own process runs BEGIN, END and
    timers.
    """

    names = NO_NAMES
    gather = None
    command_status = 0
    is_guest = is_booting = has_fired = False
    passer = user_end = 0

    def __init__(self, plan: TracePlan, isa: Isa) -> None:
        fill(plan)
        self._runner = HostRunner(isa, plan, HostClock(None))

    def plant(self, command: str) -> str:
        return ""

    def begin_command(self, report: Report) -> TracePlan | None:
        """Return None: without a machine there is no command."""
        return None

    def fire(self, enabled: EnabledSite, is_active: IsActive) -> None:
        self._runner.fire(enabled)

    def hit(self, event: Stopped, is_active: IsActive) -> None:
        """Do nothing: without a machine nothing stops."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def last_words(self) -> None:
        return None

    def take_missed(self) -> list[tuple[Probe, int]]:
        return []

    def complaints(self) -> list[Complaint]:
        return []

    def waits_in(self) -> str:
        return ""

    def share_in_probes(self) -> float:
        return 0.0

    def restore(self, gone: Gone | None, report: Report) -> None:
        return None


class PlantedMachine:
    """Implementation of Tracee with a machine, and with the clauses that kinst's own process runs
    for it.
    """

    def __init__(
        self, plan: TracePlan, machine: StartedMachine, plan_again: PlanAgain | None = None
    ) -> None:
        """Write a plan's code and data, without the patches, into a stopped machine.

        Args:
            plan_again: called in a trace of the kernel's boot, once the kernel is up. It returns
                the machine, with its kernel identified anew, and a plan for the rest of the trace.
                There is no such function (None) if `plan` is used for the whole trace.
        """
        self._target = machine.target
        self._plan_again = plan_again
        self._boot_ended = False
        self._take(plan, machine)
        self._sampled = [one.probe for one in plan.placement.sampled]
        self.names = names_of(machine)
        self.command_status = 0
        self.is_guest = machine.target.helpers is not None
        self.user_end = machine.isa.paging.USER_END
        self.is_booting = machine.target.abilities.traces_boot
        self.has_fired = False
        # A machine that kinst has booted reports a panic by itself, with the console's last lines.
        abilities = machine.target.abilities
        self._looks_for_panics = abilities.reads_running and not abilities.runs_commands
        self._panic_at = 0.0  # time of the next check
        self._own_processes = plan.compiled.only == "all"  # whether they are traced too
        self._life: CommandLife | None = None
        self._exited = False  # whether the command has ended and its parent has not been told
        self._early: MachineEvent | None = None  # an event that came instead of the command's start

    def _take(self, plan: TracePlan, machine: StartedMachine) -> None:
        """Write a plan's code and data into the stopped machine, and trace by this plan."""
        self._machine = machine
        self._runner = StoppedRunner(machine, plan)
        self._planted = apply(plan, machine)
        scratch = plan.placed.scratch
        self._code = scratch.address + scratch.text, scratch.address + scratch.size

    @property
    def passer(self) -> int:
        helpers = self._target.helpers
        return 0 if helpers is None else helpers.passer

    @property
    def gather(self) -> Callable[[], None] | None:
        planter = self._target.planter
        return None if planter is None else planter.gather

    def plant(self, command: str) -> str:
        helpers, span = self._target.helpers, self._machine.facts.command_span
        if command and helpers is not None and span is not None and not self._own_processes:
            self._life = CommandLife(self._machine, helpers, span)
            self._early = self._life.begin(self._resume)
            if self._early is not None:
                return ""
            self._runner.clock.stopped()
        told = self._planted.plant()
        if command and self._life is None:
            self._target.start_command()
        self._resume()
        return told

    def begin_command(self, report: Report) -> TracePlan | None:
        plan = None
        if self._plan_again is not None:
            try:
                machine, plan = self._plan_again()
            except KinstError as error:
                report.say(
                    f"kinst: the kernel is up, but each hit still stops the machine: {error}"
                )
            else:
                self._planted.unplant()
                self._take(plan, machine)
                self._planted.plant()
        self._target.start_command()
        self._resume()
        return plan

    def _resume(self) -> None:
        self._runner.clock.resumed()
        self._target.resume()

    def fire(self, enabled: EnabledSite, is_active: IsActive) -> None:
        if enabled.timer is None or not enabled.timer.each_cpu:
            self._runner.fire(enabled)
            return
        self._target.stop()
        self._runner.clock.stopped()
        for cpu in range(self._target.cpus):
            if is_active():
                self._runner.sample(enabled, cpu)
        self._resume()

    def hit(self, event: Stopped, is_active: IsActive) -> None:
        self._runner.clock.stopped()
        probes = self._planted.stopped_at(event.pc)
        if probes:
            self.has_fired = True
            chosen = DISPLACED
            for enabled in probes:
                if is_active():
                    chosen = self._runner.hit(enabled, event.cpu) or chosen
            if chosen == DISPLACED:
                self._target.step_over(event.cpu, event.pc)
            else:
                self._runner.leave(probes[0], event.cpu, chosen)
        self._resume()

    def wait(self, seconds: float) -> MachineEvent | None:
        if self._early is not None:
            return self._early
        deadline = time.monotonic() + seconds
        while self._life is not None:
            left = max(0.0, deadline - time.monotonic())
            event = self._target.wait(min(left, LOOK_SECONDS))
            if event is not None:
                return self._noted(event)
            if self._life.has_ended():
                self._exited = True
                return CommandEnded(0)  # restore() finds its status
            if not left:
                return None
        event = self._target.wait(seconds)
        return self._noted(event if event is not None else self._panic())

    def _panic(self) -> Gone | None:
        """Return Gone if the kernel has panicked. Only for a machine whose console kinst does not
        read, and whose memory it can read while the machine runs."""
        now = time.monotonic()
        if not self._looks_for_panics or now < self._panic_at:
            return None
        self._panic_at = now + PANIC_SECONDS
        why = self._machine.system.panicked()
        return Gone(f"{why} (its console says why)", "", "panic") if why else None

    def _noted(self, event: MachineEvent | None) -> MachineEvent | None:
        if isinstance(event, CommandEnded):
            self.command_status = event.status
        self._boot_ended = self._boot_ended or isinstance(event, BootEnded)
        return event

    def last_words(self) -> MachineEvent | None:
        return None if self._target.planter is None else self._target.wait(0.0)

    def take_missed(self) -> list[tuple[Probe, int]]:
        planter = self._target.planter
        if planter is None or not self._sampled:
            return []
        with suppress(TargetError):  # the machine is gone: its next use tells
            missed = planter.take_missed()  # empty if the trace has ended before it was planted
            return [(one, n) for one, n in zip(self._sampled, missed, strict=False) if n]
        return []

    def complaints(self) -> list[Complaint]:
        return self._target.take_warnings()

    def waits_in(self) -> str:
        return self._life.waits_in() if self._life is not None else ""

    def share_in_probes(self) -> float:
        self._runner.clock.stopped()
        try:
            return share_in_probes(self._target, self._machine.isa, *self._code)
        finally:
            self._runner.clock.resumed()

    def restore(self, gone: Gone | None, report: Report) -> TargetError | None:
        if gone is not None:
            console = f"; its last lines:\n{gone.console}" if gone.console else ""
            still_there = self._target.planter is not None
            over = "the trace is over" if still_there else "the guest is gone"
            return GoneError(f"{over}: {gone.reason}{console}", gone.kind)
        if self._target.is_over:
            return None
        try:
            told = self._planted.unplant()
            if not self._boot_ended:  # after a traced boot, the machine stays stopped
                self._target.resume()
            if self._life is not None and self._exited:
                event = self._noted(self._life.finish())
                if isinstance(event, Gone):
                    return GoneError(f"the guest is gone: {event.reason}", event.kind)
            if told:
                report.detail(f"kinst: {told}")
            if self._planted.hidden and not self._target.abilities.boots:
                tracer = self._machine.facts.tracer
                report.say(
                    f"kinst: warning: {tracer} is in use, and cannot trace the"
                    f" {self._planted.hidden} functions that kinst has planted until the traced"
                    " kernel boots again; tracers and livepatches of these functions have no"
                    " effect until then"
                )
            time.sleep(SETTLE_SECONDS)
        except TargetError as error:
            return error
        return None


def share_in_probes(target: Stopping, isa: Isa, low: int, high: int) -> float:
    """Return the share of its time that a CPU spends in code at [low, high), 0 to 1, for the CPU
    with the largest share.

    The share is measured by samples; the machine runs, and is stopped for each sample.

    dtrace(1) has a timer for this, its deadman. kinst samples the CPUs only after the kernel has
    reported that it makes no progress (a stuck CPU, a stall of RCU, a hung task): if the kernel is
    stuck in its own code, unplanting would not help.
    """
    seen = [0] * target.cpus
    for _ in range(SAMPLES):
        target.stop()
        for cpu in range(target.cpus):
            seen[cpu] += low <= target.registers(cpu)[isa.pc] < high
        target.resume()
        time.sleep(APART)
    return max(seen) / SAMPLES
