"""A program on its way through a machine: its events, and what it has found so far.

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

# Reasons of End after which a command that still runs cannot be asked to end.
_COMMAND_OVER = ("command", "panic", "hang", "gone")


class Trace:
    """A program that is ready to run; Machine.trace() makes it.

    Iterating it traces: it yields Record, Aggregation, Lost, Fault, Message, Output of the command
    and what a program asks of its client (Shell, Reopen, Truncate, OptionSet), in the order in
    which they happened, and End at last.  events() yields the same in bulk, for renderers.  A
    trace runs once.  It stops when stop() is called, from any thread or signal handler, and is
    undone by close(), which leaving a with block calls.
    """

    def __init__(
        self,
        running: RunningTrace | RunningBatches,
        plan: TracePlan,
        command: str,
        on_close: Callable[[bool], None],
        timeout: float | None = None,
    ) -> None:
        """on_close: called once it is undone, with whether the command is over.  timeout: seconds
        after which it ends, like one that was stopped."""
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
        """What its records mean: for renderers."""
        return self._running.schema

    @property
    def options(self) -> Options:
        """As compiled; a program may change some of them (OptionSet)."""
        return self._plan.compiled.options

    @property
    def matched(self) -> tuple[tuple[ProgramText, int], ...]:
        """For each text of the program how many probes its descriptions have matched; nothing for
        one that is planted in batches, as that is not known before."""
        if self._plan.compiled.batch:
            return ()
        left = {e.probe.id for e in self._plan.placement.running}
        probes = {e.probe.id: e for e in self._plan.matched if e.probe.id in left}
        return tuple(
            (text, sum(c in clauses for e in probes.values() for c in e.clauses))
            for text, clauses in self._plan.compiled.texts
        )

    @property
    def left_out(self) -> dict[int, str]:
        """The instructions that its descriptions mean and that are not planted: address to the
        reason."""
        return self._plan.left_out

    @property
    def sites(self) -> list[TracedSite]:
        """The instructions that its probes are at, by address: each once, planted or refused."""
        return self._plan.traced_sites

    def events(self) -> Iterator[Event]:
        """Trace, in bulk.  After End, raises TargetError where the guest ended by itself."""
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
        """Ask it to end: END fires, and what is left is yielded.  For signal handlers, too."""
        self._running.stop()

    def aggregations(self) -> dict[str, Table]:
        """All aggregations as they are now, by name; also after the end."""
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
    """The trace is asked to end after so many seconds; None: it is not."""
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
