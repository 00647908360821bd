"""Runner of test files (`kinst test`), one after another on as few machines as possible.

Tested by tests/cli/test_testing.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from kinst.api import Machine, Program, ProgramText, Request, Trace
from kinst.cli.interrupts import Interrupts
from kinst.cli.reporting import user_report
from kinst.errors import DError, GoneError, KinstError, ScratchUsedUpError, TargetError
from kinst.events import Batch, End, Event, Message, Output, Shell
from kinst.render import Destination, renderer
from kinst.views.reports import TRACE, FileReport
from kinst.views.verdicts import (
    Assertion,
    Given,
    TestFile,
    TraceResults,
    Verdict,
    judge,
    read_test_file,
)

_SAYS_FAIL = re.compile(r"^\s*#\s*pragma\s+D\s+option\s+fail\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A test file that was read.

    Attributes:
        path: path of the file.
        file: its program and tests; None if the file cannot be run.
        error: why the file cannot be run; "" if it can.
    """

    path: str
    file: TestFile | None
    error: str = ""

    @property
    def points(self) -> int:
        """Number of results of the file: one for its trace, and one for each TEST clause."""
        return 1 + (len(self.file.tests) if self.file is not None else 0)


class Runner:
    """Runner of test files on one machine, which is replaced after a crash.

    A context manager: leaving it ends the machine.

    Attributes:
        interrupted: whether Ctrl-C ended the last trace.
    """

    def __init__(self, request: Request, interrupts: Interrupts, seconds: float) -> None:
        """Make a runner; its machine starts with the first file.

        Args:
            request: options of the machine and of all traces.
            interrupts: handlers that end a trace.
            seconds: time limit for the trace of a file, unless the file or the request has a limit.
        """
        self._request = request
        self._seconds = seconds
        self._interrupts = interrupts
        self._machine: Machine | None = None
        self.interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def _drop(self) -> None:
        """End the machine, so that the next file gets a new one."""
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.close()

    def read(self, path: str) -> PlannedFile:
        """Return a test file. If it cannot be read or compiled, the returned value has the error,
        which counts as a failed test."""
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                return PlannedFile(path, read_test_file(file.read(), path))
        except DError as error:
            return PlannedFile(path, None, _compile_error(error))
        except OSError as error:
            return PlannedFile(path, None, f"failed to open {path}: {error.strerror}")

    def run(self, planned: PlannedFile) -> FileReport:
        """Trace the program of a test file, and return the verdicts on its trace and its TEST
        clauses."""
        began = time.monotonic()
        run = _FileRun(planned.path)
        if planned.file is None:
            run.trouble = planned.error
        else:
            self._traced(planned.file, run)
        return run.report(planned.file, time.monotonic() - began)

    def _traced(self, file: TestFile, run: _FileRun) -> None:
        try:
            with self._trace(file, run) as trace:
                self._interrupts.end(trace)
                run.follow(trace, file.clauses)
        except GoneError as error:
            run.fail(str(error))
            self._drop()
        except KinstError as error:
            run.fail(_compile_error(error) if isinstance(error, DError) else str(error))
        self._interrupts.over()
        self.interrupted = run.end is not None and run.end.reason == "interrupted"
        # Do not use a kernel that has reported an oops or a warning for another file.
        if run.complained or (run.end is not None and run.end.reason in ("panic", "hang", "gone")):
            with suppress(KinstError):
                self._drop()

    def _trace(self, file: TestFile, run: _FileRun) -> Trace:
        asked = self._request
        settings = asked.settings
        if not (_SAYS_FAIL.search(file.program) or any(name == "fail" for name, _ in settings)):
            settings = (*settings, ("fail", "all"))
        asked = replace(
            asked,
            programs=(ProgramText("s", file.program, run.path),),
            arguments=(),
            settings=settings,
            command=file.command or asked.command,
            timeout=file.timeout or asked.timeout or self._seconds,
        )
        fresh = self._machine is None
        machine, program = self._compiled(asked)
        try:
            return machine.trace(program, asked.command)
        except (ScratchUsedUpError, TargetError) as error:
            if isinstance(error, GoneError) and fresh:
                raise
        # Start a machine for this program only, with as much scratch memory as the program needs.
        self._drop()
        machine, program = self._compiled(asked)
        machine.start(program)
        return machine.trace(program, asked.command)

    def _compiled(self, asked: Request) -> tuple[Machine, Program]:
        if self._machine is None:
            report = user_report(replace(self._request, verbose=False))  # -v is of the results
            self._machine = Machine(self._request, report=report)
        program = self._machine.compile_request(asked)
        if asked.command or self._machine.needs_kernel(program):
            self._machine.start()
        return self._machine, program


def _compile_error(error: DError) -> str:
    return f"failed to compile: {error.span}: {error}"


class _FileRun:
    """Run of one test file: its trace's output, results and errors.

    Attributes:
        path: path of the file.
        trouble: why the trace failed; "" if it did not fail.
        end: the last event of the trace; None if the trace did not end.
        complained: whether the kernel has reported an oops, a warning or the like.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.trouble = ""
        self.end: End | None = None
        self.complained = False
        self._text: list[str] = []
        self._measured: TraceResults | None = None

    def fail(self, message: str) -> None:
        """Record a failure of the trace.

        Args:
            message: the first line is the reason; further lines (the guest's console) become
                output.
        """
        first, *more = message.splitlines()
        self.trouble = self.trouble or first
        self._text += [f"{line}\n" for line in more]

    def follow(self, trace: Trace, clauses: int) -> None:
        """Run the trace to its end, and collect its output, its results and the values for
        assertions.

        Args:
            trace: the trace.
            clauses: how many clauses kinst has added at the end of the program. These END clauses
                record the values for assertions; their records are not shown.
        """
        every = [clause.index for clause, _ in trace.schema.clauses()]
        first = max(every, default=-1) + 1 - clauses
        reads: list[Sequence[Given] | None] = [None] * clauses
        destination = Destination(write=self._text.append, say=self._say)
        shown = renderer("dtrace")(destination, trace.schema)
        try:
            for event in trace.events():
                self._see(event)
                if isinstance(event, Batch):
                    mine = event.clauses >= np.uint32(first)
                    for record in _part(event, mine):
                        values = [value.value for value in record.values]
                        reads[record.clause - first] = [
                            value if isinstance(value, int | str) else str(value)
                            for value in values
                        ]
                    event = _part(event, ~mine)
                shown.show(event)
        finally:
            shown.close()
            if self.end is not None and not self.end.error:
                self._measured = TraceResults(trace.aggregations(), reads, self.end.status)

    def _say(self, text: str) -> None:
        self._text.append(f"{text}\n")

    def _see(self, event: Event) -> None:
        match event:
            case Output():
                self._text.append(event.data.decode("utf-8", "surrogateescape"))
            case Message():
                self.complained = self.complained or bool(event.kind)
                if event.text.startswith("kinst: exit status "):
                    self.trouble = event.text.removeprefix("kinst: ")
            case Shell():
                raise KinstError("system() cannot be used in a test", "take it out")
            case End():
                self.end = event

    def report(self, file: TestFile | None, seconds: float) -> FileReport:
        verdicts = [self._of_trace(file)]
        for test in file.tests if file is not None else ():
            if self._measured is not None:
                verdicts.append(judge(test, self._measured))
            else:
                place = f"{test.span.file}:{test.span.line}"
                why = "the trace did not come to its end"
                verdicts.append(Verdict(test.name, "failed", place, why=why))
        return FileReport(self.path, tuple(verdicts), "".join(self._text), seconds)

    def _of_trace(self, file: TestFile | None) -> Verdict:
        trouble = self.trouble
        if not trouble and self.end is not None and self.end.reason == "interrupted":
            trouble = "the trace was interrupted"
        status = self.end.status if self.end is not None else 0
        if not trouble and status and file is not None and not _asks_status(file):
            reason = self.end.reason if self.end is not None else ""
            told: dict[str, str] = {"command": "the command's", "exit": "exit()'s"}
            trouble = f"{told.get(reason, 'the')} status is {status}"
            if reason == "timeout":
                trouble = "the command was not over in time (#pragma D test timeout)"
        return Verdict(TRACE, "failed" if trouble else "ok", self.path, why=trouble)


def _asks_status(file: TestFile) -> bool:
    asked: list[Assertion] = [one for test in file.tests for one in test.assertions]
    return any(one.asks_status for one in asked)


def _part(batch: Batch, mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Batch:
    """Return a Batch event with only those records for which the mask is true."""
    following = batch.following[mask] if batch.following is not None else None
    return replace(
        batch, offsets=batch.offsets[mask], clauses=batch.clauses[mask], following=following
    )
