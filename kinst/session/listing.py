"""The probes that a description means, as a list shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kinst.core.isa import Instruction
from kinst.core.kernel import Kernel, Provider
from kinst.core.probe import Function, Probe, ProbeName
from kinst.providers import FIRST_ID, listed
from kinst.session.values import EnabledSite, ListedProbe, Placement, ProbeStability


def list_all(providers: Mapping[str, Provider]) -> list[ListedProbe]:
    """The probes that are there without being asked for."""
    return [_row(Probe(FIRST_ID + k, f.name)) for k, f in enumerate(listed(providers))]


def list_enabled(enabled: Sequence[EnabledSite]) -> list[ListedProbe]:
    """One for each probe, by name alone."""
    probes = {e.probe.id: e.probe for e in enabled}
    return [_row(probe) for probe in probes.values()]


def list_planned(
    enabled: Sequence[EnabledSite],
    parts: Placement,
    kernel: Kernel | None,
    source: Callable[[Function, int], str],
    stability: Callable[[ProbeName], ProbeStability],
) -> list[ListedProbe]:
    """One for each probe and site, with its instruction and its way or the reason against it.

    source: function and address to file:line or ""."""
    ways = {e.key: (c.way, c.reason) for e, c in (*parts.planted, *parts.stopped)}
    in_runs = {at for run in parts.runs for at in run.members}
    ways |= {e.key: ("run", "") for e, _ in parts.planted if e.key[1] in in_runs}
    ways |= {e.key: ("refused", reason) for e, reason in parts.refused}
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
        rows.append(_row(e.probe, instruction, kind, way, reason, place, about))
    return rows


def _row(
    probe: Probe,
    instruction: Instruction | None = None,
    kind: str = "",
    way: str = "",
    reason: str = "",
    source: str = "",
    stability: ProbeStability | None = None,
) -> ListedProbe:
    address, code, text = 0, b"", ""
    if instruction is not None:
        address, code, text = instruction.address, instruction.code, instruction.text
    return ListedProbe(
        probe.id, *probe.name.parts, address, code, text, kind, way, reason, source, stability
    )


def _instruction(kernel: Kernel, enabled: EnabledSite) -> Instruction:
    site = enabled.probe.site
    assert site is not None
    return next(i for i in kernel.instructions(site.function) if i.address == site.address)
