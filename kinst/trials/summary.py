"""Summary of a sweep: its faults by call site and stack, as text and as JSON.

An HTML page is made by summary_html.

Tested by tests/cli/commands/test_inject.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.units import counted
from kinst.trials.outcomes import OUTCOMES, Try

_FRAMES = 6  # frames of a stack that the text shows
_LINES = 12  # lines of the log that the text shows


@dataclass(frozen=True, slots=True)
class Summary:
    """A sweep with its results.

    Attributes:
        command: the words of the kinst command that repeats the sweep, without --only.
        title: what was tried.
        kernel: release of the kernel.
        program: D text of the tries.
        faults: outcomes that are faults.
        tries: the results, by number.
        seconds: how long the sweep ran this time, without the time of an earlier sweep that it
            continues.
        ran: number of tries that ran in these seconds.
        unit: what a try is about: "call" or "delay".
        left_out: a sentence about calls that are not tried; "" if there are none.
    """

    command: str
    title: str
    kernel: str
    program: str
    faults: Sequence[str]
    tries: Sequence[Try]
    seconds: float
    ran: int
    unit: str
    left_out: str = ""

    @property
    def found(self) -> list[tuple[Try, int]]:
        """The faults, worst first. Tries with the same outcome, title and stack are one fault,
        given as (the first of these tries, how many there are)."""
        groups: dict[tuple[str, str, tuple[str, ...]], list[Try]] = {}
        for one in sorted(self.tries, key=lambda one: one.number):
            if one.outcome in self.faults:
                groups.setdefault((one.outcome, one.title, one.stack), []).append(one)
        order = list(OUTCOMES)
        firsts = [(group[0], len(group)) for group in groups.values()]
        return sorted(firsts, key=lambda one: (order.index(one[0].outcome), one[0].number))

    @property
    def counts(self) -> list[tuple[str, int]]:
        """(outcome, number of tries) for each outcome that occurred, worst first."""
        every = [one.outcome for one in self.tries]
        return [(name, every.count(name)) for name in OUTCOMES if name in every]

    @property
    def figures(self) -> str:
        """A line with the number of tries, and of each outcome."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts)
        tries = counted(len(self.tries), "try", "tries")
        text = f"{tries} of {self.unit}s: {counts}"
        if self.ran and self.seconds:
            rate = 60 * self.ran / self.seconds
            text += f" ({self.ran} in {self.seconds:.0f} s, {rate:.0f} a minute)"
        return text

    def repeat(self, one: Try) -> str:
        """Return the kinst command that repeats a try."""
        return f"{self.command} --only {one.number}"


def repeated(one: Try) -> str:
    """Return a sentence about the repeat of a try; "" if it was not repeated."""
    if not one.again:
        return ""
    if one.again == one.outcome:
        return "the same again"
    return f"again: {OUTCOMES.get(one.again, one.again)}"


def summary_text(summary: Summary) -> str:
    """Return the summary for a terminal."""
    lines = [summary.title, summary.figures]
    if summary.left_out:
        lines.append(summary.left_out)
    for one, count in summary.found:
        lines += ["", *_fault(summary, one, count)]
    return "\n".join(lines) + "\n"


def _fault(summary: Summary, one: Try, count: int) -> Iterator[str]:
    parts = [f"{one.outcome.upper()}  {summary.unit} {one.number}", one.site, repeated(one)]
    if count > 1:
        parts.append(f"{count} tries")
    yield ", ".join(part for part in parts if part)
    if one.title:
        yield f"    {one.title}"
    if one.returned and one.outcome != "errno":
        yield f"    returned {one.returned}"
    if one.stack:
        shown = " < ".join(one.stack[:_FRAMES])
        yield f"    {shown}{' < ...' * (len(one.stack) > _FRAMES)}"
    yield from (f"    | {line}" for line in one.log[:_LINES])
    yield from (f"    > {line}" for line in one.output)
    yield f"    {summary.repeat(one)}"


def summary_json(summary: Summary) -> str:
    """Return the summary as a JSON object."""
    values = {
        "title": summary.title,
        "kernel": summary.kernel,
        "command": summary.command,
        "counts": dict(summary.counts),
        "seconds": round(summary.seconds, 3),
        "ran": summary.ran,
        "left_out": summary.left_out,
        "faults": [
            {**one.to_json(), "site": one.site, "tries": count, "repeat": summary.repeat(one)}
            for one, count in summary.found
        ],
        "tries": [one.to_json() for one in summary.tries],
        "program": summary.program,
    }
    return json.dumps(values, indent=1) + "\n"
