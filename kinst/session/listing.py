"""The probes that a description means, as a list shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kinst.core.columns import columns_of
from kinst.core.instruction import Instruction
from kinst.core.kernel import Kernel, LiveKernel, Provider
from kinst.core.probe import Function, Gap, Probe, ProbeName
from kinst.patch.chains import find_chains
from kinst.providers import FIRST_ID, listed
from kinst.session.values import EnabledSite, ListedProbe, Placement, ProbeStability


def gaps_in(probes: Iterable[Probe], kernel: Kernel) -> Sequence[Gap]:
    """The gaps of the functions that have probes after their first instruction."""
    sites = (probe.site for probe in probes if probe.site is not None)
    functions = {s.function.address: s.function for s in sites if s.offset > 0}
    return kernel.gaps(list(functions.values()))


def list_all(providers: Mapping[str, Provider]) -> list[ListedProbe]:
    """The probes that are there without being asked for."""
    return [_row(Probe(FIRST_ID + k, f.name)) for k, f in enumerate(listed(providers))]


def list_enabled(enabled: Sequence[EnabledSite], kernel: Kernel | None) -> list[ListedProbe]:
    """One for each probe, by name alone."""
    probes = {e.probe.id: e.probe for e in enabled}
    return _with_gaps([_row(probe) for probe in probes.values()], list(probes.values()), kernel)


def _with_gaps(
    rows: list[ListedProbe], probes: Sequence[Probe], kernel: Kernel | None
) -> list[ListedProbe]:
    """Each gap is told with the last listed instruction before it.  probes: those of the rows."""
    gaps = gaps_in(probes, kernel) if kernel is not None else ()
    for gap in gaps:
        before = [
            (probe.site.offset, k)
            for k, probe in enumerate(probes)
            if probe.site and probe.site.function == gap.function
            and probe.site.offset < gap.offset
        ]  # fmt: skip
        if before:
            _, last = max(before)
            rows[last] = replace(rows[last], gaps=(*rows[last].gaps, gap))
    return rows


def list_planned(
    enabled: Sequence[EnabledSite],
    parts: Placement,
    kernel: LiveKernel | None,
    source: Callable[[Function, int], str],
    stability: Callable[[ProbeName], ProbeStability],
    *,
    chained: bool,
    no_run: str,
) -> list[ListedProbe]:
    """One for each probe and site, with its instruction and its way, and the reason against it or
    against a better one.

    source: function and address to file:line or "".  chained: trampolines lead into one another.
    no_run: why a site that is planted by a trap is in no run."""
    ways = {e.key: (c.way, c.reason) for e, c in (*parts.planted, *parts.stopped)}
    in_runs = set(parts.runs.member.tolist())
    for key, (way, reason) in ways.items():
        if key[1] in in_runs:
            ways[key] = "run", reason
        elif key[1] in parts.gated:
            ways[key] = "gate", reason
        elif way == "trap" and reason and no_run:
            ways[key] = way, f"{reason}, and {no_run}"
    ways |= {e.key: ("refused", reason) for e, reason in parts.refused}
    links = _links(parts, kernel) if chained and kernel is not None else {}
    rows = []
    for e in enabled:
        about = stability(e.probe.name)
        site = e.probe.site
        if site is None or kernel is None:
            rows.append(_row(e.probe, stability=about))
            continue
        instruction = _instruction(kernel, e)
        way, reason = ways[e.key]
        place = source(site.function, instruction.address)
        kind = kernel.isa.flow(instruction.code, instruction.address).kind
        linked = links.get(site.address)
        before = _named(linked, site.function, kernel) if linked is not None else ""
        rows.append(_row(e.probe, instruction, kind, way, reason, place, about, before))
    return _with_gaps(rows, [e.probe for e in enabled], kernel)


def _links(parts: Placement, kernel: LiveKernel) -> dict[int, int]:
    """Address of each site that a chain leads to, to that of one from which it does: the one right
    before it where that is so."""
    planted = [e.probe.site for e, _ in parts.planted if e.probe.site is not None]
    every = (*planted, *parts.unprobed, *parts.gates)
    sites = list({site.address: site for site in every}.values())
    sites.sort(key=lambda site: site.address)
    columns = columns_of([s.address for s in sites], [s.code for s in sites])
    columns.marks[:] = kernel.marks(sites)
    chains = find_chains(columns, kernel.isa)
    found = {}
    for k in np.flatnonzero(chains.target >= 0)[::-1].tolist():
        found[sites[int(chains.target[k])].address] = sites[k].address
    for k in np.flatnonzero(chains.falls_into).tolist():
        found[sites[k + 1].address] = sites[k].address
    return found


def _named(address: int, function: Function, kernel: Kernel) -> str:
    """An address as an offset: in this function, or in the one that it is in."""
    there = kernel.at(address)
    offset = f"+{address - there.address}" if there is not None else f"{address:#x}"
    return offset if there is None or there.address == function.address else there.name + offset


def _row(
    probe: Probe,
    instruction: Instruction | None = None,
    kind: str = "",
    way: str = "",
    reason: str = "",
    source: str = "",
    stability: ProbeStability | None = None,
    chained: str = "",
) -> ListedProbe:
    address, code, text = 0, b"", ""
    if instruction is not None:
        address, code, text = instruction.address, instruction.code, instruction.text
    return ListedProbe(
        probe.id, *probe.name.parts, address, code, text, kind, way, reason, source, stability,
        chained,
    )  # fmt: skip


def _instruction(kernel: Kernel, enabled: EnabledSite) -> Instruction:
    site = enabled.probe.site
    assert site is not None
    return next(i for i in kernel.instructions(site.function) if i.address == site.address)
