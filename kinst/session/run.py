"""The running trace: hits of stop-planted probes, timers, records as they arrive, the end."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kinst.consumer.aggregations import AggregationStore
from kinst.consumer.dynvars import Cleaner
from kinst.consumer.faults import Told
from kinst.consumer.messages import fault_message, lost_messages, more_faults
from kinst.consumer.policies import Kept
from kinst.consumer.printer import Printer
from kinst.consumer.rings import Chunk, Drainer, Rings
from kinst.core.errors import TargetError
from kinst.core.target import CommandEnded, Gone, Stopped
from kinst.dlang.vocabulary.d_options import Options
from kinst.session.effects import Outlet
from kinst.session.header import is_active, set_active, set_speculations
from kinst.session.host import HostClock
from kinst.session.plant import Planted
from kinst.session.report import Report
from kinst.session.runner import HostRunner
from kinst.session.symbols import names_of, symboliser
from kinst.session.values import (
    Compiled,
    EnabledSite,
    Placed,
    Placement,
    PlantedImage,
    TracedMachine,
)

PRINT_SECONDS = 0.1  # how long records wait, unless switchrate says otherwise
FIRST_SECONDS = 0.02  # until the first record: whoever waits for it wants it now
SETTLE_SECONDS = 0.02  # for CPUs that were stopped in a clause to leave it


@dataclass(slots=True)
class Timers:
    """Timer probes and when each is due next (host monotonic ns)."""

    heap: list[tuple[int, int, EnabledSite]] = field(default_factory=list)

    def start(self, enabled: tuple[EnabledSite, ...]) -> None:
        now = time.monotonic_ns()
        for e in enabled:
            if e.timer is not None:
                heapq.heappush(self.heap, (now + e.timer.period_ns, e.probe.id, e))

    def due(self) -> EnabledSite | None:
        """The next timer that is due, rescheduled; missed periods are not made up for."""
        now = time.monotonic_ns()
        if not self.heap or self.heap[0][0] > now:
            return None
        when, identifier, e = heapq.heappop(self.heap)
        assert e.timer is not None
        missed = (now - when) // e.timer.period_ns
        heapq.heappush(self.heap, (when + (missed + 1) * e.timer.period_ns, identifier, e))
        return e

    def wait(self, longest: float) -> float:
        """Seconds until the next timer, at most `longest`."""
        if not self.heap:
            return longest
        return max(0.0, min(longest, (self.heap[0][0] - time.monotonic_ns()) / 1e9))


class Trace:
    """One trace, from BEGIN to the last aggregation; run() is all of it."""

    def __init__(
        self,
        compiled: Compiled,
        parts: Placement,
        placed: Placed,
        built: PlantedImage,
        traced: TracedMachine,
        report: Report,
    ) -> None:
        """Everything is compiled, and scratch is filled; the machine is stopped."""
        self._parts = parts
        self._placed = placed
        self._built = built
        self._target = traced.target
        self._report = report
        self._view = placed.memory.view
        self._probes = {e.probe.id: e.probe for e in (*parts.running, parts.error)}
        self._epids = {e.epid + k: e.probe for e in parts.running for k in range(len(e.clauses))}
        clock = HostClock(traced.personality.clock() if traced.personality else None)
        self._runner = HostRunner(traced, built, placed.memory.native, clock, compiled.program)
        self._rings = Rings(self._view, placed.scratch)
        cleaner = Cleaner(
            self._view, placed.scratch, placed.layout.dynamic, compiled.options.cleanrate
        )
        self._drainer = Drainer(self._rings, besides=cleaner.clean)
        options = compiled.options
        self._outlet = Outlet(report, options, partial(names_of, traced))
        self._printer = self._make_printer(compiled, traced)
        self._kept = (
            None if options.bufpolicy == "switch" else Kept(options.bufpolicy, options.bufsize)
        )
        set_speculations(self._view, options.nspec, options.specsize)
        self._planted = Planted(traced, traced.target) if traced.target else None
        self._timers = Timers()
        self._first = True
        self._held: list[Told] = []  # messages that are told with records that are kept
        self._gone: Gone | None = None

    def _make_printer(self, compiled: Compiled, traced: TracedMachine) -> Printer:
        placed = self._placed
        words = np.frombuffer(self._view, np.uint64, len(self._view) // 8)
        counters = []
        if placed.counters is not None:
            size = placed.layout.counters_size // 8
            counters = [words[at // 8 : at // 8 + size] for at in placed.counters.offsets]
        store = self._store = AggregationStore(
            self._view,
            placed.scratch,
            compiled.program,
            placed.layout,
            counters,
            names_of(traced, compiled.options.stackindent),
        )
        return Printer(
            compiled.program, placed.layout, self._probes, self._outlet.write, store=store,
            display=self._outlet.display(), symbolise=symboliser(traced.personality),
            effects=self._outlet.effects(), tell=self._report.say,
        )  # fmt: skip

    def run(self, command: str) -> int:
        """Trace until exit(), the end of the command, a signal or the guest's end.

        Returns exit()'s status, else 0.  Raises TargetError when the guest ended by itself or
        patches remain, after everything was printed.
        """
        try:
            if not self._report.stop_requested() and self._begin():
                self._plant(command)
                self._loop()
        except BaseException:
            # Whatever happened: the kernel's text first, then the error.
            self._unplant()
            self._drainer.stop()
            raise
        return self._finish()

    def _begin(self) -> bool:
        """Fire BEGIN, with the machine still stopped; False when it called exit()."""
        set_active(self._view, True)
        if self._parts.begin is not None:
            self._runner.fire(self._parts.begin)
        self._drainer.start()
        return is_active(self._view)

    def _plant(self, command: str) -> None:
        if self._target is not None and self._planted is not None:
            self._target.stop()
            sites = self._built.sites
            self._planted.plant(self._built.hooks.patches, sites.patches, sites.exits)
            for enabled in self._parts.stopped:
                self._planted.plant_stop(enabled)
            self._report.stage("plant")
            if command:
                self._target.start_command()
            self._resume()
        self._timers.start(self._parts.host)

    def _loop(self) -> None:
        merge_at = time.monotonic() + self._outlet.options.aggrate / 1e9
        while is_active(self._view) and not self._report.stop_requested():
            if not self._wait(self._timers.wait(FIRST_SECONDS if self._first else self._every())):
                break
            while is_active(self._view) and (timer := self._timers.due()) is not None:
                self._fire_timer(timer)
            self._take(self._drainer.batch())
            if self._kept is not None and self._kept.full:
                break
            if time.monotonic() >= merge_at:
                # Tables of many keys are emptied before they are full.
                self._store.snapshot()
                merge_at = time.monotonic() + self._outlet.options.aggrate / 1e9

    def _every(self) -> float:
        """Seconds for which records wait; setopt() may change it."""
        rate = self._outlet.options.switchrate
        return PRINT_SECONDS if rate == Options().switchrate else rate / 1e9

    def _fire_timer(self, enabled: EnabledSite) -> None:
        assert enabled.timer is not None
        if not enabled.timer.each_cpu:
            self._runner.fire(enabled)
            return
        cpus = [cpu for cpu in range(self._placed.scratch.cpus) if is_active(self._view)]
        if self._target is None:
            for cpu in cpus:
                self._runner.fire(enabled, cpu)
            return
        self._target.stop()
        self._runner.clock.stopped()
        for cpu in cpus:
            self._runner.sample(enabled, cpu)
        self._resume()

    def _resume(self) -> None:
        assert self._target is not None
        self._runner.clock.resumed()
        self._target.resume()

    def _wait(self, seconds: float) -> bool:
        """Let time pass; False when the trace is over."""
        if self._target is None:
            time.sleep(seconds)
            return True
        deadline = time.monotonic() + seconds
        while True:
            event = self._target.wait(max(0.0, deadline - time.monotonic()))
            for warning in self._target.take_warnings():
                self._report.say(f"kinst: the traced kernel says: {warning}")
            if isinstance(event, CommandEnded):
                return False
            if isinstance(event, Gone):
                self._gone = event
                return False
            if isinstance(event, Stopped):
                self._hit(event)
            if event is None or time.monotonic() >= deadline or self._report.stop_requested():
                return True

    def _hit(self, event: Stopped) -> None:
        assert self._target is not None and self._planted is not None
        self._runner.clock.stopped()
        probes = self._planted.stopped_at(event.pc)
        if probes:
            for enabled in probes:
                if is_active(self._view):
                    self._runner.hit(enabled, event.cpu)
            self._target.step_over(event.cpu, event.pc)
        self._resume()

    def _take(self, chunks: list[Chunk]) -> None:
        """Records that arrived: printed, or kept until the end (bufpolicy)."""
        if self._kept is None:
            self._print(chunks)
        else:
            self._kept.add(chunks)
            self._print([])

    def _print(self, chunks: list[Chunk]) -> None:
        """What was lost first, then records and faults: the order of dtrace_work()."""
        lost = self._rings.lost()
        for message in lost_messages(lost, self._placed.scratch.cpus):
            self._report.say(message)
        self._held += [one for slot in range(self._rings.slots) for one in self._faults(slot)]
        if self._kept is None:
            if self._printer.print(chunks, self._held) and self._first:
                self._first = False
                self._report.stage("first record")
                self._report.tell_stages()
            self._held = []

    def _faults(self, slot: int) -> list[Told]:
        """The messages of a CPU's faults since the last time; those that came too fast are
        counted."""
        faults, more = self._rings.faults(slot)
        told = []
        for one in faults:
            probe = self._epids.get(one.epid, self._parts.error.probe)
            text = fault_message(one.epid, probe, one.action, one.kind, one.value)
            told.append(Told(slot, one.head, one.time, text))
        if more:
            text = more_faults(more, slot, self._placed.scratch.cpus)
            told.insert(0, Told(slot, told[0].head, told[0].time, text))
        return told

    def _finish(self) -> int:
        """Unplant, fire END, print what is left; with the empty lines of dtrace(1): one ends the
        line where the terminal shows ^C, one stands before the aggregations, always."""
        trouble = self._unplant()
        if self._report.stop_requested():
            self._report.write("\n")
        if self._parts.end is not None:
            set_active(self._view, True)
            self._runner.fire(self._parts.end)
        set_active(self._view, False)
        self._take(self._drainer.stop())
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._print(kept.all())
        if self._first:
            self._report.tell_stages()
        self._report.write("\n")
        self._printer.finish()
        self._outlet.close()
        if trouble is not None:
            raise trouble
        return self._printer.exit_status or 0

    def _unplant(self) -> TargetError | None:
        if self._gone is not None:
            console = f"; its last lines:\n{self._gone.console}" if self._gone.console else ""
            return TargetError(f"the guest is gone: {self._gone.reason}{console}")
        if self._target is None or self._planted is None:
            return None
        try:
            self._target.stop()
            told = self._planted.unplant()
            if told:
                self._report.detail(f"kinst: {told}")
            self._target.resume()
            time.sleep(SETTLE_SECONDS)
        except TargetError as error:
            return error
        return None
