"""Stage that makes machine code and patches from placed probes; nothing is written yet.

Tested by tests/fake, through the whole path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kinst.codegen.analysis import asks_caller
from kinst.codegen.code_machine import CodeMachine, host_machine, parents_of, target_machine
from kinst.codegen.compile import (
    HostCode,
    ProgramEntries,
    TargetCode,
    compile_host,
    compile_target,
)
from kinst.codegen.hooks import build_trap_table
from kinst.codegen.saved_code import FOLDER
from kinst.codegen.site_records import InlineRecord, record_shapes
from kinst.codegen.site_work import Arguments, Clauses, counted, exits_in, own_keys, snippets_of
from kinst.core.bodies import Body, CallBody, CountBody, Exit, IndexedBody, Snippet
from kinst.core.columns import FOLLOWING
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.kernel import PlantableKernel
from kinst.core.layout import ARGUMENT_POINTED, ARGUMENT_SLOT, ARGUMENT_STACK, POINTED_SLOT
from kinst.core.machine import CodeTable
from kinst.core.paths import cache_folder
from kinst.core.return_addresses import EndedCode
from kinst.core.system import HOOK_BYTES, System
from kinst.patch.apart import fits
from kinst.patch.blocks import BlockRules
from kinst.patch.descriptors import (
    FrameRule,
    Strings,
    descriptor_size,
    descriptors_of,
)
from kinst.patch.plan import Hook, plan_hooks, plan_sites
from kinst.patch.wanted import WantedSite
from kinst.session.host_clauses import host_side, no_host_side
from kinst.session.perturbing import exits_of
from kinst.session.symbols import running_addresses
from kinst.session.values import (
    Descriptors,
    EnabledSite,
    HostSide,
    PlacedProgram,
    StartedMachine,
    TracePlan,
)
from kinst.wire.memory import has_usual_address

# Parts of the time that have passed when clauses are compiled, when the work of all sites is known,
# and when their trampolines and patches are made.
CLAUSES_PART, WORK_PART, SITES_PART = 0.2, 0.5, 0.9
FEW_FUNCTIONS = 8  # functions up to which their calls are read before trampolines are placed

ONLY_COUNTS = "in a user program, instructions can only be counted"
FrameRules = Mapping[tuple[int, int], FrameRule]  # how the caller is found, by EnabledSite.key
Shapes = Mapping[tuple[Clauses, Arguments], InlineRecord]


def plan(
    placed: PlacedProgram,
    machine: StartedMachine,
    ended: Sequence[EndedCode],
    progress: Callable[[float], None],
) -> TracePlan:
    """Compile the clauses for host and target, and plan trampolines and patches.

    Args:
        ended: code of earlier traces that threads may still be in.
        progress: called with the share of the work that is done, 0 to 1.

    Raises KinstError.
    """
    progress(0.0)
    compiled, parts, scratch = placed.compiled, placed.placement, placed.scratch
    program, isa, facts = compiled.program, machine.isa, machine.facts
    dialect = compiled.dialect()
    symbols = running_addresses(program, compiled.types, machine)
    rules: FrameRules = {}
    if asks_caller(program):
        rules = frame_rules(isa, machine.system, parts.running)
    places = _descriptor_places(placed)
    side = host_side(machine)
    here = host_machine(
        isa, scratch, placed.memory.native, side.read.address, side.user,
        parents_of(facts), facts.user_state, facts.interrupt_masks, dialect,
    )  # fmt: skip
    writes = compiled.options.destructive and not machine.never_stops
    written = side.write.address if writes else 0
    here = replace(here, symbols=symbols, paths=facts.paths, nofault_write=written)
    host = _compile_host(placed, places, here)
    if not parts.inside:
        return TracePlan(
            placed, _describe(placed, places, rules), host, side, rules=rules, ended=ended
        )
    if facts.only_counts:
        return _plan_counting(placed, machine, places, host, side, ended)
    there = replace(
        target_machine(isa, facts, scratch, dialect),
        samples=bool(parts.sampled),
        symbols=symbols,
        saved_code=cache_folder() / FOLDER,
        nofault_write=facts.nofault_write if writes else 0,
    )
    shapes: Shapes = {}
    if not _exits(placed):
        own = (s.enabled.work for s in parts.planted if s.enabled.selection is None)
        shapes = record_shapes(program, placed.layout, own, there, isa)
    first = scratch.address + places.planted + len(parts.planted) * places.size
    choosing = _choosing(placed, places)
    entries = ProgramEntries(
        program, placed.layout, _entries([e for e in parts.inside if e.selection is None]),
        parts.error.clauses, scratch.address + places.error_target,
        [(e.clauses, first + k * places.size) for k, e in enumerate(parts.sampled)],
        [[(e.selection, e.clauses, at) for e, at in probes if e.selection is not None]
         for probes in choosing.values()],
    )  # fmt: skip
    code = compile_target(
        entries, replace(there, reserves=bool(shapes)), scratch.address + scratch.text
    )
    progress(CLAUSES_PART)
    hooks = plan_hooks(_hooks(placed, code, machine), isa, code.end)
    wanted = _wanted(placed, there, machine, code, places, rules, shapes)
    progress(WORK_PART)
    table = machine.target.abilities.code_table
    sites = plan_sites(
        wanted, isa, hooks.end, scratch.address + scratch.size,
        chained=compiled.plant.chains, runs=parts.runs,
        blocks=_block_rules(wanted, placed, machine.system) if compiled.plant.blocks else None,
        dead_registers=parts.dead_registers,
        table=table, near=_near(wanted, machine.kernel, table),
    )  # fmt: skip
    progress(SITES_PART)
    traps = build_trap_table(scratch.address + scratch.traps, sites.traps, sites.copies)
    counted_only = not parts.sampled and all(
        isinstance(body, CountBody) for work in wanted for body in work.bodies
    )
    periods = [e.timer.period_ns for e in parts.sampled if e.timer is not None]
    described = _describe(placed, places, rules, counted_only=counted_only)
    progress(1.0)
    return TracePlan(
        placed, described, host, side, code, hooks, sites, traps, rules,
        tuple(zip(periods, code.samplers, strict=True)), ended,
    )  # fmt: skip


def _plan_counting(
    placed: PlacedProgram,
    machine: StartedMachine,
    places: Descriptors,
    host: HostCode,
    side: HostSide,
    ended: Sequence[EndedCode],
) -> TracePlan:
    """Plan the trampolines and patches of a machine whose trampolines only count (a user program).

    Args:
        places: offsets of the site descriptors in scratch.
        host: code of clauses that kinst's own process runs.
        side: functions by which that code reads and writes the target's memory.
        ended: code of earlier traces that threads may still be in.

    Raises KinstError if a clause does anything but count.
    """
    parts, scratch, isa = placed.placement, placed.scratch, machine.isa
    there = target_machine(isa, machine.facts, scratch, placed.compiled.dialect())
    wanted = _wanted(placed, there, machine, None, places, {}, {})
    rules = _block_rules(wanted, placed, machine.system)
    sites = plan_sites(
        wanted, isa, scratch.address + scratch.text, scratch.address + scratch.size,
        chained=placed.compiled.plant.chains, runs=parts.runs,
        blocks=rules if placed.compiled.plant.blocks else None,
        dead_registers=parts.dead_registers, traps=False,
    )  # fmt: skip
    told = _describe(placed, places, {}, counted_only=True)
    return TracePlan(placed, told, host, side, sites=sites, ended=ended)


def plan_on_host(placed: PlacedProgram, isa: Isa) -> TracePlan:
    """Compile the clauses of a program that needs no machine."""
    places, side = _descriptor_places(placed), no_host_side()
    here = host_machine(
        isa, placed.scratch, placed.memory.native, side.read.address,
        dialect=placed.compiled.dialect(),
    )  # fmt: skip
    host = _compile_host(placed, places, here)
    return TracePlan(placed, _describe(placed, places, {}), host, side)


def _compile_host(placed: PlacedProgram, places: Descriptors, machine: CodeMachine) -> HostCode:
    """Compile the clauses that kinst runs in its own process.

    Args:
        places: offsets of the site descriptors in scratch.
        machine: this host, as a machine that runs code.
    """
    parts = placed.placement
    entries = ProgramEntries(
        placed.compiled.program, placed.layout,
        _entries((*parts.host, *(s.enabled for s in parts.stopped))), parts.error.clauses,
        placed.memory.native + places.error_host,
    )  # fmt: skip
    folder = cache_folder() / FOLDER if has_usual_address(placed.memory.native) else None
    return compile_host(entries, replace(machine, saved_code=folder))


def frame_rules(isa: Isa, system: System, enabled: Sequence[EnabledSite]) -> FrameRules:
    """Return how to find the caller's return address at each site, by EnabledSite.key.

    Sites for which the system has no rule are left out.
    """
    slots = {r.d_name: r.slot for r in isa.registers}
    found = {}
    for e in enabled:
        if e.probe.site is not None:
            rule = system.frame_rule(e.probe.site.address)
            if rule is not None and rule[0] in slots:
                found[e.key] = FrameRule(slots[rule[0]], rule[1], rule[2])
    return found


def _entries(enabled: Sequence[EnabledSite]) -> tuple[tuple[int, ...], ...]:
    return tuple(dict.fromkeys(e.clauses for e in enabled))


def _near(
    wanted: Sequence[WantedSite], kernel: PlantableKernel, table: CodeTable | None
) -> Sequence[int]:
    """Return addresses, ascending, of code that often runs just before or after the sites.

    A machine that translates code (QEMU's TCG) finds the translations in a table. Trampolines
    should not share entries of this table with that code. The addresses are the entries of the
    sites' functions. If these functions are few, the targets and the return addresses of their
    calls are added. Empty if the machine has no table, or the sites are too many for the table.

    Args:
        table: the machine's table of translated code; None if it has none.
    """
    if table is None or not fits(table, len(wanted), 0):
        return ()
    functions = {work.site.function.address: work.site.function for work in wanted}
    near = set(functions)
    for function in functions.values() if len(functions) <= FEW_FUNCTIONS else ():
        for one in kernel.instructions(function):
            flow = kernel.isa.flow(one.code, one.address)
            if flow.kind == "call":
                near |= {one.end, flow.target or one.end}
    return sorted(near)


def _block_rules(
    wanted: Sequence[WantedSite], placed: PlacedProgram, system: System
) -> BlockRules | None:
    """Return the counters for basic blocks, which count in place of counters for each site.

    None if the program has no counters, or their memory has no room for those of basic blocks.
    """
    counters = placed.counters
    if counters is None:
        return None
    own = placed.layout.counters_size
    places = (work.site.address for work in wanted)
    faulting = {at for at in places if system.has_fixup(at) or system.is_bug(at)}
    room = (counters.size - own) // 8
    return BlockRules(counters.displacement + own, room, faulting) if room else None


def _hooks(placed: PlacedProgram, code: TargetCode, machine: StartedMachine) -> list[Hook]:
    """Return the kernel functions to detour.

    The functions are:

        the breakpoint handler, if a site is planted with a trap;
        the search of exception tables, if a planted instruction has an entry in them;
        the search of BUG and WARN traps, if such a trap is planted.

    A machine that is planted while it runs passes breakpoints to kinst's code by itself. Its
    breakpoint handler is not detoured.
    """
    facts, kernel, system, parts = machine.facts, machine.kernel, machine.system, placed.placement
    hooks = []
    if not machine.never_stops and any(s.choice.way == "trap" for s in parts.planted):
        live = kernel.live(facts.trap_hook, HOOK_BYTES)
        hooks.append(Hook(facts.trap_hook, live, code.address + code.trap_hook, False))
    places = [s.site.address for s in parts.planted]
    for function, used in (
        (facts.fault_hook, system.has_fixup),
        (facts.bug_hook, system.is_bug),
    ):
        if function and any(used(place) for place in places):
            live = kernel.live(function, HOOK_BYTES)
            hooks.append(Hook(function, live, code.address + code.fault_hook, True))
    return hooks


def _wanted(
    placed: PlacedProgram,
    there: CodeMachine,
    machine: StartedMachine,
    code: TargetCode | None,
    descriptors: Descriptors,
    rules: FrameRules,
    shapes: Shapes,
) -> list[WantedSite]:
    """Return each site to plant, with the work that its trampoline does.

    For each of a site's probes the work is a call of the probe's clauses, or only a count or a
    record. In a program that calls exit() in a planted clause, the work is always a call, so that
    nothing is counted after exit().

    Args:
        there: the target, as a machine that runs code.
        code: the compiled clauses; None if trampolines only count.
        descriptors: offsets of the site descriptors in scratch.
        rules: how to find the caller's return address at a site, by EnabledSite.key.
        shapes: records that a trampoline can write without a call.
    """
    program, layout, parts = placed.compiled.program, placed.layout, placed.placement
    kernel, scratch, isa = machine.kernel, placed.scratch, machine.isa
    counters = placed.counters
    base = None if counters is None or _exits(placed) else counters.displacement
    snippets = snippets_of(
        program, layout, base,
        (s.enabled.work for s in parts.planted if s.enabled.selection is None), there, isa,
    )  # fmt: skip
    every = [*(s.site for s in parts.planted), *parts.unprobed, *parts.gates]
    marks = kernel.marks(every).tolist()
    wanted: list[WantedSite] = []
    place: dict[int, int] = {}  # position in `wanted` of sites that several probes may have
    several = len({s.site.address for s in parts.planted}) < len(parts.planted)
    known: dict[object, tuple[Body, ...] | None] = {}  # work of probes that count alike
    # By work: the entry function, the slots that it reads, the guard and the index.
    calls: dict[object, tuple[int, frozenset[int], Snippet | None, Snippet | None]] = {}
    keys = own_keys(program, layout)
    choices = {} if code is None else _calls_of_choosers(placed, descriptors, code, rules, isa)
    for k, chosen in enumerate(parts.planted):
        e, site, choice = chosen.enabled, chosen.site, chosen.choice
        own = e.work
        bodies: tuple[Body, ...] | None = None
        if e.selection is not None:
            if code is not None:
                # One call serves all of the site's probes; it goes with the first of them.
                bodies = tuple(filter(None, [choices.pop(site.address, None)]))
        elif base is not None:
            same = (own, keys(e.probe.id, e.clauses))
            if same not in known:
                known[same] = counted(program, layout, e.probe.id, *own, base, snippets)
            bodies = known[same]
        if bodies is None and code is None:
            if counters is None and layout.counters_size:
                raise KinstError(
                    f"there is no room for {layout.counters_size} bytes of counters for each"
                    " thread of the program",
                    "fewer aggregations, or fewer instructions",
                )
            raise KinstError(
                f"{e.probe.name}: {ONLY_COUNTS}",
                "count() by constants, probefunc or probename, and predicates over regs[]",
            )
        if bodies is None and code is not None:
            if own not in calls:
                slots = code.slots[e.clauses]
                slots |= argument_slots(isa, e, code.arguments[e.clauses])
                guard, index = snippets.guard(*own), snippets.index(*own)
                calls[own] = code.entry(e.clauses), slots, guard, index
            entry, slots, guard, index = calls[own]
            if e.clauses in code.caller and (rule := rules.get(e.key)) is not None:
                slots |= {rule.slot}
            argument = scratch.address + descriptors.planted + k * descriptors.size
            changes = code.changes[e.clauses]
            call = CallBody(
                entry, argument, slots, guard, changes.slots, exits_of(changes, site)
            )  # fmt: skip
            sure = guard is not None or program.clauses[e.clauses[0]].predicate is None
            shape = shapes.get(own)
            if shape is not None and sure:
                bodies = (shape.body(e.probe.id, call, guard),)
            elif index is not None and sure:
                bodies = (IndexedBody(index, call, guard),)
            else:
                bodies = (call,)
        assert bodies is not None
        address = site.address
        if several and address in place:
            before = wanted[place[address]]
            wanted[place[address]] = replace(before, bodies=(*before.bodies, *bodies))
            continue
        following = kernel.following(site.function, address + len(site.code), FOLLOWING)
        if several:
            place[address] = len(wanted)
        wanted.append(
            WantedSite(site, choice.way, bodies, following, choice.rerun_prefix, marks[k])
        )
    unprobed = [*((site, "") for site in parts.unprobed), *((site, "gate") for site in parts.gates)]
    for k, (site, way) in enumerate(unprobed, len(parts.planted)):
        following = kernel.following(site.function, site.address + len(site.code), FOLLOWING)
        wanted.append(WantedSite(site, way, (), following, b"", marks[k]))
    return wanted


Choosing = Mapping[int, Sequence[tuple[EnabledSite, int]]]


def _choosing(placed: PlacedProgram, descriptors: Descriptors) -> Choosing:
    """Return the planted probes to which only some hits of their site belong
    (EnabledSite.selection).

    The result has a list for each address of a site: (probe, address of its site descriptor in the
    target) of each such probe there.
    """
    found: dict[int, list[tuple[EnabledSite, int]]] = {}
    for k, chosen in enumerate(placed.placement.planted):
        if chosen.enabled.selection is not None:
            at = placed.scratch.address + descriptors.planted + k * descriptors.size
            found.setdefault(chosen.site.address, []).append((chosen.enabled, at))
    return found


def _calls_of_choosers(
    placed: PlacedProgram,
    descriptors: Descriptors,
    code: TargetCode,
    rules: FrameRules,
    isa: Isa,
) -> dict[int, CallBody]:
    """Return the calls of choosers, by the address of the site whose trampoline makes the call.

    A site that several probes share may have a chooser: a function in the target that finds out
    which of the probes a hit belongs to, and runs only that probe's clauses.

    Args:
        descriptors: offsets of the probes' descriptors in scratch.
        code: the compiled clauses.
        rules: how to find the caller's return address at a site, by EnabledSite.key.
    """
    calls = {}
    for chooser, (address, probes) in zip(
        code.choosers, _choosing(placed, descriptors).items(), strict=True
    ):
        slots, written, exits = frozenset[int](), frozenset[int](), dict[Exit, None]()
        for e, _ in probes:
            changes = code.changes[e.clauses]
            written |= changes.slots
            if e.probe.site is not None:
                exits |= dict.fromkeys(exits_of(changes, e.probe.site))
            slots |= code.slots[e.clauses] | argument_slots(isa, e, code.arguments[e.clauses])
            if e.clauses in code.caller and e.key in rules:
                slots |= {rules[e.key].slot}
            if e.selection is not None:
                numbers = [e.selection.number, e.selection.state or e.selection.number]
                slots |= {one.value & POINTED_SLOT for one in numbers}
        calls[address] = CallBody(
            chooser, probes[0][1], slots, None, written, tuple(exits)
        )  # fmt: skip
    return calls


def _exits(placed: PlacedProgram) -> bool:
    """Return whether a clause that runs in the target may call exit()."""
    inside = frozenset(c for e in placed.placement.inside for c in e.clauses)
    return exits_in(placed.compiled.program, inside)


def argument_slots(isa: Isa, enabled: EnabledSite, numbers: frozenset[int]) -> frozenset[int]:
    """Return the frame slots that hold arguments of a probe, or pointers to them.

    Args:
        numbers: which arguments, 0 for arg0.
    """
    read = [a for n, a in enumerate(enabled.arguments) if n in numbers]
    stack = {isa.sp_slot for a in read if a.kind == ARGUMENT_STACK}
    pointers = {a.value & POINTED_SLOT for a in read if a.kind == ARGUMENT_POINTED}
    return frozenset(stack | pointers | {a.value for a in read if a.kind == ARGUMENT_SLOT})


def _descriptor_places(placed: PlacedProgram) -> Descriptors:
    """Return where in scratch the site descriptors lie; their bytes are still missing.

    First come the probes that the target fires, then those that the host fires, then dtrace:::ERROR
    twice, for clauses in the target and on the host.
    """
    parts, sites = placed.placement, placed.scratch.sites
    size = descriptor_size(len(placed.layout.constant_aggregations))
    others = [*parts.host, *(s.enabled for s in parts.stopped)]
    first = sites + len(parts.inside) * size
    end = first + len(others) * size
    offsets = {e.key: first + k * size for k, e in enumerate(others)}
    return Descriptors(sites, size, offsets, end, end + size)


def _describe(
    placed: PlacedProgram, places: Descriptors, rules: FrameRules, *, counted_only: bool = False
) -> Descriptors:
    """Return the site descriptors with their offsets and bytes.

    Args:
        places: the offsets, as _descriptor_places() returns them.
        rules: how to find the caller's return address at a site, by EnabledSite.key.
        counted_only: whether planted probes only count, so that no clause reads their site
            descriptors.
    """
    parts, layout, scratch = placed.placement, placed.layout, placed.scratch
    strings = Strings(placed.compiled.strings)
    others = [*parts.host, *(s.enabled for s in parts.stopped)]
    constant = layout.constant_aggregations
    inside, host = parts.inside, placed.memory.native
    entry, data, at = layout.site_keys.get, [], places.planted + len(inside) * places.size
    for some, where, base in (
        ([] if counted_only else inside, places.planted, scratch.address),
        (others, at, host),
        ([parts.error], places.error_target, scratch.address),
        ([parts.error], places.error_host, host),
    ):
        keys = [tuple([entry((e.probe.id, k), 0) for k in constant]) for e in some if constant]
        known = {k: rules[e.key] for k, e in enumerate(some if rules else ()) if e.key in rules}
        told = descriptors_of(some, base + scratch.strings, strings, places.size, keys, known)
        data.append((where, told))
    return replace(places, data=tuple(data), strings=strings.data)
