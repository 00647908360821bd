"""Run of some tries in a guest: one trace, whose command is the script of the tries.

Tested by tests/trials/test_sweep.py.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Protocol

from kinst.core.dataclass import dataclass
from kinst.core.dialect import TrialFacts
from kinst.core.errors import KinstError, TargetError
from kinst.events import (
    End,
    Event,
    Frame,
    Lost,
    Message,
    Output,
    Record,
    Stack,
    flattened,
)
from kinst.trials.guest_output import GuestReader, GuestTry

# How many times the script's limit the guest may say nothing: the script looks for a hang itself
# every `limit` seconds, and counts the kernel's objects between two runs.
SILENT_LIMITS = 4
_AFTER_HANG = 5.0  # seconds for the script after the kernel has reported a hang
_LOOK = 0.2  # seconds between two looks at the clock


class RunningTries(Protocol):
    """The part of kinst.api.Trace that a run needs."""

    def events(self) -> Iterator[Event]: ...

    def stop(self) -> None: ...


@dataclass(slots=True)
class GuestRun:
    """What happened in one trace that ran some tries in a guest.

    Attributes:
        tries: the tries that began, in order.
        records: records of the D program, by the number of the try that made them. Exception: the
            lists of calls that the baseline makes (TryRecord.kind LISTED and KEPT) are at number 0.
        warm: exit status of the command before the tries; None if it did not end.
        gone: how the guest has ended: (outcome, text with the end of its console); None if it has
            not ended.
        said: problems that the kernel has reported on its console.
        lost: whether records were dropped.
        seconds: how long each try took, in the order of `tries`.
    """

    tries: list[GuestTry] = field(default_factory=list)
    records: dict[int, list[TryRecord]] = field(default_factory=dict)
    warm: int | None = None
    gone: tuple[str, str] | None = None
    said: list[str] = field(default_factory=list)
    lost: bool = False
    seconds: list[float] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Whether the guest still answers, so that it may be used for another run."""
        return self.gone is None and not any(one.hung for one in self.tries)


@dataclass(frozen=True, slots=True)
class TryRecord:
    """A record of the D program.

    Attributes:
        kind: what it is about: LISTED for a call that could fail, KEPT for a call that must not
            fail, FAILED for the call that failed, RETURNED for the return of the outermost function
            (outcomes.Returned), DELAYED for an instruction at which the CPU waited.
        value: for LISTED and KEPT, the number of the call among those of its kind; for RETURNED,
            the returned value; otherwise 0.
        frames: the stack that the probe recorded.
    """

    kind: int
    value: int
    frames: tuple[Frame, ...]


def script_text(
    facts: TrialFacts, command: str, numbers: Iterable[int], expected: int | None, limit: int
) -> str:
    """Return the shell script that runs tries.

    Args:
        facts: how the guest's system runs tries.
        command: the user's command.
        numbers: numbers of the tries, in order.
        expected: exit status of the command if nothing fails; None if it is not known.
        limit: seconds after which a command that has not ended counts as hung.
    """
    values = {
        "command": command,
        "numbers": " ".join(map(str, numbers)),
        "expected": "" if expected is None else str(expected),
        "limit": str(limit),
        "base": str(facts.base),
    }
    first = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return first + facts.script.read_text(encoding="utf-8")


def run_tries(
    trace: RunningTries, limit: float, listing: Sequence[int], on_try: Callable[[int], None]
) -> GuestRun:
    """Run a trace whose command is the script of some tries, and return what happened.

    The run ends early if the guest hangs or ends. In this case the caller must close the machine.
    In any other case the caller must close the trace; the trace then waits until the command has
    ended.

    Args:
        trace: the trace, which has not run.
        limit: seconds in which the guest must say something.
        listing: the kinds LISTED and KEPT. A record of these kinds has the number of a call; any
            other record has the number of a try.
        on_try: called with the number of each try that begins.
    """
    run, reader = GuestRun(), GuestReader()
    begun: list[float] = []
    with _watched(trace, limit) as clock:
        try:
            for event in flattened(trace.events()):
                match event:
                    case Output(data):
                        clock.touch()
                        reader.take(data)
                        for one in reader.tries[len(begun) :]:
                            begun.append(time.monotonic())
                            on_try(one.number)
                    case Record():
                        _add(run.records, event, listing)
                    case Message(text, kind) if kind:
                        run.said.append(text)
                        if kind == "hang":
                            clock.hurry()
                    case Lost():
                        run.lost = True
                    case End(reason, _, error) if reason in ("panic", "hang", "gone"):
                        run.gone = ("panic" if reason == "gone" else reason, error)
                if reader.hang_told:
                    break
        except TargetError as error:
            if run.gone is None:
                raise
            run.gone = run.gone[0], str(error)
    run.tries, run.warm = reader.tries, reader.warm
    if clock.late and run.gone is None and not reader.hang_told:
        silent = f"the guest has said nothing for {limit:g} s"
        run.gone = "hang", "\n".join(run.said or [silent])
    ends = [*begun[1:], time.monotonic()]
    run.seconds = [end - start for start, end in zip(begun, ends, strict=False)]
    return run


def _add(records: dict[int, list[TryRecord]], event: Record, listing: Sequence[int]) -> None:
    """Add a record to those of its try."""
    plain = [value.value for value in event.values]
    frames = next((value.frames for value in plain if isinstance(value, Stack)), ())
    numbers = [value for value in plain if isinstance(value, int)]
    kind, number = numbers[0], numbers[1]
    if kind in listing:
        records.setdefault(0, []).append(TryRecord(kind, number, frames))
    else:
        value = numbers[2] if len(numbers) > 2 else 0
        records.setdefault(number, []).append(TryRecord(kind, value, frames))


class _Clock:
    """Time by which the guest must say something.

    Attributes:
        late: whether the trace was stopped because the guest said nothing for too long.
    """

    def __init__(self, limit: float) -> None:
        self.late = False
        self._limit = limit
        self._deadline = time.monotonic() + limit

    def touch(self) -> None:
        """Note that the guest has said something."""
        self._deadline = time.monotonic() + self._limit

    def hurry(self) -> None:
        """Note that the kernel has reported a hang."""
        self._deadline = time.monotonic() + _AFTER_HANG

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._deadline


@contextmanager
def _watched(trace: RunningTries, limit: float) -> Iterator[_Clock]:
    """Context manager that stops a trace whose guest says nothing for `limit` seconds."""
    clock, over = _Clock(limit), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK):
            if clock.is_over:
                clock.late = True
                trace.stop()
                return

    thread = threading.Thread(target=watch, name="kinst-tries", daemon=True)
    thread.start()
    try:
        yield clock
    finally:
        over.set()
        thread.join()


def stack_text(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Return the frames of a stack as FUNCTION+OFFSET, innermost first; inlined functions without
    an offset."""
    return tuple(
        one.function if one.inlined else f"{one.function or hex(one.address)}+{one.offset:#x}"
        for one in frames
    )


def warm_or_raise(run: GuestRun, command: str) -> None:
    """Raise KinstError if the command did not end before the first try."""
    if run.warm is None and not run.tries:
        told = run.gone[1] if run.gone else "\n".join(run.said)
        raise KinstError(
            f"`{command}` does not end, though nothing fails: {told or 'it says nothing'}",
            "try it with kinst -c",
        )
