"""The running trace: hits of stop-planted probes, timers, records as they arrive, the end."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from kinst.consumer.aggregations import AggregationStore, CounterSums
from kinst.consumer.dynvars import Cleaner
from kinst.consumer.faults import PlacedFault
from kinst.consumer.interpreter import Interpreter
from kinst.consumer.messages import fault_event, lost_events, lost_faults, missed_firings
from kinst.consumer.rings import Chunk, Drainer, Rings
from kinst.consumer.schema import Schema
from kinst.core.endings import HANG, status_when_gone
from kinst.core.errors import GoneError, KinstError, TargetError
from kinst.core.layout import HEADER_ACTIVE
from kinst.core.machine import CommandEnded, Gone, MachineEvent, Stopped
from kinst.core.probe import Probe
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import (
    Aggregation,
    Arrived,
    Closing,
    End,
    Event,
    Lost,
    Message,
    Output,
    TracingOver,
)
from kinst.session.deadman import SHARE, share_in_probes
from kinst.session.header import is_active, set_active, set_speculations
from kinst.session.host import HostClock, HostRunner
from kinst.session.plant import Planted
from kinst.session.plant_running import PlantedRunning
from kinst.session.report import Report
from kinst.session.symbols import names_of
from kinst.session.timers import Timers
from kinst.session.values import (
    Compiled,
    EnabledSite,
    Placed,
    Placement,
    PlantedImage,
    TracedMachine,
)

OUTPUT_PIECES = 64  # of what the guest's command writes, that wait for the client
PRINT_SECONDS = 0.1  # how long records wait, unless switchrate says otherwise
SLOW_SECONDS = 0.5  # at one event: that is a slow client
FIRST_SECONDS = 0.02  # until the first record: whoever waits for it wants it now
OUTPUT_SECONDS = 0.1  # how long the command's output waits at most
MISSED_SECONDS = 1.0  # from one report of missed firings to the next
BATCH = "batch"  # reason of End where another batch follows
OVERLOAD = "overload"  # reason of End where the probes left the kernel no time
UNRESPONSIVE = "kinst: processing aborted: Abort due to systemic unresponsiveness"  # dtrace(1)'s
TIMED_OUT = 124  # status of a trace that cut its command off, as of timeout(1)
SETTLE_SECONDS = 0.02  # for CPUs that were stopped in a clause to leave it


class RunningTrace:
    """One trace, from BEGIN to the last aggregation; events() is all of it.

    schema: what its records mean, for renderers.
    """

    def __init__(
        self,
        compiled: Compiled,
        parts: Placement,
        placed: Placed,
        built: PlantedImage,
        traced: TracedMachine,
        report: Report,
        output: deque[bytes] | None = None,
        *,
        before: RunningTrace | None = None,
        more: bool = False,
    ) -> None:
        """Everything is compiled, and scratch is filled; the machine is stopped.

        output: gets what the guest's command writes while the target is waited for, and is
        emptied here.  before: of the same program, with the batch of instructions that was planted
        before this one.  more: another batch comes next."""
        self._parts = parts
        self._placed = placed
        self._built = built
        self._target = traced.target
        self._report = report
        self._begun, self._more = before is not None, more
        self._isa = traced.isa
        self._busy = 0.0  # the share of a CPU's time in probes, when that was too much
        self.reason = ""  # why it was over, as soon as it is
        self._output: deque[bytes] = deque() if output is None else output
        self._view = placed.memory.view
        self._cpus = placed.scratch.cpus
        self._epids = {e.epid + k: e.probe for e in parts.running for k in range(len(e.clauses))}
        follows = None if traced.never_stands else traced.personality
        clock = HostClock(follows.clock() if follows else None)
        self._runner = HostRunner(traced, built, placed.memory.native, clock, compiled.program)
        self._rings = Rings(self._view, placed.scratch)
        cleaner = Cleaner(
            self._view, placed.scratch, placed.layout.dynamic, compiled.options.cleanrate
        )
        options = compiled.options
        self._drainer = Drainer(
            self._rings, options.queuesize, besides=(cleaner.clean, self._attend)
        )
        self._fail = options.fail.split(",")  # what makes the trace fail
        names = names_of(traced)
        planter = traced.target.planter if traced.target is not None else None
        self._store: AggregationStore = AggregationStore(
            self._view,
            placed.scratch,
            compiled.program,
            placed.layout,
            self._counters(),
            names,
            self._sums(),
            before._store if before is not None else None,
            planter.gather if planter is not None else None,
        )
        # What is shown is shown by the first batch's schema; only the host's probes make records.
        probes: dict[int, Probe] = {} if before is None else before._probes
        shown = parts.running if before is None else parts.host
        probes |= {e.probe.id: e.probe for e in (*shown, parts.error)}
        self._probes: dict[int, Probe] = probes
        self.schema = Schema(
            compiled.program, placed.layout, probes, self._store.tables, options, names
        )
        self._interpreter = Interpreter(self.schema, self._store)
        if before is not None:
            self._interpreter.options = before._interpreter.options
        set_speculations(self._view, options.nspec, options.specsize)
        self._planted: Planted | PlantedRunning | None = None
        if traced.target is not None and planter is not None:
            self._planted = PlantedRunning(
                traced, traced.target, planter, built,
                placed.scratch.address + HEADER_ACTIVE,
            )  # fmt: skip
        elif traced.target is not None:
            self._planted = Planted(traced, traced.target)
        self._ticks = Timers()  # fired in kinst
        self._samplers = Timers()  # fired on each CPU, for which the machine is stopped
        self._first = True
        self._gone: Gone | None = None
        self._stop = False
        self._deadline = math.inf  # time.monotonic()
        self._command_status = 0
        self._turn = threading.Lock()  # held while a step of events() runs
        self._running = False  # planted, and on the way to the end
        self._seen: deque[MachineEvent] = deque()  # by _attend(), for _wait()
        self._lifted = False  # the patches
        self._trouble: TargetError | None = None  # of that
        self._told = False  # the user knows of it
        self._over = False

    def _sums(self) -> CounterSums:
        """What the counters of blocks of instructions add to the others."""
        counters, sums = self._placed.counters, self._built.sites.sums
        base = counters.displacement if counters is not None else 0
        first = np.uint64(base & (1 << 64) - 1)
        source, target = (
            (place.view(np.uint64) - first).view(np.int64) >> 3
            for place in (sums.source, sums.target)
        )
        return CounterSums(source, target, sums.weight)

    def _counters(self) -> list[npt.NDArray[np.uint64]]:
        """The counter blocks, as words."""
        placed = self._placed
        if placed.counters is None:
            return []
        words = np.frombuffer(self._view, np.uint64, len(self._view) // 8)
        size = placed.counters.size // 8
        return [words[at // 8 : at // 8 + size] for at in placed.counters.offsets]

    def stop(self) -> None:
        """Ask the trace to end, as Ctrl-C does.  From any thread or signal handler."""
        self._stop = True  # one store: no lock that a signal handler could wait for

    def _stopping(self) -> bool:
        return self._stop

    def aggregations(self) -> tuple[Aggregation, ...]:
        """All aggregations as they are now, merged from all CPUs; also after the end."""
        if not self._over:
            self._store.snapshot()
        return self._interpreter.aggregations()

    def events(
        self, command: str = "", timeout: float | None = None
    ) -> Generator[Event, None, None]:
        """Trace until exit(), the end of the command, stop(), the guest's end or, with timeout,
        for so many seconds.

        The client has dealt with an event when it asks for the next one.  End is the last; where
        the guest ended by itself, patches remain or anything else failed, TargetError (KinstError)
        is raised behind it.  All is undone when the generator ends, is closed, or raises.

        However long the client is at an event, the kernel's text is restored when its time has
        come: a thread sees to that.

        The status of End is that of exit(), else the command's, else 0.
        """
        steps = self._steps(command, timeout)
        try:
            while True:
                with self._turn:
                    event = next(steps, None)
                if event is None:
                    return
                yield event
        finally:
            with self._turn:
                steps.close()

    def _steps(self, command: str, timeout: float | None) -> Generator[Event, None, None]:
        try:
            reason = yield from self._traced(command, timeout)
            trouble = self._unplant()
            self.reason = reason
            if self._more and trouble is None and self._ends_batch(reason):
                yield from self._batch_end(reason, command)
                return
            if reason == OVERLOAD:
                share = f"{100 * self._busy:.0f}% of a CPU's time went into probes"
                yield Message(f"{UNRESPONSIVE}: {share}; all are unplanted")
            yield TracingOver("interrupted" if self._stopping() else reason)
            if self._stopping() and self._gone is None:
                reason = "interrupted"
            if self._parts.end is not None:
                set_active(self._view, self._placed.scratch, True)
                self._runner.fire(self._parts.end)
            set_active(self._view, self._placed.scratch, False)
            for chunks in self._drainer.stop():
                yield from self._take(chunks)
            yield from self._missed()
            yield from self._noted(self._interpreter.finish())
            yield from self._written()
            yield from self._complaints()
            self._told = True  # it is raised below
        except KinstError as error:
            self._undo()
            yield End("error", 1, str(error))
            raise
        finally:
            # Whatever happened: the kernel's text first, then the error.
            self._undo()
        if trouble is not None:
            if self._gone is None:
                yield End("error", 1, str(trouble))
            else:
                kind = self._gone.kind
                yield End(kind or "gone", status_when_gone(kind), str(trouble))
            raise trouble
        yield End(reason, self._status(reason, command))

    def _ends_batch(self, reason: str) -> bool:
        """Whether another batch follows: its time is over, or its command."""
        return reason in ("command", "timeout") and not self._stopping()

    def _batch_end(self, reason: str, command: str) -> Generator[Event, None, None]:
        """What is left of a batch behind which another one follows: END does not fire."""
        set_active(self._view, self._placed.scratch, False)
        for chunks in self._drainer.stop():
            yield from self._take(chunks)
        yield from self._missed()
        yield from self._interpreter.pause()
        yield from self._written()
        yield from self._complaints()
        self._told = True
        yield End(BATCH, self._status(reason, command))

    def _status(self, reason: str, command: str) -> int:
        if self._interpreter.exit_status is not None:
            return self._interpreter.exit_status
        if reason == "command":
            return self._command_status
        if reason == OVERLOAD:
            return 1
        if reason == "hang":
            return HANG
        return TIMED_OUT if reason == "timeout" and command else 0

    def _traced(self, command: str, timeout: float | None) -> Generator[Event, None, str]:
        """From BEGIN to the reason why it is over."""
        if self._stopping():
            return "interrupted"
        set_active(self._view, self._placed.scratch, True)
        if self._parts.begin is not None and not self._begun:
            self._runner.fire(self._parts.begin)  # with the machine still stopped
        self._drainer.start()
        if not is_active(self._view):
            return "exit"
        self._plant(command)
        if timeout is not None:
            self._deadline = time.monotonic() + timeout
        return (yield from self._loop())

    def _plant(self, command: str) -> None:
        if self._target is not None and self._planted is not None:
            self._planted.look()
            self._target.stop()
            built = self._built
            left = self._planted.plant(built.hooks.patches, built.sites, built.ended)
            if left:
                self._report.detail(f"kinst: {left}")
            for enabled, _ in self._parts.stopped:
                self._planted.plant_stop(enabled)
            self._report.stage("plant")
            if command:
                self._target.start_command()
            self._resume()
        now = time.monotonic_ns()
        for one in self._parts.host:
            if one.timer is not None:
                (self._samplers if one.timer.each_cpu else self._ticks).start([one], now)
        self._running = True

    def _loop(self) -> Generator[Event, None, str]:
        merge_at = time.monotonic() + self._interpreter.options.aggrate / 1e9
        tell_at = time.monotonic() + MISSED_SECONDS
        while is_active(self._view):
            if self._stopping():
                return "interrupted"
            if (left := self._deadline - time.monotonic()) <= 0:
                return "timeout"
            longest = min(left, FIRST_SECONDS if self._first else self._every())
            if self._drainer.behind:
                longest = 0.0
            if over := (yield from self._wait(self._until_timer(longest))):
                return over
            self._fire_due()
            if time.monotonic() >= tell_at:
                yield from self._missed()
                tell_at = time.monotonic() + MISSED_SECONDS
            yield from self._take(self._drainer.batch())
            if self._interpreter.full:
                return "full"
            if time.monotonic() >= merge_at:
                # Tables of many keys are emptied before they are full.
                self._store.snapshot()
                merge_at = time.monotonic() + self._interpreter.options.aggrate / 1e9
        return self._ended()

    def _ended(self) -> str:
        """Why clauses do not run any more: by exit(), or because a machine that is planted in while
        it runs has turned them off, which it says when it is asked."""
        if self._target is not None and self._target.planter is not None:
            event = self._target.wait(0.0)
            if isinstance(event, Gone):
                self._gone = event
                return "gone"
            if event is not None:
                self._seen.append(event)
        return "exit"

    def _every(self) -> float:
        """Seconds for which records wait; setopt() may change it."""
        rate = self._interpreter.options.switchrate
        return PRINT_SECONDS if rate == Options().switchrate else rate / 1e9

    def _until_timer(self, longest: float) -> float:
        """Return the seconds until the next timer is due, at most `longest`."""
        due = [at for timers in (self._ticks, self._samplers) if (at := timers.next()) is not None]
        now = time.monotonic_ns()
        return min([longest, *(max(0, at - now) / 1e9 for at in due)])

    def _fire_due(self) -> None:
        """Fire the timers that are due, each once.

        What becomes due meanwhile waits until the loop has looked at the deadline, at signals, at
        the command and at records.  After it was stopped for samples the machine runs for as long
        as it stood, or a command would never end.
        """
        for timers, stops in ((self._ticks, False), (self._samplers, self._target is not None)):
            began = time.monotonic_ns()
            due = timers.due(began)
            for _, enabled in due:
                if is_active(self._view) and not self._stopping():
                    self._fire_timer(enabled)
            if due:
                ended = time.monotonic_ns()
                timers.fired(due, ended + (ended - began if stops else 0))

    def _missed(self) -> Iterator[Lost]:
        """The firings that timers have missed since this was last called."""
        for timers in (self._ticks, self._samplers):
            for probe, count in timers.take_missed():
                yield missed_firings(probe, count)

    def _fire_timer(self, enabled: EnabledSite) -> None:
        assert enabled.timer is not None
        if not enabled.timer.each_cpu:
            self._runner.fire(enabled)
            return
        if self._target is None:
            for cpu in range(self._cpus):
                if is_active(self._view):
                    self._runner.fire(enabled, cpu)
            return
        self._target.stop()
        self._runner.clock.stopped()
        for cpu in range(self._target.cpus):
            if is_active(self._view):
                self._runner.sample(enabled, cpu)
        self._resume()

    def _resume(self) -> None:
        assert self._target is not None
        self._runner.clock.resumed()
        self._target.resume()

    def _wait(self, seconds: float) -> Generator[Event, None, str]:
        """Let time pass; why the trace is over, "" while it is not."""
        if self._target is None:
            time.sleep(seconds)
            return ""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._seen:
                event: MachineEvent | None = self._seen.popleft()
            else:
                event = self._target.wait(min(left, OUTPUT_SECONDS))
            yield from self._written()
            for complaint in self._complaints():
                yield complaint
                if complaint.kind == "hang" and "hang" in self._fail:
                    return "hang"
                if complaint.kind == "hang" and self._is_overloaded():
                    return OVERLOAD
            if isinstance(event, CommandEnded):
                self._command_status = event.status
                return "command"
            if isinstance(event, Gone):
                self._gone = event
                return "gone"
            if isinstance(event, Stopped):
                self._hit(event)
            if time.monotonic() >= deadline or self._stopping():
                return ""

    def _is_overloaded(self) -> bool:
        """Whether the kernel makes no progress because of the probes.  As in dtrace(1), a program
        that may be destructive goes on all the same."""
        if self._target is None or self._interpreter.options.destructive:
            return False
        scratch = self._placed.scratch
        low, high = scratch.address + scratch.text, scratch.address + scratch.size
        self._runner.clock.stopped()
        try:
            self._busy = share_in_probes(self._target, self._isa, low, high)
        finally:
            self._runner.clock.resumed()
        return self._busy >= SHARE

    def _complaints(self) -> Iterator[Message]:
        """What the kernel has said of itself since last asked."""
        for one in self._target.take_warnings() if self._target is not None else ():
            yield Message(f"kinst: the traced kernel says: {one.text}", one.kind)

    def _written(self) -> Iterator[Output]:
        """What the guest's command has written so far: it may write faster than a client reads."""
        for _ in range(len(self._output)):
            yield Output(self._output.popleft())

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

    def _take(self, chunks: list[Chunk]) -> Iterator[Event]:
        """What was lost first, then records and faults: the order of dtrace_work().  What is lost
        while a slow client is at them is told in between."""
        yield from lost_events(self._rings.lost(), self._cpus)
        faults = [one for slot in range(self._rings.slots) for one in self._faults(slot)]
        for event in self._noted(self._interpreter.take(chunks, faults)):
            given = time.monotonic()
            yield event
            if time.monotonic() - given > SLOW_SECONDS:
                yield from lost_events(self._rings.lost(), self._cpus)

    def _noted(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events; the time until the first records is told when they have been dealt with."""
        arrived = False
        for event in events:
            if isinstance(event, Closing) and self._first:
                self._tell_first(arrived)
            arrived = arrived or isinstance(event, Arrived)
            yield event
        if arrived and self._first:
            self._tell_first(arrived)

    def _tell_first(self, arrived: bool) -> None:
        self._first = False
        if arrived:
            self._report.stage("first record")
        self._report.tell_stages()

    def _faults(self, slot: int) -> list[PlacedFault]:
        """A CPU's faults since the last time; those that came too fast are counted."""
        entries, more = self._rings.faults(slot)
        faults = []
        for one in entries:
            probe = self._epids.get(one.epid, self._parts.error.probe)
            event = fault_event(one, probe, slot, self._cpus)
            faults.append(PlacedFault(slot, one.head, one.time, event))
        if more:
            lost = lost_faults(more, slot, self._cpus)
            # All may have been written over: then it is told before the records that are there.
            head, when = (faults[0].head, faults[0].time) if faults else (0, 0)
            faults.insert(0, PlacedFault(slot, head, when, lost))
        return faults

    def _undo(self) -> None:
        """Unplant and end the thread, where that has not been done."""
        trouble = self._unplant()
        if trouble is not None and not self._told:
            self._told = True
            self._report.say(f"kinst: {trouble}")
        set_active(self._view, self._placed.scratch, False)
        self._drainer.end()
        self._over = True

    def _attend(self) -> None:
        """In the drainer's thread: when the trace has to end, restore the kernel's text, though
        the client is still at its last event (a slow reader, a terminal on hold)."""
        if not self._running or self._lifted or not self._turn.acquire(blocking=False):
            return
        try:
            if not self._lifted and self._is_due():
                self._lift()
        finally:
            self._turn.release()

    def _is_due(self) -> bool:
        """Whether the trace has to end.  What the machine says meanwhile is kept for _wait()."""
        if self._stopping() or not is_active(self._view) or time.monotonic() >= self._deadline:
            return True
        if self._target is None or self._gone is not None:
            return False
        if not self._seen and len(self._output) < OUTPUT_PIECES:
            event = self._target.wait(0.0)
            if event is not None:
                self._seen.append(event)
        return bool(self._seen) and isinstance(self._seen[0], CommandEnded)

    def _unplant(self) -> TargetError | None:
        """Restore the kernel's text where that has not been done; what went wrong."""
        self._lift()
        return self._trouble

    def _lift(self) -> None:
        if not self._lifted:
            self._lifted = True
            self._trouble = self._lifting()

    def _lifting(self) -> TargetError | None:
        if self._gone is not None:
            console = f"; its last lines:\n{self._gone.console}" if self._gone.console else ""
            still_there = self._target is not None and self._target.planter is not None
            over = "the trace is over" if still_there else "the guest is gone"
            return GoneError(f"{over}: {self._gone.reason}{console}", self._gone.kind)
        if self._target is None or self._planted is None:
            return None
        try:
            told = self._planted.unplant()
            self._target.resume()
            if told:
                self._report.detail(f"kinst: {told}")
            if self._planted.hidden and not self._target.abilities.boots:
                self._report.say(
                    f"kinst: warning: ftrace is in use: until that kernel boots again it leaves"
                    f" {self._planted.hidden} functions alone that were planted, and tracers or"
                    " livepatches put on them meanwhile have no effect"
                )
            time.sleep(SETTLE_SECONDS)
        except TargetError as error:
            return error
        return None
