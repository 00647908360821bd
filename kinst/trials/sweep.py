"""Run of a sweep: all tries on one or more machines. A machine is replaced if a try has spoilt it,
and a try with a fault is repeated."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from kinst.api import Machine, Program, Trace
from kinst.core.dataclass import dataclass
from kinst.core.dialect import TrialFacts
from kinst.core.errors import KinstError
from kinst.trials.guest_output import GuestTry
from kinst.trials.guest_run import (
    SILENT_LIMITS,
    GuestRun,
    TryRecord,
    run_tries,
    script_text,
    warm_or_raise,
)
from kinst.trials.outcomes import SPOILT, Returned, Try, classify, leaked
from kinst.trials.programs import KEPT, LISTED
from kinst.trials.results_file import ResultsFile

CHUNK = 10  # tries of a trace at most: their results are kept when the trace is over
REPEATS = 4  # in a series of repeats of a try that may have leaked
FIRST_LIMIT = 60  # seconds in which the command must end before kinst knows how long it takes
LEAST_LIMIT = 10
TIMES = 4  # a command hangs if it takes so many times as long as usual
_END_SECONDS = 30.0  # for a guest's command to end after Ctrl-C
_OPTIONS = {"destructive": True, "quiet": True}


class Sweep(Protocol):
    """What is tried.

    Attributes:
        facts: how tries run in guests of the system.
        program: D text of all tries.
        baseline: number of the try in which no call fails and no CPU waits.
        names: names of errors by number.
        blames_status: whether a try is repeated if the command fails in it but the kernel shows no
            fault. A try with a fault is repeated in any case.
        unit: what a try is about, for messages: "call", "delay".
    """

    @property
    def facts(self) -> TrialFacts: ...
    @property
    def program(self) -> str: ...
    @property
    def baseline(self) -> int: ...
    @property
    def names(self) -> Mapping[int, str]: ...
    @property
    def blames_status(self) -> bool: ...
    @property
    def unit(self) -> str: ...

    def stack(self, records: Sequence[TryRecord]) -> tuple[str, ...]:
        """Return the stack of the call that failed in a try, or of the CPU that waited; () if there
        was none.
        """
        ...

    def wanted(self, stack: tuple[str, ...]) -> int:
        """Return the number of the error that callers of the failed function should return; 0 if
        that is not known.

        Args:
            stack: stack of the call that failed, as stack() returned it.
        """
        ...

    def returned(self, records: Sequence[TryRecord]) -> Returned | None:
        """Return what the outermost function (see Returned) returned; None if not known."""
        ...


@dataclass(frozen=True, slots=True)
class Baseline:
    """Result of the tries in which no call failed and no CPU waited.

    Attributes:
        run: what happened in these tries.
        status: exit status of the command in all of them.
        limit: seconds after which a command that has not ended counts as hung.
    """

    run: GuestRun
    status: int
    limit: int


class Worker:
    """Runs tries on a machine, which is replaced if necessary. One thread uses it."""

    def __init__(
        self,
        open_machine: Callable[[], Machine],
        sweep: Sweep,
        command: str,
        on_try: Callable[[int], None],
        machine: Machine | None = None,
    ) -> None:
        """Make a worker.

        Args:
            open_machine: makes a machine.
            sweep: what is tried.
            command: the user's command.
            on_try: called with the number of each try that begins.
            machine: a machine to begin with; None to make one.
        """
        self._open, self._sweep, self._command = open_machine, sweep, command
        self._on_try = on_try
        self._machine = machine
        self._program: Program | None = None
        self._trace: Trace | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Ask the running tries to end, and start no others. Any thread may call this."""
        self._is_stopped = True
        trace = self._trace
        if trace is not None:
            trace.stop()

    def close(self) -> None:
        """End the machine."""
        machine, self._machine, self._program = self._machine, None, None
        if machine is not None:
            with suppress(KinstError):
                machine.close()

    def run(self, numbers: Sequence[int], expected: int | None, limit: int) -> GuestRun:
        """Run tries in the guest, and return what happened. If the guest has hung or ended, close
        the machine.

        Args:
            numbers: numbers of the tries.
            expected: exit status of the command without a failure or delay; None if it is not
                known.
            limit: seconds after which a command that has not ended counts as hung.

        Raises:
            KinstError: the sweep has been interrupted.
        """
        if self._is_stopped:
            raise KinstError("the sweep was interrupted")
        if self._machine is None:
            self._machine = self._open()
        if self._program is None:
            self._program = self._machine.compile(self._sweep.program, _OPTIONS)
            if self._program.has_stacks:
                self._machine.index_lines()
        facts = self._sweep.facts
        script = script_text(facts, self._command, numbers, expected, limit)
        trace = self._trace = self._machine.trace(self._program, script)
        silent = SILENT_LIMITS * limit + FIRST_LIMIT
        run = run_tries(trace, silent, (LISTED, KEPT), self._on_try)
        self._trace = None
        if run.is_usable:
            trace.close()
        else:
            self.close()
        warm_or_raise(run, self._command)
        return run

    def baseline(self, limit: int) -> Baseline:
        """Run the command several times without a failure or delay, and return what happened.

        Args:
            limit: seconds after which a command counts as hung; 0 to choose. Then the command has
                FIRST_LIMIT seconds here. The returned Baseline has TIMES as many seconds as the
                command took, but at least LEAST_LIMIT.

        Raises:
            KinstError: the command hangs, or does not end with the same status each time; or
                records were dropped.
        """
        number = self._sweep.baseline
        run = self.run([number, number], None, limit or FIRST_LIMIT)
        statuses = {one.status for one in run.tries} | {one.second for one in run.tries}
        if not run.is_usable or len(statuses) != 1 or None in statuses:
            told = run.gone[1] if run.gone else f"statuses {statuses}"
            raise KinstError(
                f"`{self._command}` does not end in the same way each time: {told}",
                "it must leave the guest as it was before",
            )
        if run.lost:
            raise KinstError(
                f"there are more {self._sweep.unit}s than the buffer has room for",
                "-x bufsize=16m, or fewer functions",
            )
        longest = max(run.seconds) / 2  # a try runs the command twice
        status = statuses.pop()
        assert status is not None
        return Baseline(run, status, limit or max(LEAST_LIMIT, math.ceil(TIMES * longest)))

    def tries(self, numbers: Sequence[int], base: Baseline) -> list[Try]:
        """Run tries, and return the results of those that began.

        A try with a fault is repeated, and so is a try that may have leaked memory. With
        Sweep.blames_status, a try whose command failed is repeated as well.

        Args:
            numbers: numbers of the tries, each once.
            base: what baseline() returned.
        """
        run = self.run(numbers, base.status, base.limit)
        made = self._results(run, base)
        found = []
        for one in made:
            if one.outcome in SPOILT:
                self.close()
        harmless = [
            one.number
            for one in made
            if one.outcome not in SPOILT and not one.grown and self._is_repeated(one)
        ]
        again = self._together(harmless, base)
        for one in made:
            if one.grown and one.outcome not in SPOILT:
                one = self._with_leak(one, base)
            elif one.number in again:
                one = replace(one, again=again[one.number])
            elif self._is_repeated(one):
                one = self._again(one, base)
            found.append(one)
        return found

    def _is_repeated(self, one: Try) -> bool:
        return one.is_fault or (self._sweep.blames_status and one.outcome == "failed")

    def _together(self, numbers: Sequence[int], base: Baseline) -> dict[int, str]:
        """Repeat tries that have not spoilt their guest, all in one trace, and return the outcomes
        of the repeats by number. If a repeat spoils the guest, the numbers after it are missing."""
        if not numbers:
            return {}
        found = {
            one.number: one.outcome
            for one in self._results(self.run(numbers, base.status, base.limit), base)
        }
        if any(outcome in SPOILT for outcome in found.values()):
            self.close()
        return found

    def _results(self, run: GuestRun, base: Baseline) -> list[Try]:
        """Return the results of the tries of a run that are over, or in which the guest ended."""
        results = []
        for index, one in enumerate(run.tries):
            last = index + 1 == len(run.tries)
            ended = last and run.gone is not None
            if not (one.over or one.hung or ended):
                continue
            records = run.records.get(one.number, ())
            stack = self._sweep.stack(records)
            result = classify(
                one, self._sweep.facts.signs, base.status, reached=bool(stack),
                returned=self._sweep.returned(records), wanted=self._sweep.wanted(stack),
                names=self._sweep.names, gone=run.gone if ended else None,
            )  # fmt: skip
            seconds = run.seconds[index] if index < len(run.seconds) else 0.0
            results.append(replace(result, stack=stack, seconds=round(seconds, 3)))
        return results

    def _again(self, one: Try, base: Baseline) -> Try:
        """Repeat a try, and return its result with the outcome of the repeat. A try that has spoilt
        its guest is repeated in a new guest."""
        run = self.run([one.number], base.status, base.limit)
        outcome = next((again.outcome for again in self._results(run, base)), "")
        if outcome in SPOILT:
            self.close()
        return replace(one, again=outcome, grown={})

    def _leaked(self, number: int, base: Baseline) -> dict[str, int]:
        """Repeat a try REPEATS times, and return how many objects it leaks each time, by the names
        of their caches; {} if a repeat does not end."""
        run = self.run([number] * REPEATS, base.status, base.limit)
        if any(one.outcome in SPOILT for one in self._results(run, base)):
            self.close()
        repeats: list[GuestTry] = [each for each in run.tries if each.over]
        return leaked(repeats) if len(repeats) == REPEATS else {}

    def _with_leak(self, one: Try, base: Baseline) -> Try:
        """Repeat a try that may have leaked memory, and return its result.

        If the repeats leak as well, the result's outcome is "leak". Otherwise the try keeps its
        outcome. A second series of repeats must leak in the same caches: threads of the kernel that
        begin meanwhile can look like a leak once.
        """
        lost = self._leaked(one.number, base)
        if lost:
            again = self._leaked(one.number, base)
            lost = {name: min(count, again[name]) for name, count in lost.items() if name in again}
        if not lost:
            plain = replace(one, grown={})
            return self._again(plain, base) if plain.is_fault else plain
        told = ", ".join(f"{count} of {name}" for name, count in lost.items())
        title = f"not freed in each of {2 * REPEATS} repeats: {told}"
        return replace(one, outcome="leak", title=title, grown=lost, again="leak")


def run_sweep(
    workers: Sequence[Worker],
    numbers: Sequence[int],
    base: Baseline,
    results: ResultsFile,
    on_result: Callable[[Try], None],
) -> None:
    """Run the tries of a sweep that have no results yet, each worker in a thread of its own.

    Args:
        workers: the workers.
        numbers: numbers of the tries, in the order in which they run.
        base: what Worker.baseline() returned.
        results: the results; new ones are added.
        on_result: called with each new result, in the thread of a worker.

    Raises:
        KinstError: the sweep cannot go on.
    """
    waiting = deque(number for number in numbers if number not in results.tries)
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(worker: Worker) -> None:
        try:
            while not errors:
                with lock:
                    count = min(CHUNK, math.ceil(len(waiting) / len(workers)))
                    chunk = [waiting.popleft() for _ in range(count)]
                if not chunk:
                    return
                made = worker.tries(chunk, base)
                if not made:
                    raise KinstError("the guest has run no try", "try again")
                for one in made:
                    results.add(one)
                    on_result(one)
                done = {one.number for one in made}
                with lock:
                    waiting.extendleft(number for number in reversed(chunk) if number not in done)
        except BaseException as error:
            errors.append(error)
        finally:
            worker.close()

    threads = [
        threading.Thread(target=work, args=(one,), name="kinst-sweep", daemon=True)
        for one in workers
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
    except BaseException as error:  # Ctrl-C: the results so far are in the file
        errors.append(error)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(_END_SECONDS)
        raise
    if errors:
        raise errors[0]
