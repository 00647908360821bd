"""A program that is traced: its events, and its aggregations so far.

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

# Reasons of End after which the command is over, or cannot be ended.
_COMMAND_OVER = ("command", "panic", "hang", "gone")


class Trace:
    """A program that is ready to run; Machine.trace() makes it.

    Iterating it traces: it yields Record, Aggregation, Lost, Fault, Message, Output of the command
    and requests of the program to its client (Shell, Reopen, Truncate, OptionSet), in the order in
    which they happened, and End as the last one.  events() yields them in bulk, for renderers.  A
    trace runs once.  stop() ends it, from any thread or signal handler; close(), which leaving a
    with block calls, undoes it.
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
            on_close: called once it is undone, with whether the command is over.
            timeout: seconds after which it ends.
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
        """The layout of its records, for renderers."""
        return self._running.schema

    @property
    def options(self) -> Options:
        """Its options as compiled; a program may change some of them (OptionSet)."""
        return self._plan.compiled.options

    @property
    def matched(self) -> tuple[tuple[ProgramText, int], ...]:
        """For each text of the program, how many probes its descriptions have matched; empty for a
        program in batches, of which that is not known before."""
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
        """The instructions that match and are not planted: address to reason."""
        return self._plan.left_out

    @property
    def sites(self) -> list[TracedSite]:
        """The instructions of its probes by address, each once, planted or refused."""
        return self._plan.traced_sites

    def events(self) -> Iterator[Event]:
        """Trace, and yield events in bulk.  After End, raises TargetError if the guest ended by
        itself."""
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
        """Ask the trace to end: END fires, and the remaining events follow.  For any thread or
        signal handler."""
        self._running.stop()

    def aggregations(self) -> dict[str, Table]:
        """Return all aggregations by name, as they are now, or were at the end."""
        return tables_of(self._running.aggregations())

    def close(self) -> None:
        """Unplant, and end the command.  Safe to call twice."""
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
    """Ask the trace to end after so many seconds; None: do not."""
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
