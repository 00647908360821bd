"""A program's instructions in batches (-x batch=TIME): one trace after another, seen as one.

Tested by tests/fake/test_batches.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from kinst.events import Aggregation, End, Event, Message
from kinst.session.report import Report
from kinst.session.run import BATCH, RunningTrace
from kinst.session.values import TracePlan


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """A batch that is ready to run, with what it plants."""

    running: RunningTrace
    plan: TracePlan

    @property
    def given(self) -> int:
        """The last id that a probe of it has."""
        return max((e.probe.id for e in self.plan.matched), default=0)


# Makes a batch ready, given its number and the one before.
MakeReady = Callable[[int, ReadyBatch | None], ReadyBatch]
# Told that a batch is over, and whether its command is, before the next one is made ready.
TellOver = Callable[[bool], None]


class RunningBatches:
    """What RunningTrace is, for as many batches as there are: BEGIN fires in the first and END in
    the last, and aggregations are those of all."""

    def __init__(
        self, count: int, seconds: float, ready: MakeReady, over: TellOver, report: Report
    ) -> None:
        """count: batches.  seconds: for which each is traced, at most.  The first is made ready
        here.  Raises what `ready` raises."""
        self._count, self._seconds = count, seconds
        self._ready, self._tell_over = ready, over
        self._report = report
        self._stop = False
        self._now = first = ready(0, None)
        self.plan = first.plan
        self.schema = first.running.schema  # in which the tables of all are

    def stop(self) -> None:
        """Ask it to end: no other batch begins.  From any thread or signal handler."""
        self._stop = True
        self._now.running.stop()

    def aggregations(self) -> tuple[Aggregation, ...]:
        """All aggregations as they are now."""
        return self._now.running.aggregations()

    def events(
        self, command: str = "", timeout: float | None = None
    ) -> Generator[Event, None, None]:
        """See RunningTrace.events().  command: is run once in each batch.  timeout: of all of them
        together.  The status of End is the first one of a batch that is not 0."""
        deadline = None if timeout is None else time.monotonic() + timeout
        status = planted = left_out = 0
        for number in range(self._count):
            self._report.progress("tracing in batches", number / self._count)
            if number:
                self._now = self._ready(number, self._now)
                if self._stop or (deadline is not None and time.monotonic() >= deadline):
                    self._now.running.stop()
            running, plan = self._now.running, self._now.plan
            planted += len(plan.placement.planted)
            left_out += len(plan.left_out)
            left = self._seconds
            if deadline is not None:
                left = max(0.0, min(left, deadline - time.monotonic()))
            for event in running.events(command, left):
                if not isinstance(event, End):
                    yield event
                    continue
                status = status or event.status
                if event.reason != BATCH:
                    self._report.progress("tracing in batches", 1.0)
                    yield Message(self._told(number, planted, left_out))
                    yield replace(event, status=status)
            if running.reason not in ("command", "timeout"):
                return
            if number + 1 < self._count:
                self._tell_over(running.reason == "command")

    def _told(self, number: int, planted: int, left_out: int) -> str:
        done = f"{number + 1} of {self._count}" if number + 1 < self._count else f"{self._count}"
        batches = "batch" if self._count == 1 else "batches"
        refused = f"; {left_out} cannot be planted" if left_out else ""
        return f"kinst: {planted} instructions were planted, in {done} {batches}{refused}"
