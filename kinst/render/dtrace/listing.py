"""Text of dtrace(1)'s -l and -v: lists of probes, and reports of stability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kinst.consumer.messages import (
    LIST_HEADER,
    described,
    description_matched,
    list_row,
    script_matched,
)
from kinst.consumer.stability import probe_report, program_report
from kinst.core.probe import Probe, ProbeName, ProbePattern, ProgramText, gap_text
from kinst.session.compiled import ProbeStability, ProgramStability
from kinst.session.values import ListedProbe


def probe_rows(probes: Sequence[ListedProbe]) -> str:
    """Return the text of -l: a header, and a row for each probe."""
    return "\n".join([LIST_HEADER, *_names(probes)]) + "\n"


def _name_row(probe: ListedProbe) -> str:
    name = ProbeName(probe.provider, probe.module, probe.function, probe.name)
    return list_row(Probe(probe.id, name))


def _names(probes: Sequence[ListedProbe]) -> Iterator[str]:
    before = 0
    for probe in probes:
        if probe.id != before:
            yield _name_row(probe)
        before = probe.id
        yield from _gap_rows(probe)


def _gap_rows(probe: ListedProbe) -> Iterator[str]:
    return (f"\t{gap.function.name}+{gap.offset} {gap_text(gap)}" for gap in probe.gaps)


def planned_rows(probes: Sequence[ListedProbe]) -> str:
    """Return the text of -l -v: the rows of -l, with details below each.

    The details of an instruction are its bytes, how it is planted or why it is refused, and its
    source line. They also say which site's trampoline leads straight into this site's, and why the
    instruction is not planted in a better way.

    Below any other probe is the report of its stability. All instructions of a provider have equal
    reports, so theirs comes once, after the last of them.
    """
    lines = [LIST_HEADER]
    shown: set[int] = set()
    for probe, following in zip(probes, (*probes[1:], None), strict=True):
        if probe.id not in shown:
            lines.append(_name_row(probe))
            shown.add(probe.id)
        if probe.way:
            refused = probe.way == "refused"
            way = f"refused: {probe.reason}" if refused else probe.way
            row = f"\t{probe.code.hex(' '):<32} {probe.text:<40} {way:<7}  {probe.source}"
            lines.append(row.rstrip())
            more = [f"chained from {probe.chained}"] if probe.chained else []
            more += [probe.reason] if probe.reason and not refused else []
            if more:
                lines.append(f"\t{'':<32} {'; '.join(more)}")
        lines += _gap_rows(probe)
        if probe.stability is not None and not _alike(probe, following):
            lines.append(_probe_report(probe.stability).removesuffix("\n"))
    return "\n".join(lines) + "\n"


def _alike(probe: ListedProbe, following: ListedProbe | None) -> bool:
    """Return whether a probe and the next one in the list have the same stability report: they have
    the same id, or both are instructions of one provider (their names are offsets). False if there
    is no next probe.
    """
    if following is None:
        return False
    instructions = (
        probe.provider == following.provider
        and probe.name.isdecimal() == following.name.isdecimal()
    )
    return probe.id == following.id or (instructions and probe.name.isdecimal())


def _probe_report(found: ProbeStability) -> str:
    return probe_report(found.description, found.arguments, found.types)


def program_reports(programs: Sequence[ProgramStability]) -> str:
    """Return the stability reports of -v: a report for each D program (-n, -s, ...)."""
    return "".join(
        program_report(
            described(p.text.letter, p.text.text, p.text.file), p.descriptions, p.statements
        )
        for p in programs
    )


def description_reports(descriptions: Sequence[tuple[ProbePattern, ProbeStability]]) -> str:
    """Return the stability reports of -e -v: a report for each probe description."""
    return "".join(
        f"\n{':'.join((p.provider, p.module, p.function, p.name))}\n{_probe_report(stability)}"
        for p, stability in descriptions
    )


def matched_message(text: ProgramText, probes: int) -> str:
    """Return the message that says how many probes a D program has matched."""
    if text.letter == "s":
        return script_matched(text.file, probes)
    return description_matched(text.text, probes)
