"""Results of test files (`kinst test`) in the formats TAP (testanything.org, versions 13 and 14)
and JUnit XML.

Tested by tests/cli/test_testing.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from kinst.core.dataclass import dataclass
from kinst.views.verdicts import Verdict

TRACE = "the trace"  # name of the first result of each file
MOST_LINES = 40  # number of lines of a test file's output to show, from its end
# Characters that XML 1.0 cannot express.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class FileReport:
    """The result of a test file.

    Attributes:
        file: path of the test file.
        verdicts: first the verdict on the trace itself, then one per TEST clause.
        output: text that the trace printed, and messages.
        seconds: how long the trace took.
    """

    file: str
    verdicts: tuple[Verdict, ...]
    output: str
    seconds: float

    @property
    def failed(self) -> bool:
        return any(one.state == "failed" for one in self.verdicts)


def tap_head(points: int) -> str:
    return f"TAP version 13\n1..{points}\n"


def tap_lines(report: FileReport, first: int, *, verbose: bool) -> str:
    """Return the TAP lines of a test file: a test point for each verdict, with details of failures.

    Args:
        report: result of the file.
        first: number of the first test point.
        verbose: show the file's output even if nothing failed.
    """
    lines: list[str] = []
    for number, one in enumerate(report.verdicts, first):
        name = re.sub(r"([#\\])", r"\\\1", " ".join(one.name.split()))
        skip = f" # SKIP {one.expression} does not hold" if one.state == "skipped" else ""
        good = "not ok" if one.state == "failed" else "ok"
        lines.append(f"{good} {number} - {report.file}: {name}{skip}")
        if one.state == "failed":
            lines += [f"  {line}" for line in ("---", *_yaml(one), "...")]
    if report.output and (verbose or report.failed):
        shown = report.output.splitlines()
        left = len(shown) - MOST_LINES
        lines += [f"# ({left} lines before)"] * (left > 0)
        lines += [f"# {line}" for line in shown[-MOST_LINES:]]
    return "\n".join(lines) + "\n"


def _yaml(verdict: Verdict) -> Iterable[str]:
    yield f"at: {_quoted(verdict.location)}"
    if verdict.expression:
        yield f"expression: {_quoted(verdict.expression)}"
    if verdict.why:
        yield f"message: {_quoted(verdict.why)}"
    if verdict.values:
        yield "values:"
        for name, value in verdict.values:
            yield f"  {_quoted(name)}: {_quoted(value)}"


def _quoted(text: str) -> str:
    """Return text as a YAML scalar in single quotes, on one line."""
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def explained(verdict: Verdict) -> str:
    """Return a few lines that say why a TEST clause failed: the assertion, the reason and the
    values."""
    lines = [
        f"{verdict.location}: {verdict.expression}" if verdict.expression else verdict.location
    ]
    lines += [verdict.why] if verdict.why else []
    lines += [f"{name} = {value}" for name, value in verdict.values]
    return "\n".join(lines)


def junit_xml(reports: Sequence[FileReport]) -> str:
    """Return reports as JUnit XML: a test suite for each file, with a test case for its trace and
    one for each TEST clause."""
    root = ElementTree.Element("testsuites", {"name": "kinst", **_totals(reports)})
    for report in reports:
        about = {"name": _clean(report.file), **_totals([report])}
        suite = ElementTree.SubElement(root, "testsuite", about)
        for one in report.verdicts:
            # The trace takes the time; judging its results takes none.
            seconds = report.seconds if one is report.verdicts[0] else 0.0
            case = ElementTree.SubElement(
                suite, "testcase", classname=_clean(report.file), name=_clean(one.name),
                time=f"{seconds:.3f}",
            )  # fmt: skip
            if one.state == "skipped":
                message = f"{one.expression} does not hold"
                ElementTree.SubElement(case, "skipped", message=_clean(message))
            if one.state == "failed":
                message = one.why or one.expression
                failure = ElementTree.SubElement(case, "failure", message=_clean(message))
                failure.text = _clean(explained(one))
        if report.output:
            ElementTree.SubElement(suite, "system-out").text = _clean(report.output)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def _totals(reports: Sequence[FileReport]) -> dict[str, str]:
    states = [one.state for report in reports for one in report.verdicts]
    return {
        "tests": str(len(states)),
        "failures": str(states.count("failed")),
        "errors": "0",
        "skipped": str(states.count("skipped")),
        "time": f"{sum(report.seconds for report in reports):.3f}",
    }


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
