"""Classification of tries: what went wrong in a try, worst first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from kinst.core.boot import ConsoleSigns
from kinst.core.dataclass import dataclass
from kinst.trials.guest_output import GuestTry

# Outcomes, worst first, and what each means.
OUTCOMES = {
    "panic": "the kernel panicked",
    "hang": "the command hung",
    "oops": "the kernel oopsed",
    "warn": "the kernel warned",
    "leak": "memory was not freed",
    "broken": "the command fails afterwards, too",
    "errno": "another error was returned",
    "failed": "the command failed",
    "survived": "the command went on",
    "unreached": "the call was not made",
}
# Outcomes that are faults of the kernel, or may be.
FAULTS = ("panic", "hang", "oops", "warn", "leak", "broken", "errno")
# Outcomes after which the guest is replaced.
SPOILT = ("panic", "hang", "oops", "warn", "broken")
_MOST_LINES = 100  # lines of the log that a report has


@dataclass(frozen=True, slots=True)
class Returned:
    """What the outermost function returned in a try.

    Calls fail only while a function of a given list (`within` of injection_program()) is on the
    stack. The outermost function is the function of this list that was called first.

    Attributes:
        function: the function's name.
        error: number of the error that the function returned, positive; 0 if it returned no error.
    """

    function: str
    error: int


@dataclass(frozen=True, slots=True)
class Try:
    """Result of a try.

    Attributes:
        number: the try's number, from 1: which call fails, or which delay is made.
        outcome: one of OUTCOMES.
        title: what happened, in one line: a line of the kernel's log, or a sentence of kinst's.
        stack: where the call failed or the CPU waited: innermost function first, FUNCTION+OFFSET
            each.
        status: exit status of the command with the failure or the delay; None if it did not end.
        second: exit status of a second run of the command, without the failure or the delay; None
            if it did not end.
        returned: the outermost function (see Returned) and the error that it returned, such as "f:
            ENOMEM"; "" for none.
        grown: number of objects that were not freed, by the name of their cache.
        log: lines of the kernel's log.
        output: last lines of the command's output.
        seconds: how long the try took.
        again: outcome of the repeat of this try; "" if it was not repeated.
    """

    number: int
    outcome: str
    title: str = ""
    stack: tuple[str, ...] = ()
    status: int | None = None
    second: int | None = None
    returned: str = ""
    grown: Mapping[str, int] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    seconds: float = 0.0
    again: str = ""

    @property
    def is_fault(self) -> bool:
        return self.outcome in FAULTS

    @property
    def function(self) -> str:
        """Name of the function that failed; "" if no call failed."""
        return self.stack[0].partition("+")[0] if self.stack else ""

    @property
    def site(self) -> str:
        """Call site (FUNCTION+OFFSET) of the call that failed; "" if no call failed."""
        return next((one for one in self.stack[1:] if "+" in one), "")

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say something, as values of JSON."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value or name in ("number", "status", "second")
        }

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Try:
        """Make a try from the values that to_json() returned for it."""
        lists = ("stack", "log", "output")
        fields: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in values.items()}
        return cls(**fields)


def complaints(lines: Iterable[str], signs: ConsoleSigns) -> list[tuple[str, str]]:
    """Return (outcome, text) for each line in which the kernel reports a problem, sorted by
    outcome, worst first."""
    found: list[tuple[str, str]] = []
    for line in lines:
        if match := signs.panic.search(line):
            found.append(("panic", match[0]))
        elif match := signs.trouble.search(line):
            found.append((match.lastgroup or "oops", match[0]))
    order = list(OUTCOMES)
    return sorted(found, key=lambda one: order.index(one[0]))


def error_of(value: int, size: int, most: int) -> int:
    """Return the number of the error in a returned value, positive; 0 if the value is no error.

    Args:
        value: the register's value.
        size: bytes of the function's result.
        most: the largest error number.
    """
    value &= (1 << 8 * size) - 1
    signed = value - (1 << 8 * size) if value >> 8 * size - 1 else value
    return -signed if -most <= signed < 0 else 0


def classify(
    one: GuestTry,
    signs: ConsoleSigns,
    expected: int,
    *,
    reached: bool,
    returned: Returned | None = None,
    wanted: int = 0,
    names: Mapping[int, str] | None = None,
    gone: tuple[str, str] | None = None,
) -> Try:
    """Return the result of a try, without its stack.

    Memory that may have leaked is in `grown`; leaked() says whether it has.

    Args:
        one: what the guest said.
        signs: patterns for the lines of the log.
        expected: exit status of the command if nothing fails.
        reached: whether the call failed, or the CPU waited.
        returned: what the outermost function (see Returned) returned; None if that is not known.
        wanted: number of the error that callers of the failed function should return; 0 if that is
            not known.
        names: names of errors by number.
        gone: how the guest has ended: an outcome, and text with the end of its console; None if it
            has not ended.
    """
    names = names or {}
    log = list(one.log)
    if gone is not None:
        log += gone[1].splitlines()
    said = complaints(log, signs)
    worst = said[0] if said else ("", "")
    error, function = (returned.error, returned.function) if returned else (0, "")
    told = f"{function}: {names.get(error, error)}" if error else ""
    outcome, title = worst
    if gone is not None and gone[0] in OUTCOMES and worst[0] != "panic":
        outcome, title = gone[0], title or gone[1].partition("\n")[0]
    elif one.hung and worst[0] != "oops":
        outcome, title = "hang", _hang(one.hung)
    elif not outcome:
        if not reached:
            outcome = "unreached"
        elif one.second is not None and one.second != expected:
            outcome = "broken"
            title = f"afterwards the command's status is {one.second}, not {expected}"
        elif error and wanted and error != wanted:
            outcome = "errno"
            title = (
                f"{function} returned {names.get(error, error)}, not {names.get(wanted, wanted)}"
            )
        elif one.status != expected:
            outcome, title = "failed", f"the command's status is {one.status}"
        else:
            outcome = "survived"
    return Try(
        one.number, outcome, title, status=one.status, second=one.second, returned=told,
        grown=kept(one), log=_shown(log, signs) if said or one.hung or gone else (),
        output=tuple(one.output),
    )  # fmt: skip


def _shown(log: Sequence[str], signs: ConsoleSigns) -> tuple[str, ...]:
    """Return the lines of a log from the first line that reports a problem, or from its start if no
    line does; at most _MOST_LINES."""
    bad = (k for k, line in enumerate(log) if complaints([line], signs))
    start = next(bad, 0)
    return tuple(log[start : start + _MOST_LINES])


def _hang(run: str) -> str:
    told = {
        "first": "the command hung",
        "second": "the next run of the command hung, in which nothing failed",
        "objects": "the file systems or caches could not be emptied after the command",
    }
    return told.get(run, "the command hung")


def kept(one: GuestTry) -> dict[str, int]:
    """Return how many objects the first run of a try may have leaked, by the names of their caches.

    In such a cache, the first run left more objects than the second run did, and the second run
    freed at most half of them. If it freed more, the kernel frees such objects later, by itself.
    """
    if one.status is None or one.second is None:
        return {}
    found: dict[str, int] = {}
    for name, count in one.grown.items():
        later = one.later.get(name, 0)
        if count > max(later, 0) and count + 2 * later >= 0:
            found[name] = count - abs(later)
    return found


def leaked(repeats: Sequence[GuestTry]) -> dict[str, int]:
    """Return how many objects a try leaks each time it runs, on average, by the names of their
    caches.

    Each repeat runs the command twice: with the failure, then without. A cache counts as leaking if
    all of this is true after n repeats:

    - It has at least n objects more than before.
    - The runs with the failure have left at least n objects more in it than the runs without.
    - kept() has found it in all repeats, or in all but one. This excludes a cache that grows only
      once, by many objects, for another reason.

    Args:
        repeats: the repeats, one right after the other in the same guest.
    """
    count = len(repeats)
    names = {name for one in repeats for name in one.grown}
    found: dict[str, int] = {}
    for name in sorted(names):
        first = sum(one.grown.get(name, 0) for one in repeats)
        second = sum(one.later.get(name, 0) for one in repeats)
        steady = sum(name in kept(one) for one in repeats) >= count - 1
        if steady and first + second >= count and first - second >= count:
            found[name] = (first + min(second, 0)) // count
    return found
