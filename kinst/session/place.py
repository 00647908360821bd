"""Stage that chooses how each site is planted, and lays out the trace's scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core.columns import FOLLOWING, TrampolineBatch, columns_of
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.layout import (
    ARGUMENT_CONSTANT,
    ARGUMENT_SLOT,
    ARGUMENTS,
    Scratch,
    lay_out,
)
from kinst.core.probe import Argument, Probe, Site
from kinst.core.records import ProgramLayout
from kinst.core.return_addresses import live_addresses_in
from kinst.core.system import System
from kinst.core.units import counted
from kinst.core.words import PAGE
from kinst.patch.descriptors import descriptor_size
from kinst.patch.leaders import NO_ADDRESSES
from kinst.patch.ways import LONGEST, Choice, PlantingAbility, choose, choose_movable
from kinst.providers import END, ERROR
from kinst.session.perturbing import refusals_of
from kinst.session.scratch import TABLE_ROOM, own_memory
from kinst.session.values import (
    ChosenSite,
    Counters,
    EnabledProgram,
    EnabledSite,
    PlacedProgram,
    Placement,
    ScratchMemory,
    StartedMachine,
)
from kinst.session.workspace import COUNTER, Workspace

ERROR_ID = 3
NO_SWITCHES = "kinst leads the kernel there only in a VM (--vm, --attach)"
SPLIT_PART = 0.3  # part of the time that passes before runs are chosen
FEW_FUNCTIONS = 8  # functions up to which memory is searched while runs are chosen

# Returns counter blocks, or None. Its arguments are two numbers of bytes for each CPU: for the
# program's own counters, and for counters of basic blocks, which are left out if they do not fit.
PlaceCounters = Callable[[int, int], Counters | None]


def place(
    program: EnabledProgram,
    workspace: Workspace,
    say: Callable[[str], None],
    progress: Callable[[float], None],
) -> PlacedProgram:
    """Choose how each site of a program is planted, and lay out the trace's scratch.

    Args:
        say: called with the number of sites that are left out, and of those that stop the machine.
        progress: called with the share of the work that is done, 0 to 1.

    Raises KinstError if no site can be planted, or there is not enough scratch.
    """
    placement = choose_ways(program, workspace, progress)
    if not workspace.in_batches:
        machine = workspace.machine
        _tell_ways(placement, machine.system, say, machine.target.abilities.traces_boot)

    def counters(size: int, more: int) -> Counters | None:
        return workspace.place_counters(placement.memory, size, more)

    return _lay_out(placement, workspace.machine.cpus, counters)


def place_on_host(program: EnabledProgram) -> PlacedProgram:
    """Lay out a program that needs no machine: all of its probes fire in kinst's own process."""
    memory = own_memory(program.compiled, 1)
    placement = Placement(program, memory, program.enabled, _error_of(program.enabled))
    return _lay_out(placement, 1, lambda _size, _more: None)


def choose_ways(
    program: EnabledProgram,
    workspace: Workspace,
    progress: Callable[[float], None] = lambda done: None,
    stops: Mapping[int, str] = {},
) -> Placement:
    """Allocate scratch for a program, and choose how each of its sites is planted.

    The machine is stopped.

    Args:
        progress: called with the share of the work that is done, 0 to 1.
        stops: the reason why the machine must stop at some sites, by the site's address. All other
            sites are planted in the best way.
    """
    progress(0.0)
    memory, machine = workspace.take(program), workspace.machine
    plant = program.compiled.plant
    placement = _split(program, memory, machine, _ability(machine, memory, plant.forced), stops)
    progress(SPLIT_PART)
    if plant.runs:

        def of_runs(done: float) -> None:
            progress(SPLIT_PART + (1 - SPLIT_PART) * done)

        placement = _with_runs(placement, workspace, of_runs, gates=plant.gates)
    return _without_traps(placement) if machine.facts.only_counts else placement


def _without_traps(placement: Placement) -> Placement:
    """Refuse the sites that need a trap, for a machine without traps. Return the placement.

    A site needs a trap under three conditions: it has no room for a jump, it is in no run, and
    control may come to it from an instruction that is not displaced.
    """
    served = placement.gated | {*placement.runs.member.tolist()}
    kept, lost = [], list(placement.refused)
    for chosen in placement.planted:
        choice = chosen.choice
        if choice.way == "jump" or chosen.site.address in served:
            kept.append(chosen)
        else:
            why = f"{choice.reason}, and a user program gets no traps"
            lost.append(replace(chosen, choice=Choice("", why)))
    return replace(placement, planted=tuple(kept), refused=tuple(lost))


def _ability(machine: StartedMachine, memory: ScratchMemory, forced: str) -> PlantingAbility:
    """Return which ways of planting this machine and its kernel allow.

    Args:
        forced: the one way that -x plant= asks for, or "".
    """
    facts = machine.facts
    inside = facts.only_counts or (bool(facts.nofault_read) and "cpu" in facts.builtins)
    code = memory.address + memory.size - PAGE  # after the data: near the end of scratch
    return PlantingAbility(
        code if inside and memory.address else 0,
        bool(facts.trap_hook) or facts.only_counts,  # _without_traps() removes them
        bool(facts.fault_hook),
        forced,
        not machine.never_stops,
    )


def _error_of(enabled: Sequence[EnabledSite]) -> EnabledSite:
    """Return the probe dtrace:::ERROR, without clauses if the program does not enable it."""
    error = next((e for e in enabled if e.probe.name == ERROR), None)
    return error or EnabledSite(Probe(ERROR_ID, ERROR), (), 0, None)


def _split(
    program: EnabledProgram,
    memory: ScratchMemory,
    machine: StartedMachine,
    ability: PlantingAbility,
    stops: Mapping[int, str],
) -> Placement:
    """Choose how each site is planted if it is in no run, and sort the probes by what fires them.

    Probes without a site are fired by kinst's own process or by timers of the machine. Runs are
    added later (_with_runs()).

    Args:
        stops: the reason why the machine must stop at some sites, by the site's address.
    """
    system, kernel, isa, enabled = machine.system, machine.kernel, machine.isa, program.enabled
    sampled = tuple(
        _sampled(e, isa)
        for e in enabled
        if machine.never_stops and e.timer is not None and e.timer.each_cpu
    )
    ids = {e.probe.id for e in sampled}
    host = tuple(e for e in enabled if e.probe.site is None and e.probe.id not in ids)
    sites = [(e, e.probe.site) for e in enabled if e.probe.site is not None]
    planted, stopped, refused = [], [], []
    reasons = system.site_refusals([(s.address, len(s.code)) for _, s in sites])
    if not machine.target.abilities.switches:
        needed = [NO_SWITCHES if e.switch else "" for e, _ in sites]
        reasons = [no_switch or reason for no_switch, reason in zip(needed, reasons, strict=True)]
    of_functions = {s.function.address: s.function for _, s in sites}
    refusing = {at: system.refusals(f) for at, f in of_functions.items()}
    exempt = system.exempt() if any(refusing.values()) else frozenset()
    bound = {at for at, f in of_functions.items() if kernel.has_sequences(f)}
    prefixes = {
        s.address: prefix
        for _, s in sites
        if s.function.address in bound and (prefix := kernel.rerun_prefix(s.function, s.address))
    }
    rerun = rerun_refusals(system, [(at - len(p), len(p)) for at, p in prefixes.items()])
    changing = refusals_of(program, machine)
    kinds = _kinds([s for _, s in sites], machine, ability)
    alike: dict[int, Choice] = {}  # by kind
    for (e, site), reason, kind in zip(sites, reasons, kinds, strict=True):
        function = site.function
        why = reason if site.address in exempt else refusing[function.address] or reason
        why = why or e.refusal
        if changing is not None:
            why = why or changing(e, site, prefixes.get(site.address, b""))
        if site.address in stops:
            choice = Choice("stop", stops[site.address])
        elif kind and not why and function.address not in bound:
            known = alike.get(kind)
            if known is None:
                known = alike[kind] = choose_movable(site, isa, ability)
            choice = known
        else:
            before = prefixes.get(site.address, b"")
            why = why or kernel.unsafe(function, site.address)
            why = why or rerun.get((site.address - len(before), len(before)), "")
            fixup = system.has_fixup(site.address)
            after = kernel.following(function, site.address + len(site.code), FOLLOWING)
            choice = choose(site, after, isa, ability, why, fixup, before)
        chosen = ChosenSite(e, site, choice)
        if choice.way == "stop":
            stopped.append(chosen)
        elif choice.way:
            planted.append(chosen)
        else:
            refused.append(chosen)
    return Placement(
        program, memory, host, _error_of(host), tuple(planted), tuple(stopped), tuple(refused),
        sampled=sampled,
    )  # fmt: skip


def _sampled(enabled: EnabledSite, isa: Isa) -> EnabledSite:
    """Return a profile-N probe whose arg0 and arg1 are in the two words after the frame of saved
    registers, where the code of write_sampler() stores them.
    """
    places = (isa.frame_slots, isa.frame_slots + 1)
    none = Argument(ARGUMENT_CONSTANT, 0)
    own = tuple(Argument(ARGUMENT_SLOT, place) for place in places)
    return replace(enabled, arguments=(*own, *(none,) * (ARGUMENTS - len(own))))


def _with_runs(
    placement: Placement, workspace: Workspace, progress: Callable[[float], None], *, gates: bool
) -> Placement:
    """Add runs for sites that would otherwise be traps, and gates for sites in no run.

    If the sites are in few functions, or in a user program, this searches memory for possible
    return addresses and chooses no run that one of them points into. Most of these addresses are
    left over from interrupts, and will still be in memory when the patches are written. Then it is
    too late to choose other runs.

    Args:
        progress: called with the share of the work that is done, 0 to 1.
        gates: whether gates may be used.
    """
    leaders, target = workspace.leaders, workspace.machine.target
    if leaders is None:
        return placement
    sites = [(s.site, s.choice.way == "jump") for s in placement.planted]
    stops = {s.site.address for s in placement.stopped}
    live = NO_ADDRESSES
    functions = {site.function for site, own in sites if not own}
    only_counts = workspace.machine.facts.only_counts
    few = len(functions) <= FEW_FUNCTIONS and not target.abilities.reads_running
    if functions and (few or only_counts):
        low = min(function.address for function in functions)
        high = max(function.address + function.size for function in functions)
        live = live_addresses_in(target, low, high, workspace.ended)
    choose_runs = leaders.runs
    if only_counts:
        choose_runs = leaders.runs_without_traps
    found = choose_runs(sites, stops, gates=gates, live=live, progress=progress)
    return replace(
        placement, runs=found.runs, unprobed=found.unprobed, dead_registers=found.dead_registers,
        gates=found.gates, gated=found.gated,
    )  # fmt: skip


def _kinds(
    sites: Sequence[Site], machine: StartedMachine, ability: PlantingAbility
) -> Sequence[int]:
    """Return a number for each site, so that choose_movable() computes only once for each number in
    which way such a site is planted.

    The number is 0 if kinst does not know yet whether the site's instruction can be displaced into
    scratch. For such a site, the way is computed separately.
    """
    if not ability.scratch_address or ability.forced == "stop" or not sites:
        return [0] * len(sites)
    isa = machine.isa
    columns = columns_of([s.address for s in sites], [s.code for s in sites])
    columns.marks[:] = machine.kernel.marks(sites)
    marked = np.flatnonzero(columns.marks)
    batch = TrampolineBatch.without_work(columns.take(marked), ability.scratch_address)
    movable = np.zeros(len(sites), np.bool_)
    movable[marked] = isa.trampoline_sizes(batch) >= 0
    if not ability.fault_hook:
        movable &= [not machine.system.has_fixup(s.address) for s in sites]
    scratch = np.full(len(sites), ability.scratch_address, np.uint64)
    jump, _ = isa.jump_patches(columns, scratch)
    longest = replace(columns, size=np.full(len(sites), LONGEST, np.uint8))
    near, _ = isa.jump_patches(longest, scratch)
    kinds = 1 + columns.size.astype(np.int64) + 32 * jump + 64 * near
    found: list[int] = np.where(movable, kinds, 0).tolist()
    return found


def rerun_refusals(system: System, spans: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the reason why code must not be executed a second time in scratch, by (address, size).

    The reason is that the kernel rewrites an instruction there, or looks its address up after a
    fault. Spans that may be executed again are not in the result.

    Args:
        spans: (address, size) of code, possibly empty.
    """
    there = [span for span in spans if span[1]]
    found = {}
    for (start, size), changed in zip(there, system.site_refusals(there), strict=True):
        if changed:
            found[start, size] = f"of what is to be run again before it: {changed}"
        elif any(map(system.has_fixup, range(start, start + size))):
            found[start, size] = "what is to be run again before it may fault on purpose"
    return found


def _tell_ways(
    placement: Placement, system: System, say: Callable[[str], None], traces_boot: bool
) -> None:
    """Say how many sites are left out, and how many stop the machine although the user has not
    asked for that.

    Args:
        traces_boot: whether the user traces a boot, all of whose probes stop the machine.

    Raises KinstError if every site is left out.
    """
    count = len(placement.refused)
    if count:
        if not placement.running:
            first = placement.refused[0]
            function = first.site.function
            none = f"no instruction of {function.name} can"
            raise KinstError(
                f"{function.name}+{first.site.offset} cannot be planted: {first.choice.reason}",
                none if system.refusals(function) else "kinst -l -v shows what can",
            )
        say(f"kinst: {counted(count, 'instruction')} cannot be planted and"
            f" {'is' if count == 1 else 'are'} left out (kinst -l -v says why)")  # fmt: skip
    asked = placement.enabled.compiled.plant.forced or traces_boot
    if placement.stopped and not asked:
        number = len(placement.stopped)
        without = " (no scratch memory there)" if not placement.memory.address else ""
        say(
            f"kinst: {counted(number, 'probe is', 'probes are')} stop-planted:"
            f" the machine stops at each hit, for milliseconds{without}"
        )


def _lay_out(placement: Placement, cpus: int, counters: PlaceCounters) -> PlacedProgram:
    """Lay out variables, records and aggregations, and the areas of scratch for them.

    Args:
        counters: returns counter blocks. Its arguments are two numbers of bytes for each CPU: for
            the program's own counters, and for counters of basic blocks. The latter are left out if
            they do not fit.
    """
    compiled, running = placement.enabled.compiled, placement.running
    layout = lay_out_program(
        compiled.program, [(e.probe.name, e.probe.id, e.clauses) for e in running],
        compiled.options.strsize, min(compiled.sizes.aggs, compiled.options.aggsize),
        compiled.options.dynvarsize,
    )  # fmt: skip
    if compiled.options.bufpolicy == "fill":
        _check_end(placement.running, layout, compiled.options.bufsize)
    more = COUNTER * len(placement.planted) if compiled.plant.blocks else 0
    blocks = counters(layout.counters_size, more)
    scratch = lay_out_scratch(placement.enabled, placement.memory, cpus, layout, len(running))
    return PlacedProgram(placement, scratch, layout, blocks)


def _check_end(running: Sequence[EnabledSite], layout: ProgramLayout, bufsize: int) -> None:
    """Raise KinstError if the records of dtrace:::END do not fit in a buffer.

    This is for -x bufpolicy=fill: a buffer must have room for these records even when it is full.
    In DTrace, dtrace_state_prereserve() checks this.
    """
    ends = [clause for one in running if one.probe.name == END for clause in one.clauses]
    need = sum(one.size for one in layout.clauses if one.clause in ends)
    if need > bufsize:
        message = "could not enable tracing: END enablings exceed size of principal buffer"
        raise KinstError(f"{message} ({need} bytes)", "use a larger bufsize")


def lay_out_scratch(
    program: EnabledProgram, memory: ScratchMemory, cpus: int, layout: ProgramLayout, probes: int
) -> Scratch:
    """Return the areas of a trace's scratch.  Raises KinstError if the scratch is too small.

    Args:
        probes: number of probes that can fire.
    """
    sizes = program.compiled.sizes
    try:
        return lay_out(
            memory.address,
            memory.size,
            cpus,
            ring_size=sizes.ring,
            agg_size=sizes.aggs,
            globals_size=layout.globals_area,
            strings_size=program.strings_size,
            sites_size=(probes + 2) * descriptor_size(len(layout.constant_aggregations)),
            traps_size=PAGE + TABLE_ROOM * probes,
            temp_size=sizes.temp,
            dynamic_size=sizes.dynamic,
            text_from=memory.text_from,
        )
    except ValueError as error:
        raise KinstError(str(error), "use a smaller bufsize or aggsize") from error
