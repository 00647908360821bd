"""-l: the probes that match, and with -v how each would be planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kinst.consumer.messages import LIST_HEADER, list_row
from kinst.core.isa import Instruction
from kinst.core.kernel import Kernel, Provider
from kinst.core.probe import Function, Probe, ProbeName
from kinst.providers import FIRST_ID, listed
from kinst.session.values import EnabledSite, Placement


def list_all(providers: Mapping[str, Provider]) -> list[str]:
    """-l alone: the probes that are there without being asked for."""
    probes = [Probe(FIRST_ID + k, f.name) for k, f in enumerate(listed(providers))]
    return [LIST_HEADER, *(list_row(p) for p in probes)]


def list_enabled(enabled: Sequence[EnabledSite]) -> list[str]:
    """One row for each probe."""
    probes = {e.probe.id: e.probe for e in enabled}
    return [LIST_HEADER, *map(list_row, probes.values())]


def list_planned(
    enabled: Sequence[EnabledSite],
    parts: Placement,
    kernel: Kernel | None,
    source: Callable[[Function, int], str],
    about: Callable[[ProbeName], str],
) -> list[str]:
    """One row for each probe, and below it the instruction, its way or reason, and its source line
    (source: function and address to file:line or ""), or dtrace(1)'s report of its stability
    (about).  Those of all instructions are alike: they are told once, at the end."""
    ways = {e.key: c.way for e, c in parts.planted}
    ways |= {e.key: "stop" for e in parts.stopped}
    ways |= {e.key: f"refused: {reason}" for e, reason in parts.refused}
    lines = [LIST_HEADER]
    listed_ids: set[int] = set()
    for e, following in zip(enabled, (*enabled[1:], None), strict=True):
        if e.probe.id not in listed_ids:
            lines.append(list_row(e.probe))
            listed_ids.add(e.probe.id)
        if e.probe.site is not None and kernel is not None:
            instruction = _instruction(kernel, e)
            code = instruction.code.hex(" ")
            place = source(e.probe.site.function, instruction.address)
            row = f"\t{code:<32} {instruction.text:<40} {ways[e.key]:<7}  {place}"
            lines.append(row.rstrip())
        if not _alike(e, following):
            lines.append(about(e.probe.name).removesuffix("\n"))
    return lines


def _alike(one: EnabledSite, other: EnabledSite | None) -> bool:
    """Whether the report of the next probe is that of this one, too."""
    if other is None:
        return False
    instructions = one.probe.name.provider == other.probe.name.provider == "kinst"
    return one.probe.id == other.probe.id or instructions


def _instruction(kernel: Kernel, enabled: EnabledSite) -> Instruction:
    site = enabled.probe.site
    assert site is not None
    return next(i for i in kernel.instructions(site.function) if i.address == site.address)
