"""Sweeps of `kinst inject` and `kinst race`: functions that open guests, run the tries, show
progress, and write the summary.

A try is one run of the command (-c) in a guest, in which kinst makes one call fail (`inject`) or
lets a CPU wait at one instruction (`race`). A sweep is all tries of a command line; they are
numbered from 1.

Tested by tests/cli/commands/test_inject.py and tests/vm/inject/test_inject.py.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinst import api
from kinst.api import Machine, Report, Request
from kinst.cli import outcome
from kinst.cli.guard import say, write
from kinst.cli.progress import Progress
from kinst.cli.reporting import discard, user_report
from kinst.core.units import counted
from kinst.errors import KinstError
from kinst.trials.delays import Delays
from kinst.trials.injection import FailableCall, Injection, failures_of, find_targets, in_order
from kinst.trials.outcomes import FAULTS, Try
from kinst.trials.results_file import ResultsFile
from kinst.trials.summary import Summary, summary_json, summary_text
from kinst.trials.summary_html import summary_html
from kinst.trials.sweep import Baseline, Sweep, Worker, run_sweep


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line of a sweep asks for.

    Attributes:
        words: all words after `kinst inject` or `kinst race`.
        request: options of the guests, and the command to run in them (-c).
        arguments: words that are not options: for `kinst inject` the failures, for `kinst race` the
            function.
        limit: seconds after which a command (-c) that has not ended counts as hung (--timeout). If
            0, kinst chooses the limit by how long the command takes when nothing fails.
        only: numbers of the tries to run; None for all.
        jobs: number of guests that run at the same time.
        results: path of the file of results; "" for none.
        output: path of the summary; "" for standard output.
    """

    words: Sequence[str]
    request: Request
    arguments: Sequence[str]
    limit: int
    only: Sequence[int] | None
    jobs: int
    results: str
    output: str

    def repeat(self, name: str) -> str:
        """Return the kinst command that repeats the sweep, without the options that say which tries
        run and where their results go."""
        kept: list[str] = []
        following = iter(self.words)
        for word in following:
            if word in ("--only", "--jobs", "--results", "-o"):
                next(following, None)
            elif word.partition("=")[0] not in ("--only", "--jobs", "--results", "--first"):
                kept.append(word)
        return shlex.join(["kinst", name, *kept])


def inject(asked: Asked, within: Sequence[str], *, first: bool) -> int:
    """Run `kinst inject`, and return its exit status.

    Args:
        asked: the command line.
        within: the functions of --in. A call fails only if one of them makes it, directly or
            through other functions.
        first: whether to try only the first of several calls that have the same stack.
    """
    request, texts = asked.request, asked.arguments
    failing = " ".join(f"'{text}'" for text in texts)
    report = user_report(request)
    with api.Machine(request, report=report) as machine:
        failures = failures_of(texts, machine.dialect)
        machine.start()
        targets = find_targets(machine, failures)
        if request.verbose:
            for name, why in targets.left_out:
                say(f"kinst: {name} is left out: {why}")
        elif targets.left_out:
            some = counted(len(targets.left_out), "function is", "functions are")
            say(f"kinst: {some} left out (-v says why)")
        sweep = Injection(machine, targets, within)
        if request.show_program:
            write(sys.stdout, sweep.program)
            return 0
        say(f"kinst: {targets.told}")
        run = _SweepRun(asked, sweep, machine)
        base = run.baseline()
        report.left_out = discard  # every trace would repeat it
        calls = sweep.calls(base.run)
        say(f"kinst: {_calls_and_stacks(calls)} can fail")
        kept = sweep.kept(base.run)
        left_out = ""
        if kept:
            left_out = (
                f"left out: {_calls_and_stacks(kept)}, which must not fail (their flags have"
                f" {sweep.flag})"
            )
            say(f"kinst: {left_out}")
        if not calls:
            raise KinstError(
                "no such call was made",
                "name other functions with --in, or run a command that makes such calls",
            )
        chosen = asked.only or in_order(calls, first=first)
        title = f"kinst inject {failing} --in {','.join(within)}: `{request.command}`"
        key: dict[str, object] = {
            "fail": list(texts), "in": list(within), "command": request.command,
            "kernel": machine.release, "kept": sweep.flag,
        }  # fmt: skip
        return run.all(chosen, base, title, key, FAULTS, "inject", left_out)


def race(
    asked: Asked, function: str, offsets: Sequence[int], delays: Sequence[int], cpu: int
) -> int:
    """Run `kinst race`, and return its exit status.

    Args:
        asked: the command line.
        function: FUNCTION or MODULE:FUNCTION.
        offsets: where in the function the CPU waits, as offsets of instructions; () for all
            instructions. In each try it waits at one of them.
        delays: how many nanoseconds the CPU waits. Each instruction has a try with each delay.
        cpu: number of the CPU that waits.
    """
    request, report = asked.request, user_report(asked.request)
    with api.Machine(request, report=report) as machine:
        machine.start()
        name = function if ":" in function else f":{function}"
        probes = [one for one in machine.probes(f"kinst:{name}:") if one.way != "refused"]
        known = [int(one.name) for one in probes]
        unknown = [str(one) for one in offsets if one not in known]
        if unknown or not known:
            at = ", ".join(unknown) or "any instruction"
            raise KinstError(f"no CPU can wait at {at} of {function}", "kinst -l -v lists them")
        sweep = Delays(machine, name, offsets or known, delays, cpu)
        if request.show_program:
            write(sys.stdout, sweep.program)
            return 0
        chosen = asked.only or range(1, sweep.count + 1)
        counts = ", ".join((
            counted(len(offsets or known), "instruction", spec=","),
            counted(len(delays), "delay"),
        ))  # fmt: skip
        fewer = "" if offsets else " (--at and --delays choose fewer)"
        tries = counted(len(chosen), "try", "tries", spec=",")
        say(f"kinst: {counts}: {tries} on CPU {cpu}{fewer}")
        run = _SweepRun(asked, sweep, machine)
        base = run.baseline()
        report.left_out = discard
        title = f"kinst race {function}: `{request.command}`"
        key: dict[str, object] = {
            "function": function, "offsets": [*(offsets or known)], "delays": [*delays],
            "cpu": cpu, "command": request.command, "kernel": machine.release,
        }  # fmt: skip
        faults = (*(one for one in FAULTS if one != "errno"), "failed")
        return run.all(chosen, base, title, key, faults, "race")


class _SweepRun:
    """Run of a sweep's tries, and their summary."""

    def __init__(self, asked: Asked, sweep: Sweep, machine: Machine) -> None:
        """Make the run.

        Args:
            asked: the command line.
            sweep: what is tried.
            machine: the first machine, which has started.
        """
        self._asked, self._sweep = asked, sweep
        self._release = machine.release
        self._progress = Progress("kinst")
        self._lock = threading.Lock()
        self._all, self._over = 0, 0
        self._workers = [self._worker(machine)]

    def _worker(self, machine: Machine | None = None) -> Worker:
        request = self._asked.request

        def opened() -> Machine:
            report = Report(say, discard, time.monotonic(), left_out=discard)
            return api.Machine(request, report=report)

        return Worker(opened, self._sweep, request.command, discard, machine)

    def baseline(self) -> Baseline:
        """Run the command without a failure or a delay, and return what happened. The tries are
        compared with this."""
        base = self._workers[0].baseline(self._asked.limit)
        if base.status:
            output = "".join(f"\n    > {line}" for line in base.run.tries[-1].output)
            say(
                f"kinst: `{self._asked.request.command}` fails, though nothing is made to fail:"
                f" its status is {base.status}{output}"
            )
        return base

    def all(
        self,
        numbers: Sequence[int],
        base: Baseline,
        title: str,
        key: dict[str, object],
        faults: Sequence[str],
        name: str,
        left_out: str = "",
    ) -> int:
        """Run tries, write the summary, and return the exit status: 1 if a fault was found.

        Args:
            numbers: numbers of the tries.
            base: result of baseline().
            title: what is tried, as the title of the summary.
            key: what identifies the sweep. A file of results with another key is not used.
            faults: names of outcomes that count as faults: one such try makes the exit status 1.
            name: name of the kinst command, "inject" or "race".
            left_out: a sentence about calls that are not tried; "" if there are none.
        """
        asked = self._asked
        results = ResultsFile(asked.results, key)
        before = len(results.tries)
        self._all = len(set(numbers) - {*results.tries})
        self._workers += [self._worker() for _ in range(asked.jobs - 1)]
        began = time.monotonic()
        run_sweep(self._workers, numbers, base, results, self._on_result)
        seconds = time.monotonic() - began
        chosen = {*numbers}
        tries = [one for number, one in sorted(results.tries.items()) if number in chosen]
        ran = len(results.tries) - before
        summary = Summary(
            asked.repeat(name), title, self._release, self._sweep.program, faults, tries,
            seconds, ran, self._sweep.unit, left_out,
        )  # fmt: skip
        outcome.put(_shown(asked.output)(summary), asked.output)
        if asked.output:
            say(f"kinst: {summary.figures}")
        return int(any(one.outcome in faults for one in tries))

    def _on_result(self, one: Try) -> None:
        with self._lock:
            self._over += 1
            part = self._over / self._all if self._all else 1.0
            told = f"try {one.number}: {one.outcome}" if one.is_fault else "tries"
            self._progress(f"{told} ({self._over} of {self._all})", part)


def _calls_and_stacks(calls: Sequence[FailableCall]) -> str:
    """Return how many calls there are, and from how many stacks, as text."""
    stacks = len({one.stack for one in calls})
    return f"{counted(len(calls), 'call')} from {counted(stacks, 'stack')}"


def _shown(path: str) -> Callable[[Summary], str]:
    """Return the function that makes the summary for a file of this name."""
    if path.endswith((".html", ".htm")):
        return summary_html
    return summary_json if path.endswith(".json") else summary_text
