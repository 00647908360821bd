"""Planting of a trace's probes a second time, once the kernel whose boot is traced is up.

While a kernel boots, each probe stops the machine. Once the kernel is up, its text is final and
scratch can be mapped. So kinst plants the same probes again, now with jumps and traps, as in any
kernel that is up. The program's variables, buffers and aggregations stay where they are.

Tested by tests/vm/boot/test_after_boot.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kinst.core.errors import KinstError
from kinst.core.probe import Site
from kinst.core.system import System
from kinst.session.perturbing import refusals_of
from kinst.session.place import choose_ways
from kinst.session.plan import plan
from kinst.session.values import (
    ChosenSite,
    EnabledSite,
    PlacedProgram,
    Placement,
    StartedMachine,
    TracePlan,
)
from kinst.session.workspace import COUNTER, Workspace

NO_CODE = "boot has left no instruction here"


def plan_after_boot(
    made: TracePlan, booting: System, workspace: Workspace, say: Callable[[str], None]
) -> TracePlan:
    """Return the plan by which a trace of a boot goes on once the kernel is up.

    The new plan uses the same scratch and the same probes. Probes in functions that the kernel has
    freed are left out. A site that can get neither a jump nor a trap in a kernel that is up, such
    as a jump label, stops the machine as before.

    Args:
        made: the plan for the boot.
        booting: the system, as it was when `made` was planned.
        workspace: the machine after boot_over(): its kernel is up.
        say: called with a sentence that says how many probes are planted in which way.

    Raises KinstError.
    """
    workspace.prepare(call_sites=made.compiled.plant.call_sites)
    machine, parts = workspace.machine, made.placement
    if machine.cpus != made.placed.scratch.cpus:
        raise KinstError(f"the kernel has {machine.cpus} CPUs, not {made.placed.scratch.cpus}")
    there = [one for one in parts.stopped if not _is_freed(one.site, booting, machine.system)]
    codes = [_live_code(one.site, machine) for one in there]
    renewed = [_renewed(one, code) for one, code in zip(there, codes, strict=True) if code]
    lasting = [one.enabled for one, code in zip(there, codes, strict=True) if not code]
    program = replace(parts.enabled, enabled=(*parts.host, *renewed, *lasting))
    stops = {one.probe.site.address: NO_CODE for one in lasting if one.probe.site is not None}
    while True:
        placement = choose_ways(program, workspace, stops=stops)
        again = {one.site.address: one.choice.reason for one in _steppable(placement, machine)}
        if not again:
            placed = _placed(made.placed, placement, workspace)
            planned = plan(placed, machine, workspace.ended, lambda done: None)
            again = {site.address: reason for site, reason in planned.sites.refused}
        if not again:
            say(_told(placement, len(parts.stopped) - len(there)))
            return planned
        stops |= again


def _placed(before: PlacedProgram, placement: Placement, workspace: Workspace) -> PlacedProgram:
    """Return a program with the placement on the kernel that is up, and with new counters.

    Its variables, records and aggregations stay in the memory that they had during the boot.

    Args:
        before: the program as it was placed for the boot.
        placement: the placement on the kernel that is up.
    """
    scratch = replace(before.scratch, address=placement.memory.address)
    more = COUNTER * len(placement.planted) if before.compiled.plant.blocks else 0
    size = before.layout.counters_size
    counters = workspace.place_counters(placement.memory, size, more)
    return replace(before, placement=placement, scratch=scratch, counters=counters)


def _is_freed(site: Site, booting: System, system: System) -> bool:
    """Return whether the kernel has freed a site's function: the function could be traced during
    the boot, and cannot be traced now.
    """
    return bool(system.refusals(site.function)) and not booting.refusals(site.function)


def _live_code(site: Site, machine: StartedMachine) -> bytes:
    """Return the live bytes of a site's instruction, which boot may have replaced; b"" if no
    instruction begins there any more.
    """
    found = machine.kernel.instructions(site.function)
    return next((one.code for one in found if one.address == site.address), b"")


def _renewed(chosen: ChosenSite, code: bytes) -> EnabledSite:
    """Return a chosen site's probe, to be planted anew, with `code` as the site's live bytes."""
    enabled, site = chosen.enabled, replace(chosen.site, code=code)
    return replace(enabled, probe=replace(enabled.probe, site=site))


def _steppable(placement: Placement, machine: StartedMachine) -> Sequence[ChosenSite]:
    """Return the refused sites at which a debugger's breakpoint can stop the machine instead."""
    kernel, isa = machine.kernel, machine.isa
    changing = refusals_of(placement.enabled, machine)
    return [
        one
        for one in placement.refused
        if not (changing is not None and changing(one.enabled, one.site, b""))
        and not kernel.unsafe(one.site.function, one.site.address)
        and not kernel.rerun_prefix(one.site.function, one.site.address)
        and not isa.unsteppable(one.site.code)
    ]


def _told(placement: Placement, freed: int) -> str:
    ways: Mapping[str, int] = {
        "planted with jumps and traps": len(placement.planted),
        "at which the machine stops": len(placement.stopped),
        "left out": len(placement.refused),
        "freed with the kernel's init code": freed,
    }
    counts = ", ".join(f"{count} {way}" for way, count in ways.items() if count)
    return f"kinst: the kernel is up; probes: {counts or '0'}"
