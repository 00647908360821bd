"""Stage that runs a planted trace: hits of stop-planted probes, timers, records, and the end.

Tested by tests/fake, through the whole path.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import field

from kinst.consumer.messages import missed_firings
from kinst.core.dataclass import dataclass
from kinst.core.endings import HANG, status_when_gone
from kinst.core.errors import KinstError, TargetError
from kinst.core.machine import (
    BootEnded,
    CommandEnded,
    CommandReady,
    Gone,
    MachineEvent,
    Stopped,
)
from kinst.events import Aggregation, End, Event, Lost, Message, Output, TracingOver
from kinst.session.records import TraceRecords
from kinst.session.report import MANY_PROBES, Report
from kinst.session.silence import (
    SECONDS,
    SilentTrace,
    each_hit_records,
    has_predicates,
    message_at_end,
    message_while_silent,
    records_under_predicates,
)
from kinst.session.timers import Timers
from kinst.session.tracee import SHARE, Tracee
from kinst.session.values import EnabledSite, TracePlan

OUTPUT_PIECES = 64  # pieces of the command's output that wait for the client at most
OUTPUT_SECONDS = 0.1  # how long the command's output waits at most
MISSED_SECONDS = 60.0  # seconds between two reports of missed firings
BATCH = "batch"  # reason of End if another batch follows
OVERLOAD = "overload"  # reason of End if the probes left the kernel no time
UNRESPONSIVE = "kinst: processing aborted: Abort due to systemic unresponsiveness"  # dtrace(1)'s
TIMED_OUT = 124  # status of a trace that cut its command off, as timeout(1) has it


@dataclass(slots=True)
class Ending:
    """State of a trace that tells whether and why it ends.

    Attributes:
        stop: whether the trace was asked to end.
        deadline: when the trace ends, by time.monotonic().
        reason: why the trace is over, "" until it is over.
        gone: the machine's last event, if the machine has ended by itself.
        busy: the share of a CPU's time that went into probes, if the trace ends because that share
            was too large.
    """

    stop: bool = False
    deadline: float = math.inf
    reason: str = ""
    gone: Gone | None = None
    busy: float = 0.0


@dataclass(slots=True)
class Restoring:
    """State of the restoration of the kernel's text.

    The text is restored once, by the client's thread or by the thread that reads the rings.

    Attributes:
        turn: lock that is held while a step of events() runs.
        planted: whether there is something to restore.
        done: whether restoration has been tried.
        trouble: the error of a failed restoration.
        told: whether the user has been told of that error.
    """

    turn: threading.Lock = field(default_factory=threading.Lock)
    planted: bool = False
    done: bool = False
    trouble: TargetError | None = None
    told: bool = False


class RunningTrace:
    """Trace from BEGIN to the last aggregation; events() runs it and yields its events."""

    def __init__(
        self,
        plan: TracePlan,
        tracee: Tracee,
        report: Report,
        output: deque[bytes],
        *,
        before: RunningTrace | None = None,
        more: bool = False,
    ) -> None:
        """Prepare to run a trace whose data and code are in scratch already, in a stopped machine.

        Args:
            output: pieces of the output of the guest's command; the machine appends them while the
                trace waits, and the trace removes them.
            before: the trace of the preceding batch, which has the same program; None for the first
                batch.
            more: whether another batch follows.
        """
        self._parts = plan.placement
        self._layout = plan.placed.layout
        self._fail = plan.compiled.options.fail.split(",")  # what makes the trace fail
        self._tracee = tracee
        self._report = report
        self._output = output
        self._is_first, self._more = before is None, more
        self._records: TraceRecords = TraceRecords(
            plan, tracee.names, report, before._records if before is not None else None,
            tracee.gather, self._attend, tracee.user_end,
        )  # fmt: skip
        self.schema = self._records.schema
        self._ticks = Timers()  # fired in kinst
        self._samplers = Timers()  # fired on each CPU, for which the machine is stopped
        self._seen: deque[MachineEvent] = deque()  # from _attend() to _wait()
        self._ending = Ending()
        self._restoring = Restoring()
        self._over = False
        self._look_at = math.inf  # when a trace without records is examined

    @property
    def reason(self) -> str:
        """Reason why the trace is over, "" until it is over."""
        return self._ending.reason

    def stop(self) -> None:
        """Ask the trace to end, as Ctrl-C does.  Any thread or signal handler may call this."""
        self._ending.stop = True  # one store: no lock that a signal handler could wait for

    def _stopping(self) -> bool:
        return self._ending.stop

    def aggregations(self) -> tuple[Aggregation, ...]:
        """Return all aggregations with their present values, merged from all CPUs.

        May be called during the trace and after its end.
        """
        if not self._over:
            self._records.store.snapshot()
        return self._records.interpreter.aggregations()

    def events(
        self, command: str = "", timeout: float | None = None
    ) -> Generator[Event, None, None]:
        """Run the trace until exit(), the end of the command, stop(), the guest's end or the
        timeout.

        Yields the events. A client that asks for the next event has handled the preceding event.
        The last event is End. Its status is the first of these that applies: that of exit(), that
        of the command if it has ended, 1 if the probes left the kernel no time, HANG if the kernel
        hung, TIMED_OUT if the timeout cut the command off. Otherwise it is 0.

        If the guest ended by itself, patches remain or anything else failed, TargetError or
        KinstError is raised after End. All patches are removed when the generator ends, is closed,
        or raises.

        When the trace must end, another thread restores the kernel's text, however long the client
        takes for an event.

        Args:
            command: the guest's command, "" without one.
            timeout: seconds after which the trace ends; None for no limit.
        """
        steps = self._steps(command, timeout)
        try:
            while True:
                with self._restoring.turn:
                    event = next(steps, None)
                if event is None:
                    return
                yield event
        finally:
            with self._restoring.turn:
                steps.close()

    def _steps(self, command: str, timeout: float | None) -> Generator[Event, None, None]:
        records, ending = self._records, self._ending
        try:
            ending.reason = reason = yield from self._traced(command, timeout)
            if records.first:  # a user waits for the first record; restoring takes longer
                yield from records.arrived()
            trouble = self._restore()
            yield from self._written()  # output that came while the command's end was told
            if self._more and trouble is None and self._ends_batch(reason):
                yield from self._batch_end(reason, command)
                return
            if reason == OVERLOAD:
                share = f"{100 * ending.busy:.0f}% of a CPU's time went into probes"
                yield Message(f"{UNRESPONSIVE}: {share}; all are unplanted")
            yield TracingOver("interrupted" if self._stopping() else reason)
            if self._stopping() and ending.gone is None:
                reason = "interrupted"
            if self._parts.end is not None:
                records.activate(True)
                self._fire(self._parts.end)
            records.activate(False)
            yield from records.rest()
            yield from self._missed()
            yield from records.finish()
            yield from self._written()
            yield from self._complaints()
            self._tell_nothing_fired(command)
            self._restoring.told = True  # it is raised below
        except KinstError as error:
            self._undo()
            yield End("error", 1, str(error))
            raise
        finally:
            # Restore the kernel's text first, whatever happened, then raise the error.
            self._undo()
        if trouble is not None:
            if ending.gone is None:
                yield End("error", 1, str(trouble))
            else:
                kind = ending.gone.kind
                yield End(kind or "gone", status_when_gone(kind), str(trouble))
            raise trouble
        yield End(reason, self._status(reason, command))

    def _ends_batch(self, reason: str) -> bool:
        """Return whether the next batch follows.

        It follows if the time or the command of this batch is over, and the trace was not asked to
        end.
        """
        return reason in ("command", "timeout") and not self._stopping()

    def _batch_end(self, reason: str, command: str) -> Generator[Event, None, None]:
        """Yield the last events of a batch that another batch follows; END does not fire."""
        self._records.activate(False)
        yield from self._records.rest()
        yield from self._missed()
        yield from self._records.interpreter.pause()
        yield from self._written()
        yield from self._complaints()
        self._restoring.told = True
        yield End(BATCH, self._status(reason, command))

    def _status(self, reason: str, command: str) -> int:
        if self._records.interpreter.exit_status is not None:
            return self._records.interpreter.exit_status
        if reason == "command":
            return self._tracee.command_status
        if reason == OVERLOAD:
            return 1
        if reason == "hang":
            return HANG
        return TIMED_OUT if reason == "timeout" and command else 0

    def _traced(self, command: str, timeout: float | None) -> Generator[Event, None, str]:
        """Run BEGIN, plant the probes, and trace.  Returns why the trace is over."""
        records = self._records
        if self._stopping():
            return "interrupted"
        records.activate(True)
        if self._parts.begin is not None and self._is_first:
            self._fire(self._parts.begin)  # the machine is still stopped
        records.ring_reader.start()
        if not records.active:
            return "exit"
        self._plant(command)
        if timeout is not None:
            self._ending.deadline = time.monotonic() + timeout
        return (yield from self._loop(command))

    def _plant(self, command: str) -> None:
        count, progress = len(self._parts.planted), self._report.progress
        if count >= MANY_PROBES:
            progress(f"planting {count:,} probes", 0.0)
        told = self._tracee.plant(command)
        if count >= MANY_PROBES:
            progress(f"planting {count:,} probes", 1.0)
        if told:
            self._report.detail(f"kinst: {told}")
        self._report.stage("plant")
        now = time.monotonic_ns()
        for one in self._parts.host:
            if one.timer is not None:
                (self._samplers if one.timer.each_cpu else self._ticks).start([one], now)
        self._restoring.planted = True
        if not self._tracee.is_booting:  # much of a boot runs once, and late
            self._look_at = time.monotonic() + SECONDS

    def _tell_silence(self, command: str, *, ends: bool) -> None:
        """Say, once, why the trace has shown no record yet.

        Args:
            ends: whether the trace has a timeout.
        """
        records, tracee, options = self._records, self._tracee, self._records.interpreter.options
        if not (command or ends or options.quiet) and self._nothing_can_fire():
            self._look_at = math.inf
            self._report.say(
                "kinst: nothing more can fire but END: Ctrl-C ends the trace, exit(0) too"
            )
            return
        if records.has_fired or tracee.has_fired or options.quiet:
            self._look_at = math.inf
            return
        self._look_at = time.monotonic() + SECONDS
        records.store.snapshot()
        counted = records.has_counted
        if counted and (ends or command):
            self._look_at = math.inf
            return
        waits_in = tracee.waits_in() if command and not counted else ""
        if said := message_while_silent(self._silent_trace(command, waits_in)):
            self._look_at = math.inf
            self._report.say(said)

    def _nothing_can_fire(self) -> bool:
        """Return whether the program has no probe but BEGIN, END and ERROR."""
        parts = self._parts
        timed = any(one.timer is not None for one in parts.host)
        return not (parts.inside or parts.stopped or timed)

    def _silent_trace(self, command: str, waits_in: str = "") -> SilentTrace:
        """Return the facts by which the silence of a trace is explained.

        Args:
            waits_in: function of the kernel in which the command waits, "" if unknown.
        """
        records, parts = self._records, self._parts
        compiled, passer = parts.enabled.compiled, self._tracee.passer
        sites = [one.enabled.clauses for one in parts.planted]
        return SilentTrace(
            planted=len(parts.planted) + len(parts.stopped),
            has_counted=records.has_counted,
            has_command=bool(command),
            is_guest=self._tracee.is_guest,
            waits_in=waits_in,
            each_hit_records=each_hit_records(compiled.program, self._layout, sites, passer),
            records_under_predicates=records_under_predicates(
                compiled.program, self._layout, sites
            ),
            has_predicates=has_predicates(compiled.tree, passer),
        )

    def _tell_nothing_fired(self, command: str) -> None:
        """Say, at the end of a trace, if no probe of the kernel has fired."""
        records, in_batches = self._records, self._more or not self._is_first
        if records.has_fired or self._tracee.has_fired or records.interpreter.options.quiet:
            return
        if in_batches or self._ending.gone is not None or not self._restoring.planted:
            return
        if said := message_at_end(self._silent_trace(command)):
            self._report.say(said)

    def _loop(self, command: str) -> Generator[Event, None, str]:
        records = self._records
        merge_at = time.monotonic() + records.interpreter.options.aggrate / 1e9
        tell_at = time.monotonic() + MISSED_SECONDS
        while records.active:
            if self._stopping():
                return "interrupted"
            if (left := self._ending.deadline - time.monotonic()) <= 0:
                return "timeout"
            if over := (yield from self._wait(self._until_timer(min(left, records.wait)))):
                return over
            self._fire_due()
            if time.monotonic() >= self._look_at:
                self._tell_silence(command, ends=math.isfinite(self._ending.deadline))
            if time.monotonic() >= tell_at:
                yield from self._missed()
                tell_at = time.monotonic() + MISSED_SECONDS
            yield from records.arrived()
            if records.interpreter.full:
                return "full"
            if time.monotonic() >= merge_at:
                # Empty tables of many keys before they are full.
                records.store.snapshot()
                merge_at = time.monotonic() + records.interpreter.options.aggrate / 1e9
        return self._ended()

    def _ended(self) -> str:
        """Return why clauses do not run any more: exit(), or the end of the machine."""
        event = self._tracee.last_words()
        if isinstance(event, Gone):
            self._ending.gone = event
            return "gone"
        if event is not None:
            self._seen.append(event)
        return "exit"

    def _until_timer(self, longest: float) -> float:
        """Return the seconds until the next timer is due, or `longest` if that is sooner."""
        due = [at for timers in (self._ticks, self._samplers) if (at := timers.next()) is not None]
        now = time.monotonic_ns()
        return min([longest, *(max(0, at - now) / 1e9 for at in due)])

    def _fire_due(self) -> None:
        """Fire all timers that are due, each of them once.

        A timer that becomes due during this call is fired in a later call: before that, the loop
        handles the deadline, signals, the command and records. If the machine was stopped for
        samples, no timer stops it for samples again until it has run for as long as it was stopped.
        Otherwise a command might never end.
        """
        for timers, stops in ((self._ticks, False), (self._samplers, True)):
            began = time.monotonic_ns()
            due = timers.due(began)
            for _, enabled in due:
                if self._records.active and not self._stopping():
                    self._fire(enabled)
            if due:
                ended = time.monotonic_ns()
                timers.fired(due, ended + (ended - began if stops else 0))

    def _missed(self) -> Iterator[Lost]:
        """Yield the numbers of firings that timers have missed since the last call."""
        for timers in (self._ticks, self._samplers):
            for probe, count in timers.take_missed():
                yield missed_firings(probe, count, each_cpu=timers is self._samplers)
        for probe, count in self._tracee.take_missed():
            yield missed_firings(probe, count)

    def _fire(self, enabled: EnabledSite) -> None:
        self._tracee.fire(enabled, lambda: self._records.active)

    def _wait(self, seconds: float) -> Generator[Event, None, str]:
        """Wait for some seconds, and handle what the machine reports; yield the command's output.

        Returns why the trace is over, "" if it continues.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._seen:
                event: MachineEvent | None = self._seen.popleft()
            else:
                event = self._tracee.wait(min(left, OUTPUT_SECONDS))
            yield from self._written()
            for complaint in self._complaints():
                yield complaint
                if complaint.kind == "hang" and "hang" in self._fail:
                    return "hang"
                if complaint.kind == "hang" and self._is_overloaded():
                    return OVERLOAD
            if isinstance(event, CommandEnded):
                if number := event.by_signal:
                    name = signal.strsignal(number)
                    self._report.say(f"kinst: signal {number} ({name}) ended the command")
                return "command"
            if isinstance(event, BootEnded):
                return "boot"
            if isinstance(event, CommandReady):
                plan = self._tracee.begin_command(self._report)
                if plan is not None:
                    self._records.use_counters(plan)
            if isinstance(event, Gone):
                self._ending.gone = event
                return "gone"
            if isinstance(event, Stopped):
                self._tracee.hit(event, lambda: self._records.active)
            if time.monotonic() >= deadline or self._stopping():
                return ""

    def _is_overloaded(self) -> bool:
        """Return whether the kernel makes no progress because of the probes.

        False for a program that may be destructive: it continues, as in dtrace(1).
        """
        if self._records.interpreter.options.destructive:
            return False
        self._ending.busy = self._tracee.share_in_probes()
        return self._ending.busy >= SHARE

    def _complaints(self) -> Iterator[Message]:
        """Yield the problems that the kernel has reported on its console since the last call."""
        for one in self._tracee.complaints():
            yield Message(f"kinst: the traced kernel says: {one.text}", one.kind)

    def _written(self) -> Iterator[Output]:
        """Yield the output that the guest's command had written when this was called.

        The command may write faster than the client reads, so later output waits for the next call.
        """
        for _ in range(len(self._output)):
            yield Output(self._output.popleft())

    # The end.

    def _undo(self) -> None:
        """Restore the kernel's text and end the thread that reads the rings.  Does nothing the
        second time.
        """
        trouble = self._restore()
        if trouble is not None and not self._restoring.told:
            self._restoring.told = True
            self._report.say(f"kinst: {trouble}")
        self._records.activate(False)
        self._records.ring_reader.end()
        self._over = True

    def _attend(self) -> None:
        """Restore the kernel's text if the trace must end; the thread that reads the rings calls
        this.

        The client may still be busy with its last event (a slow reader, a stopped terminal).
        """
        restoring = self._restoring
        if not restoring.planted or restoring.done or not restoring.turn.acquire(blocking=False):
            return
        try:
            if not restoring.done and self._is_due():
                self._restore()
        finally:
            restoring.turn.release()

    def _is_due(self) -> bool:
        """Return whether the trace must end.  Events of the machine are stored for _wait()."""
        ending = self._ending
        if self._stopping() or not self._records.active or time.monotonic() >= ending.deadline:
            return True
        if ending.gone is not None:
            return False
        if ending.reason:
            return True
        if not self._seen and len(self._output) < OUTPUT_PIECES:
            event = self._tracee.wait(0.0)
            if event is not None:
                self._seen.append(event)
        return bool(self._seen) and isinstance(self._seen[0], CommandEnded | BootEnded)

    def _restore(self) -> TargetError | None:
        """Restore the kernel's text, unless that has been tried.  Returns the error, None for
        success.
        """
        restoring = self._restoring
        if not restoring.done:
            restoring.done = True
            restoring.trouble = self._tracee.restore(self._ending.gone, self._report)
        return restoring.trouble
