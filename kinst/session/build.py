"""From enabled probes to code: ways, machine code, descriptors, the patch plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kinst.codegen.analysis import asks_caller, string_table
from kinst.codegen.code_machine import CodeMachine, host_machine, parents_of, target_machine
from kinst.codegen.compile import TargetCode, compile_host, compile_target, host_triple
from kinst.codegen.hooks import build_trap_table
from kinst.codegen.site_records import ShapeOfRecord, record_shapes
from kinst.codegen.site_work import Arguments, Clauses, counted, exits_in, own_keys, snippets_of
from kinst.core.bodies import Body, CallBody, CountBody, IndexedBody
from kinst.core.columns import FOLLOWING, Batch, columns_of
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.errors import KinstError, TargetError
from kinst.core.held import EndedCode, held_in
from kinst.core.isa import Isa
from kinst.core.kernel import Argument, LiveKernel
from kinst.core.layout import (
    ARGUMENT_CONSTANT,
    ARGUMENT_SLOT,
    ARGUMENT_STACK,
    ARGUMENTS,
    Scratch,
)
from kinst.core.machine import Target
from kinst.core.probe import Probe, Site
from kinst.core.records import ProgramLayout
from kinst.core.system import HOOK_BYTES, Facts, System, UserMemory
from kinst.dlang import typed
from kinst.patch.blocks import BlockRules
from kinst.patch.descriptors import (
    FrameRule,
    Strings,
    descriptor_size,
    descriptors_of,
)
from kinst.patch.leaders import NO_ADDRESSES, Leaders
from kinst.patch.plan import Hook, Plan, plan_hooks, plan_sites
from kinst.patch.wanted import Wanted
from kinst.patch.ways import LONGEST, Choice, PlantingAbility, choose, choose_movable
from kinst.providers.dtrace import ERROR
from kinst.session.stopped import read_access
from kinst.session.values import (
    Descriptors,
    EnabledSite,
    Placed,
    Placement,
    PlantedImage,
    StoppedCpu,
    TracedMachine,
)
from kinst.wire import native

ERROR_ID = 3
FEW_FUNCTIONS = 8  # for which memory is looked through while runs are chosen


def split(
    enabled: Sequence[EnabledSite], ability: PlantingAbility, traced: TracedMachine
) -> Placement:
    """Choose the way for every site; probes without a site run on the host."""
    personality, kernel = traced.personality, traced.kernel
    sampled = tuple(
        with_place(e, traced.isa)
        for e in enabled
        if traced.never_stands and e.timer is not None and e.timer.each_cpu
    )
    ids = {e.probe.id for e in sampled}
    host = tuple(e for e in enabled if e.probe.site is None and e.probe.id not in ids)
    sites = [(e, e.probe.site) for e in enabled if e.probe.site is not None]
    planted, stopped, refused = [], [], []
    if personality is not None and kernel is not None and sites:
        reasons = personality.site_refusals([(s.address, len(s.code)) for _, s in sites])
        of_functions = {s.function.address: s.function for _, s in sites}
        refusing = {at: personality.refusals(f) for at, f in of_functions.items()}
        bound = {at for at, f in of_functions.items() if kernel.hangs_together(f)}
        prefixes = {
            s.address: prefix
            for _, s in sites
            if s.function.address in bound
            and (prefix := kernel.rerun_prefix(s.function, s.address))
        }
        rerun = rerun_refusals(personality, [(at - len(p), len(p)) for at, p in prefixes.items()])
        kinds = _kinds([s for _, s in sites], traced.isa, ability, kernel, personality)
        alike: dict[int, Choice] = {}  # by kind
        for (e, site), reason, kind in zip(sites, reasons, kinds, strict=True):
            function = site.function
            why = refusing[function.address] or reason
            if kind and not why and function.address not in bound:
                known = alike.get(kind)
                if known is None:
                    known = alike[kind] = choose_movable(site, traced.isa, ability)
                choice = known
            else:
                before = prefixes.get(site.address, b"")
                why = why or kernel.unsafe(function, site.address)
                why = why or rerun.get((site.address - len(before), len(before)), "")
                fixup = personality.has_fixup(site.address)
                after = kernel.following(function, site.address + len(site.code), FOLLOWING)
                choice = choose(site, after, traced.isa, ability, why, fixup, before)
            if choice.way == "stop":
                stopped.append((e, choice))
            elif choice.way:
                planted.append((e, choice))
            else:
                refused.append((e, choice.reason))
    error = next((e for e in host if e.probe.name == ERROR), None)
    if error is None:
        error = EnabledSite(Probe(ERROR_ID, ERROR), (), 0, None)
    found = Placement(host, tuple(planted), tuple(stopped), tuple(refused), error)
    return replace(found, sampled=sampled)


def with_place(enabled: EnabledSite, isa: Isa) -> EnabledSite:
    """A probe of a sample, whose arg0 and arg1 are behind its frame (write_sampler())."""
    places = (isa.frame_slots, isa.frame_slots + 1)
    none = Argument(ARGUMENT_CONSTANT, 0)
    own = tuple(Argument(ARGUMENT_SLOT, place) for place in places)
    return replace(enabled, arguments=(*own, *(none,) * (ARGUMENTS - len(own))))


def with_runs(
    parts: Placement,
    leaders: Leaders,
    target: Target,
    ended: Sequence[EndedCode],
    *,
    gates: bool,
) -> Placement:
    """Runs for those sites that would be traps and, where there are none, gates.

    For few sites memory is looked through now, when there is still a choice of runs: most words
    that point into a function are left over from interrupts and stay for long.  ended: as of
    PlantedImage."""
    sites = [
        (e.probe.site, choice.way == "jump")
        for e, choice in parts.planted
        if e.probe.site is not None
    ]
    stops = {e.probe.site.address for e, _ in parts.stopped if e.probe.site is not None}
    live = NO_ADDRESSES
    functions = {site.function for site, own in sites if not own}
    if 0 < len(functions) <= FEW_FUNCTIONS and not target.abilities.reads_running:
        low = min(function.address for function in functions)
        high = max(function.address + function.size for function in functions)
        live = held_in(target, low, high, ended)
    found = leaders.runs(sites, stops, gates=gates, live=live)
    return replace(
        parts, runs=found.runs, unprobed=found.unprobed, dead_registers=found.dead_registers,
        gates=found.gates, gated=found.gated,
    )  # fmt: skip


def _kinds(
    sites: Sequence[Site],
    isa: Isa,
    ability: PlantingAbility,
    kernel: LiveKernel,
    personality: System,
) -> Sequence[int]:
    """A number for each instruction that is marked as of a kind that can be displaced to scratch:
    of the same number are those for which choose_movable() says the same.  0: of the others that
    is not known."""
    if not ability.scratch_address or ability.forced == "stop":
        return [0] * len(sites)
    columns = columns_of([s.address for s in sites], [s.code for s in sites])
    columns.marks[:] = kernel.marks(sites)
    marked = np.flatnonzero(columns.marks)
    none = np.zeros(len(marked), np.bool_)
    batch = Batch(
        columns.take(marked), np.zeros((len(marked), 0), np.int64), none.astype(np.uint8), none,
        none, ability.scratch_address, ability.scratch_address,
    )  # fmt: skip
    movable = np.zeros(len(sites), np.bool_)
    movable[marked] = isa.trampoline_sizes(batch) >= 0
    if not ability.fault_hook:
        movable &= [not personality.has_fixup(s.address) for s in sites]
    scratch = np.full(len(sites), ability.scratch_address, np.uint64)
    jump, _ = isa.jump_patches(columns, scratch)
    longest = replace(columns, size=np.full(len(sites), LONGEST, np.uint8))
    near, _ = isa.jump_patches(longest, scratch)
    kinds = 1 + columns.size.astype(np.int64) + 32 * jump + 64 * near
    found: list[int] = np.where(movable, kinds, 0).tolist()
    return found


def rerun_refusals(
    personality: System, spans: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Of (address, size) of code that is to be run a second time, elsewhere, where the kernel is
    against it, and why: it changes an instruction there, or finds it by its address in a fault."""
    there = [span for span in spans if span[1]]
    found = {}
    for (start, size), changed in zip(there, personality.site_refusals(there), strict=True):
        if changed:
            found[start, size] = f"of what is to be run again before it: {changed}"
        elif any(map(personality.has_fixup, range(start, start + size))):
            found[start, size] = "what is to be run again before it may fault on purpose"
    return found


def frame_rules(
    isa: Isa, personality: System, enabled: Sequence[EnabledSite]
) -> dict[tuple[int, int], FrameRule]:
    """How the caller is found at each site that has a rule, by EnabledSite.key."""
    slots = {r.d_name: r.slot for r in isa.registers}
    found = {}
    for e in enabled:
        if e.probe.site is not None:
            rule = personality.frame_rule(e.probe.site.address)
            if rule is not None and rule[0] in slots:
                found[e.key] = FrameRule(slots[rule[0]], rule[1], rule[2])
    return found


def _entries(enabled: Sequence[EnabledSite]) -> tuple[tuple[int, ...], ...]:
    return tuple(dict.fromkeys(e.clauses for e in enabled))


_NOTHING = Plan()


def build(
    program: typed.Program,
    parts: Placement,
    placed: Placed,
    traced: TracedMachine,
    symbols: Mapping[tuple[str, str], int] | None = None,
    dialect: Dialect = UNKNOWN,
    *,
    chained: bool = False,
    blocks: bool = False,
) -> PlantedImage:
    """Compile for host and target, and plan the patches.

    symbols: running addresses by (module, name).  dialect: the system's part of D.  chained:
    trampolines lead straight into each other where the ISA can do that.  blocks: instructions may
    share counters.  Raises KinstError."""
    isa, scratch, base = traced.isa, placed.scratch, placed.memory.native
    rules = {}
    if traced.personality is not None and asks_caller(program):
        rules = frame_rules(isa, traced.personality, parts.running)
    places = descriptor_places(scratch, placed.layout, parts)
    describing = partial(describe, places, scratch, base, program, placed.layout, parts, rules)
    read = read_for_host(traced.target)
    stopped = StoppedCpu()
    user = StoppedUser(traced.target, traced.facts, stopped)
    read_user = native.native_read(user.read)
    facts = traced.facts or Facts()
    here = host_machine(
        isa, scratch, base, read.address, host_triple(), user.functions(read_user),
        parents_of(traced.facts), facts.user_state, facts.interrupt_masks, dialect,
    )  # fmt: skip
    host = compile_host(
        program, placed.layout, replace(here, symbols=symbols or {}, paths=facts.paths),
        _entries((*parts.host, *(e for e, _ in parts.stopped))), parts.error.clauses,
        base + places.error_host,
    )  # fmt: skip
    if not parts.inside:
        return PlantedImage(
            describing(), host, None, _NOTHING, _NOTHING, b"", rules, read, read_user, stopped
        )
    if traced.facts is None:
        raise KinstError("probes can be planted only in a kernel")
    there = target_machine(isa, traced.facts, scratch, dialect)
    there = replace(there, samples=bool(parts.sampled))
    first = scratch.address + places.planted + len(parts.planted) * places.size
    shapes: Mapping[tuple[Clauses, Arguments], ShapeOfRecord] = {}
    if not _exits(program, parts):
        own = ((e.clauses, e.arguments) for e, _ in parts.planted)
        shapes = record_shapes(program, placed.layout, own, there, isa)
    code = compile_target(
        program, placed.layout, replace(there, symbols=symbols or {}, reserves=bool(shapes)),
        _entries(parts.inside), parts.error.clauses,
        scratch.address + places.error_target, scratch.address + scratch.text,
        [(e.clauses, first + k * places.size) for k, e in enumerate(parts.sampled)],
    )  # fmt: skip
    hooks = plan_hooks(_hooks(parts, code, traced), isa, code.address + len(code.code))
    wanted = _wanted(program, parts, placed, there, traced, code, places, rules, shapes)
    limit = scratch.address + scratch.size
    block_rules = _block_rules(wanted, placed, traced) if blocks else None
    sites = plan_sites(
        wanted, isa, hooks.end, limit,
        chained=chained, runs=parts.runs, blocks=block_rules, spare=parts.dead_registers,
    )  # fmt: skip
    traps = build_trap_table(scratch.address + scratch.traps, sites.traps, sites.copies)
    silent = not parts.sampled and all(
        isinstance(body, CountBody) for work in wanted for body in work.bodies
    )
    periods = [e.timer.period_ns for e in parts.sampled if e.timer is not None]
    return PlantedImage(
        describing(silent=silent), host, code, hooks, sites, traps, rules, read, read_user, stopped,
        samplers=tuple(zip(periods, code.samplers, strict=True)),
    )  # fmt: skip


def _block_rules(
    wanted: Sequence[Wanted], placed: Placed, traced: TracedMachine
) -> BlockRules | None:
    """What blocks of instructions may have of the counters; None for nothing."""
    counters, personality = placed.counters, traced.personality
    if counters is None or personality is None:
        return None
    own = placed.layout.counters_size
    places = (work.site.address for work in wanted)
    faulting = {at for at in places if personality.has_fixup(at) or personality.is_bug(at)}
    room = (counters.size - own) // 8
    return BlockRules(counters.displacement + own, room, faulting) if room else None


def _hooks(parts: Placement, code: TargetCode, traced: TracedMachine) -> list[Hook]:
    """The kernel functions to detour: its breakpoint handler when there are traps, its search
    of exception tables when a planted instruction may fault on purpose, and its search of BUG
    and WARN traps when one of those is planted.  Where the machine runs on while it is planted in,
    it brings breakpoints to kinst's code by itself."""
    facts, kernel, personality = traced.facts, traced.kernel, traced.personality
    assert facts is not None and kernel is not None and personality is not None
    hooks = []
    if not traced.never_stands and any(choice.way == "trap" for _, choice in parts.planted):
        live = kernel.live(facts.trap_hook, HOOK_BYTES)
        hooks.append(Hook(facts.trap_hook, live, code.address + code.trap_hook, False))
    places = [e.probe.site.address for e, _ in parts.planted if e.probe.site is not None]
    for function, used in (
        (facts.fault_hook, personality.has_fixup),
        (facts.bug_hook, personality.is_bug),
    ):
        if function and any(used(place) for place in places):
            live = kernel.live(function, HOOK_BYTES)
            hooks.append(Hook(function, live, code.address + code.fault_hook, True))
    return hooks


def _wanted(
    program: typed.Program,
    parts: Placement,
    placed: Placed,
    machine: CodeMachine,
    traced: TracedMachine,
    code: TargetCode,
    descriptors: Descriptors,
    rules: Mapping[tuple[int, int], FrameRule],
    shapes: Mapping[tuple[Clauses, Arguments], ShapeOfRecord],
) -> list[Wanted]:
    """The work at every planted site: for each of its probes a call of its clauses, or counting or
    a record alone.

    A program that exits from a planted clause calls everywhere, so that nothing is counted
    after its exit()."""
    kernel, scratch, isa = traced.kernel, placed.scratch, traced.isa
    assert kernel is not None
    base = (
        None if _exits(program, parts) or placed.counters is None else placed.counters.displacement
    )
    snippets = snippets_of(
        program, placed.layout, base, ((e.clauses, e.arguments) for e, _ in parts.planted),
        machine, isa,
    )  # fmt: skip
    marks = kernel.marks([
        *(e.probe.site for e, _ in parts.planted if e.probe.site is not None),
        *parts.unprobed, *parts.gates,
    ]).tolist()  # fmt: skip
    wanted: list[Wanted] = []
    place: dict[int, int] = {}  # of sites that several probes may have, in `wanted`
    addresses = np.array([e.key[1] for e, _ in parts.planted], np.uint64)
    several = len(np.unique(addresses)) < len(addresses)
    known: dict[object, tuple[Body, ...] | None] = {}  # of probes that count the same
    keys = own_keys(program, placed.layout)
    for k, (e, choice) in enumerate(parts.planted):
        site, own = e.probe.site, (e.clauses, e.arguments)
        assert site is not None
        bodies: tuple[Body, ...] | None = None
        if base is not None:
            same = (own, keys(e.probe.id, e.clauses))
            if same not in known:
                known[same] = counted(program, placed.layout, e.probe.id, *own, base, snippets)
            bodies = known[same]
        if bodies is None:
            slots, rule = code.slots[e.clauses], rules.get(e.key)
            slots |= argument_slots(isa, e, code.arguments[e.clauses])
            if e.clauses in code.caller and rule is not None:
                slots |= {rule.slot}
            argument = scratch.address + descriptors.planted + k * descriptors.size
            guard, index = snippets.guard(*own), snippets.index(*own)
            call = CallBody(code.entry(e.clauses), argument, slots, guard)
            sure = guard is not None or program.clauses[e.clauses[0]].predicate is None
            shape = shapes.get(own)
            if shape is not None and sure:
                bodies = (shape.body(e.probe.id, call, guard),)
            elif index is not None and sure:
                bodies = (IndexedBody(index, call, guard),)
            else:
                bodies = (call,)
        address = site.address
        if several and address in place:
            before = wanted[place[address]]
            wanted[place[address]] = replace(before, bodies=(*before.bodies, *bodies))
            continue
        following = kernel.following(site.function, address + len(site.code), FOLLOWING)
        if several:
            place[address] = len(wanted)
        wanted.append(Wanted(site, choice.way, bodies, following, choice.rerun_prefix, marks[k]))
    unprobed = [*((site, "") for site in parts.unprobed), *((site, "gate") for site in parts.gates)]
    for k, (site, way) in enumerate(unprobed, len(parts.planted)):
        following = kernel.following(site.function, site.address + len(site.code), FOLLOWING)
        wanted.append(Wanted(site, way, (), following, b"", marks[k]))
    return wanted


def _exits(program: typed.Program, parts: Placement) -> bool:
    return exits_in(program, frozenset(c for e in parts.inside for c in e.clauses))


def argument_slots(isa: Isa, enabled: EnabledSite, numbers: frozenset[int]) -> frozenset[int]:
    """The frame slots in which these arguments of a probe are, or are found by."""
    read = [a for n, a in enumerate(enabled.arguments) if n in numbers]
    stack = {isa.sp_slot for a in read if a.kind == ARGUMENT_STACK}
    return frozenset(stack | {a.value for a in read if a.kind == ARGUMENT_SLOT})


def fill(view: memoryview, scratch: Scratch, built: PlantedImage) -> None:
    """Write everything but the patches of kernel text into scratch."""

    def put(offset: int, data: bytes | bytearray) -> None:
        view[offset : offset + len(data)] = data

    put(scratch.strings, built.descriptors.strings)
    for at, data in built.descriptors.data:
        put(at, data)
    put(scratch.traps, built.traps)
    if built.code is not None:
        put(built.code.address - scratch.address, built.code.code)
    for text in (built.hooks.text, built.sites.text, built.sites.stubs):
        if text:
            put(text.address - scratch.address, text.block)


def descriptor_places(scratch: Scratch, layout: ProgramLayout, parts: Placement) -> Descriptors:
    """Where descriptors are: of planted probes, of the others, and of dtrace:::ERROR for who runs
    its clauses in the target and on the host."""
    size = descriptor_size(len(layout.constant_aggregations))
    others = [*parts.host, *(e for e, _ in parts.stopped)]
    first = scratch.sites + len(parts.inside) * size
    behind = first + len(others) * size
    offsets = {e.key: first + k * size for k, e in enumerate(others)}
    return Descriptors(scratch.sites, size, offsets, behind, behind + size)


def describe(
    places: Descriptors,
    scratch: Scratch,
    host_base: int,
    program: typed.Program,
    layout: ProgramLayout,
    parts: Placement,
    rules: Mapping[tuple[int, int], FrameRule],
    *,
    silent: bool = False,
) -> Descriptors:
    """The descriptors, in their places.

    host_base: native address of scratch.  rules: how the caller is found, by EnabledSite.key.
    silent: the planted probes are only counted, and nobody reads theirs."""
    strings = Strings(string_table(program)[1])
    others, constant = [*parts.host, *(e for e, _ in parts.stopped)], layout.constant_aggregations
    inside = parts.inside
    entry, data, at = layout.site_keys.get, [], places.planted + len(inside) * places.size
    for some, where, base in (
        ([] if silent else inside, places.planted, scratch.address),
        (others, at, host_base),
        ([parts.error], places.error_target, scratch.address),
        ([parts.error], places.error_host, host_base),
    ):
        keys = [tuple([entry((e.probe.id, k), 0) for k in constant]) for e in some if constant]
        known = {k: rules[e.key] for k, e in enumerate(some if rules else ()) if e.key in rules}
        told = descriptors_of(some, base + scratch.strings, strings, places.size, keys, known)
        data.append((where, told))
    return replace(places, data=tuple(data), strings=strings.data)


def read_for_host(target: Target | None) -> native.NativeRead:
    """How host-run clauses read an address: the target's memory, or nothing without one."""

    def read(address: int, size: int) -> bytes | None:
        if target is None:
            return None
        try:
            return target.read(address, size)
        except TargetError:
            return None

    return native.native_read(read)


@dataclass(frozen=True, slots=True)
class StoppedUser:
    """The memory of the process that a stopped CPU runs, for host-run clauses."""

    target: Target | None
    facts: Facts | None
    cpu: StoppedCpu

    def read(self, address: int, size: int) -> bytes | None:
        """None where nothing can be read: no such address, or a kernel thread."""
        if self.target is None or self.cpu.number < 0:
            return None
        known = self.facts.user if self.facts else None
        try:
            mm = known.mm if known else None
            if self.facts and mm and not read_access(self.target, self.facts, self.cpu.number, mm):
                return None
            return self.target.read_user(self.cpu.number, address, size)
        except TargetError:
            return None

    def functions(self, read: native.NativeRead) -> UserMemory | None:
        """What host code is told; read: self.read for native code."""
        if self.target is None:
            return None
        known = self.facts.user if self.facts else None
        if known is None:
            return UserMemory(read.address, 0)
        return UserMemory(read.address, 0, known.mm, known.arg_start, known.arg_end)
