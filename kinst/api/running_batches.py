"""A trace in batches (-x batch=TIME): several traces, each of a part of the program's instructions,
that look like one trace.

Tested by tests/fake/test_batches.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.events import Aggregation, End, Event, Message
from kinst.session.report import Report
from kinst.session.run import BATCH, RunningTrace
from kinst.session.values import TracePlan


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """A batch that is ready to run: its trace and its plan."""

    running: RunningTrace
    plan: TracePlan

    @property
    def last_id(self) -> int:
        """The highest id of the batch's probes; 0 if the batch has no probes."""
        return max((e.probe.id for e in self.plan.matched), default=0)


# Makes a batch ready to run, from its number and the batch before it.
MakeReady = Callable[[int, ReadyBatch | None], ReadyBatch]
# Called after each batch except the last one; its argument says whether the command has ended.
TellOver = Callable[[bool], None]


class RunningBatches:
    """A trace in batches, with the interface of RunningTrace. BEGIN fires in the first batch and
    END in the last one; aggregations have the values of all batches."""

    def __init__(
        self, count: int, seconds: float, ready: MakeReady, over: TellOver, report: Report
    ) -> None:
        """Make the first batch ready to run.

        Args:
            count: number of batches.
            seconds: longest time that each batch is traced.
            ready: makes a batch ready to run; its exceptions are passed on.
            over: called after each batch except the last one; its argument says whether the command
                has ended.
            report: gets the progress.
        """
        self._count, self._seconds = count, seconds
        self._ready, self._tell_over = ready, over
        self._report = report
        self._stop = False
        self._now = first = ready(0, None)
        self.plan = first.plan
        self.schema = first.running.schema  # of all batches

    def stop(self) -> None:
        """Ask the trace to end with the present batch. Any thread or signal handler may call
        this."""
        self._stop = True
        self._now.running.stop()

    def aggregations(self) -> tuple[Aggregation, ...]:
        """Return all aggregations with their present values."""
        return self._now.running.aggregations()

    def events(
        self, command: str = "", timeout: float | None = None
    ) -> Generator[Event, None, None]:
        """Yield the events of all batches, with one End event at the end. Its status is that of the
        first batch whose status is not 0; 0 if there is none.

        Args:
            command: shell command of the guest, run once in each batch.
            timeout: seconds for all batches together; None for no limit.
        """
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
