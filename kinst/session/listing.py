"""Lists of probes, as kinst -l shows them.

Tested by tests/session/test_gaps.py and tests/vm/counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kinst.core.columns import columns_of
from kinst.core.instruction import Instruction
from kinst.core.kernel import Kernel, PlantableKernel, Provider
from kinst.core.probe import Function, Probe, ProbeName
from kinst.core.system import SiteRules
from kinst.patch.chains import find_chains
from kinst.providers import FIRST_ID, listed
from kinst.session.compiled import ProbeStability
from kinst.session.descriptions import gaps_in
from kinst.session.values import (
    EnabledSite,
    ListedProbe,
    Placement,
    StartedMachine,
)

# From a probe's name to its stability; from an address in a function to file:line, or "".
Stabilities = Callable[[ProbeName], ProbeStability]
SourceLines = Callable[[Function, int], str]


def list_all(providers: Mapping[str, Provider]) -> list[ListedProbe]:
    """List the probes that exist independently of any description (BEGIN, END, ...)."""
    return [_row(Probe(FIRST_ID + k, f.name)) for k, f in enumerate(listed(providers))]


def list_names(enabled: Sequence[EnabledSite], kernel: Kernel | None) -> list[ListedProbe]:
    """List each enabled probe once, with its name and without its instruction, and with the gaps of
    its function.

    Args:
        kernel: the traced kernel; None if the probes need no kernel.
    """
    probes = {e.probe.id: e.probe for e in enabled}
    return _with_gaps([_row(probe) for probe in probes.values()], list(probes.values()), kernel)


def refused_told(enabled: Sequence[EnabledSite], system: SiteRules) -> str:
    """Return a sentence that says how many probes are in functions that cannot be planted at all.

    The sentence also gives the most frequent reason. "" if there are no such probes.
    """
    sites = [e.probe.site for e in enabled if e.probe.site is not None]
    refusing = any(map(system.refusals, dict.fromkeys(site.function for site in sites)))
    exempt = system.exempt() if refusing else frozenset()
    functions = Counter(site.function for site in sites if site.address not in exempt)
    reasons = Counter[str]()
    for function, count in functions.items():
        if reason := system.refusals(function):
            reasons[reason] += count
    if not reasons:
        return ""
    ((most, _),) = reasons.most_common(1)
    return (
        f"{reasons.total()} of these cannot be planted: kinst refuses their functions"
        f" ({'' if len(reasons) == 1 else 'most often: '}{most}); -l -v shows each one's reason"
    )


def _with_gaps(
    rows: list[ListedProbe], probes: Sequence[Probe], kernel: Kernel | None
) -> list[ListedProbe]:
    """Return a list of probes, with each gap added to the last listed instruction before the gap.

    Args:
        probes: the probe of each row of the list, in the same order.
    """
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


def list_on_host(enabled: Sequence[EnabledSite], stability: Stabilities) -> list[ListedProbe]:
    """List the probes that fire in kinst's own process."""
    return [_row(e.probe, stability=stability(e.probe.name)) for e in enabled]


def list_planned(
    placement: Placement,
    machine: StartedMachine,
    source: SourceLines,
    stability: Stabilities,
    *,
    can_run: bool,
) -> list[ListedProbe]:
    """List each probe at each of its sites, with the instruction and how it would be planted: by a
    jump, in a run, by a trap and so on (ListedProbe.way).

    For a site that is refused, or planted in another way than by a jump, the list has the reason.

    Args:
        source: returns FILE:LINE of an instruction.
        stability: returns the stability of a probe.
        can_run: whether this machine allows runs, several instructions that one jump covers.
    """
    kernel, plant = machine.kernel, placement.enabled.compiled.plant
    ways = _ways(placement, can_run=can_run)
    links = _links(placement, kernel) if plant.chains else {}
    rows = []
    for e in placement.enabled.enabled:
        about, site = stability(e.probe.name), e.probe.site
        if site is None:
            rows.append(_row(e.probe, stability=about))
            continue
        instruction = next(
            i for i in kernel.instructions(site.function) if i.address == site.address
        )
        way, reason = ways[e.key]
        source_line = source(site.function, instruction.address)
        kind = kernel.isa.flow(instruction.code, instruction.address).kind
        linked = links.get(site.address)
        before = _named(linked, site.function, kernel) if linked is not None else ""
        rows.append(_row(e.probe, instruction, kind, way, reason, source_line, about, before))
    return _with_gaps(rows, [e.probe for e in placement.enabled.enabled], kernel)


def _ways(placement: Placement, *, can_run: bool) -> dict[tuple[int, int], tuple[str, str]]:
    """Return (way, reason) for each site, by EnabledSite.key.

    The way is how the site would be planted, the reason why it cannot be planted in a better way.

    Args:
        can_run: whether this machine allows runs, several instructions that one jump covers.
    """
    no_run = "runs are forbidden"
    if placement.enabled.compiled.plant.runs:
        here = "no run of neighbours is safe there"
        no_run = here if can_run else "there are no runs on this machine"
    in_runs = set(placement.runs.member.tolist())
    ways = {}
    for s in (*placement.planted, *placement.stopped):
        way, reason, at = s.choice.way, s.choice.reason, s.site.address
        if at in in_runs:
            way = "run"
        elif at in placement.gated:
            way = "gate"
        elif way == "trap" and reason:
            reason = f"{reason}, and {no_run}"
        ways[s.enabled.key] = way, reason
    return ways | {s.enabled.key: ("refused", s.choice.reason) for s in placement.refused}


def _links(placement: Placement, kernel: PlantableKernel) -> dict[int, int]:
    """Map the address of each chained site to the address of a predecessor in its chain.

    If there are several predecessors, the instruction directly before the site is preferred.
    """
    every = (*(s.site for s in placement.planted), *placement.unprobed, *placement.gates)
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
    """Return an address as +OFFSET in `function`, or as NAME+OFFSET in another function."""
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
