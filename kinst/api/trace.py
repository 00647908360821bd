"""A trace of a D program, as clients of the library see it: its events, and its aggregations so
far.

Tested by tests/session/test_trace_events.py and tests/fake.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from kinst.api.running_batches import RunningBatches
from kinst.consumer.schema import Schema
from kinst.core.errors import KinstError
from kinst.core.probe import ProgramText
from kinst.core.source import TracedSite
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import (
    End,
    Event,
    Message,
    PlainEvent,
    flattened,
)
from kinst.results import Table, tables_of
from kinst.session.fail_option import FailOption
from kinst.session.run import RunningTrace
from kinst.session.values import TracePlan

# Reasons of End after which the command has ended, or cannot be ended.
_COMMAND_OVER = ("command", "panic", "hang", "gone")


class Trace:
    """A program that is ready to run. Machine.trace() makes it.

    Iteration runs the trace, once, and yields its events in the order in which they happen: Record,
    Aggregation, Lost, Fault, Message, Output (of the command), and at last End. Shell, Reopen,
    Truncate and OptionSet are requests of the program to the client.

    events() runs the trace too, but for renderers: it yields one Batch event for many records, and
    one Printed event for several aggregations.

    stop() asks the trace to end; any thread or signal handler may call it. close() unplants the
    probes; leaving a with block calls close().
    """

    def __init__(
        self,
        running: RunningTrace | RunningBatches,
        plan: TracePlan,
        command: str,
        on_close: Callable[[bool], None],
        timeout: float | None = None,
    ) -> None:
        """Make a trace of a plan.

        Args:
            running: runs the plan.
            plan: the plan.
            command: shell command of the guest; "" if there is no command.
            on_close: called when the patches have been removed; its argument says whether the
                command has ended.
            timeout: seconds after which the trace ends; None for no limit.
        """
        self._running = running
        self._plan = plan
        self._command = command
        self._on_close = on_close
        self._timeout = timeout
        self._events: Generator[Event, None, None] | None = None
        self._fail = FailOption(plan.compiled.options.fail)
        self._over = False
        self._command_over = not command
        self.end: End | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def schema(self) -> Schema:
        """Layout of the trace's records, for renderers."""
        return self._running.schema

    @property
    def options(self) -> Options:
        """Options of the program as compiled. A running program may change some of them, which
        gives OptionSet events."""
        return self._plan.compiled.options

    @property
    def matched(self) -> tuple[tuple[ProgramText, int], ...]:
        """For each text of the program: the text, and the number of probes that match its
        descriptions. Empty for a trace in batches, where the numbers are not known in advance."""
        if self._plan.compiled.batch:
            return ()
        running = {e.probe.id for e in self._plan.placement.running}
        probes = {e.probe.id: e for e in self._plan.matched if e.probe.id in running}
        return tuple(
            (text, sum(c in clauses for e in probes.values() for c in e.clauses))
            for text, clauses in self._plan.compiled.texts
        )

    @property
    def left_out(self) -> dict[int, str]:
        """Why instructions that probes match are not planted: address -> reason."""
        return self._plan.left_out

    @property
    def sites(self) -> list[TracedSite]:
        """The instructions that probes match, planted or refused, each once, in address order."""
        return self._plan.traced_sites

    def events(self) -> Iterator[Event]:
        """Run the trace, and yield its events as renderers take them.

        A Batch event has many records (it has nothing to do with -x batch=TIME). A Printed event
        says which aggregations to show now. All other events are the same as in iteration.

        Raises:
            TargetError: the guest ended by itself; raised after the End event.
            KinstError: the trace has run before.
        """
        if self._events is None:
            if self._over:
                raise KinstError("this trace is over", "trace the program again")
            self._events = self._running.events(self._command, self._timeout)
        for event in self._events:
            if isinstance(event, End):
                status, why = self._fail.verdict(event)
                if why:
                    yield Message(why)
                self.end = event = replace(event, status=status)
                self._command_over = self._command_over or event.reason in _COMMAND_OVER
            else:
                self._fail.see(event)
            yield event

    def __iter__(self) -> Iterator[PlainEvent]:
        yield from flattened(self.events())
        self.close()

    def stop(self) -> None:
        """Ask the trace to end: END fires, and the remaining events follow. Any thread or signal
        handler may call this."""
        self._running.stop()

    def aggregations(self) -> dict[str, Table]:
        """Return all aggregations by name, with their present values. After the end of the trace,
        these are the last values."""
        return tables_of(self._running.aggregations())

    def close(self) -> None:
        """Unplant the probes and end the command. A second call does nothing."""
        if self._over:
            return
        self._over = True
        try:
            if self._events is not None:
                self._events.close()
        finally:
            self._on_close(self._command_over)


@contextmanager
def stopped_after(trace: Trace, seconds: float | None) -> Iterator[None]:
    """Context manager that asks a trace to end if the block takes longer than `seconds`; None for
    no limit."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, trace.stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
