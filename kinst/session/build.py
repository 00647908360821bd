"""From enabled probes to code: ways, machine code, descriptors, the patch plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kinst.codegen.compile import Code, HostCode, compile_host, compile_target, host_triple
from kinst.codegen.machine import host_machine, parents_of, target_machine
from kinst.codegen.runtime import build_trap_table
from kinst.core.errors import KinstError
from kinst.core.isa import Body, CallBody, CountBody, Isa
from kinst.core.layout import ARGUMENT_SLOT, ARGUMENT_STACK, Scratch
from kinst.core.probe import Probe
from kinst.core.target import Personality
from kinst.dlang import typed
from kinst.patch.descriptors import FrameRule
from kinst.patch.plan import Hook, Plan, Wanted, plan_hooks, plan_sites
from kinst.patch.ways import Choice, Means, choose
from kinst.providers.dtrace import BEGIN, END, ERROR
from kinst.session.layout import Descriptors, counted_entries, describe, exits_in
from kinst.session.machine import Placed, StoppedUser, Traced, read_for_host
from kinst.session.probes import Enabled
from kinst.wire import native

HOOK_BYTES = 32  # live bytes of a hooked function that a detour may displace
FOLLOWING = 48  # bytes after a site that are looked at for flag liveness
ERROR_ID = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """The enabled probes by who runs them.  error is there even when nothing enables it."""

    host: tuple[Enabled, ...]
    planted: tuple[tuple[Enabled, Choice], ...]
    stopped: tuple[Enabled, ...]
    refused: tuple[tuple[Enabled, str], ...]
    error: Enabled

    def named(self, name: object) -> Enabled | None:
        return next((e for e in self.host if e.probe.name == name), None)

    @property
    def begin(self) -> Enabled | None:
        return self.named(BEGIN)

    @property
    def end(self) -> Enabled | None:
        return self.named(END)

    @property
    def running(self) -> tuple[Enabled, ...]:
        """Every probe that can fire, in id order."""
        return (*self.host, *(e for e, _ in self.planted), *self.stopped)


def split(enabled: Sequence[Enabled], means: Means, traced: Traced) -> Parts:
    """Choose the way for every site; probes without a site run on the host."""
    personality, kernel = traced.personality, traced.kernel
    host = tuple(e for e in enabled if e.probe.site is None)
    sites = [(e, e.probe.site) for e in enabled if e.probe.site is not None]
    planted, stopped, refused = [], [], []
    if personality is not None and kernel is not None:
        reasons = personality.site_refusals([(s.address, len(s.code)) for _, s in sites])
        again = [kernel.again(s.function, s.address) for _, s in sites]
        spans = [(s.address - len(a), len(a)) for (_, s), a in zip(sites, again, strict=True)]
        rerun = rerun_refusals(personality, spans)
        for (e, site), reason, before in zip(sites, reasons, again, strict=True):
            why = personality.refusals(site.function) or reason or kernel.unsafe(site.address)
            after = kernel.following(site.function, site.address + len(site.code), FOLLOWING)
            why = why or rerun.get((site.address - len(before), len(before)), "")
            fixup = personality.has_fixup(site.address)
            choice = choose(site, after, traced.isa, means, why, fixup, before)
            if choice.way == "stop":
                stopped.append(e)
            elif choice.way:
                planted.append((e, choice))
            else:
                refused.append((e, choice.reason))
    error = next((e for e in host if e.probe.name == ERROR), None)
    if error is None:
        error = Enabled(Probe(ERROR_ID, ERROR), (), 0, None)
    return Parts(host, tuple(planted), tuple(stopped), tuple(refused), error)


def rerun_refusals(
    personality: Personality, spans: Sequence[tuple[int, int]]
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
    isa: Isa, personality: Personality, enabled: Sequence[Enabled]
) -> dict[tuple[int, int], FrameRule]:
    """How the caller is found at each site, by Enabled.key; sites without a rule are left out."""
    slots = {r.d_name: r.slot for r in isa.registers}
    found = {}
    for e in enabled:
        if e.probe.site is not None:
            rule = personality.frame_rule(e.probe.site.address)
            if rule is not None and rule[0] in slots:
                found[e.key] = FrameRule(slots[rule[0]], rule[1], rule[2])
    return found


@dataclass(frozen=True, slots=True)
class Built:
    """All that is to be written: descriptors, host code, and for planted probes target code,
    the trap table and the patch plans (hooks first).

    rules: how the caller is found, by Enabled.key.  read: what host code reads memory with, kept
    alive here.  user, read_user: the same for the memory of the traced program.
    """

    descriptors: Descriptors
    host: HostCode
    code: Code | None
    hooks: Plan
    sites: Plan
    traps: bytes
    rules: Mapping[tuple[int, int], FrameRule]
    read: native.NativeRead
    user: StoppedUser
    read_user: native.NativeRead


def _entries(enabled: Sequence[Enabled]) -> tuple[tuple[int, ...], ...]:
    return tuple(dict.fromkeys(e.clauses for e in enabled))


_NOTHING = Plan((), (), (), (), (), 0)


def build(
    program: typed.Program,
    parts: Parts,
    placed: Placed,
    traced: Traced,
    symbols: Mapping[tuple[str, str], int] | None = None,
) -> Built:
    """Compile for host and target, and plan the patches.

    symbols: running addresses by (module, name).  Raises KinstError."""
    isa, scratch, base = traced.isa, placed.scratch, placed.memory.native
    in_target = frozenset(e.key for e, _ in parts.planted)
    rules = frame_rules(isa, traced.personality, parts.running) if traced.personality else {}
    descriptors = describe(
        scratch, base, program, placed.layout, parts.running, parts.error, in_target, rules
    )
    read = read_for_host(traced.target)
    user = StoppedUser(traced.target, traced.facts)
    read_user = native.native_read(user.read)
    here = host_machine(
        isa, scratch, base, read.address, host_triple(), user.functions(read_user),
        parents_of(traced.facts), traced.facts.user_state if traced.facts else None,
    )  # fmt: skip
    paths = traced.facts.paths if traced.facts else None
    host = compile_host(
        program, placed.layout, replace(here, symbols=symbols or {}, paths=paths),
        _entries((*parts.host, *parts.stopped)), parts.error.clauses,
        base + descriptors.error_host,
    )  # fmt: skip
    if not parts.planted:
        return Built(descriptors, host, None, _NOTHING, _NOTHING, b"", rules, read, user, read_user)
    if traced.facts is None:
        raise KinstError("probes can be planted only in a kernel")
    there = target_machine(isa, traced.facts, scratch)
    code = compile_target(
        program, placed.layout, replace(there, symbols=symbols or {}),
        _entries([e for e, _ in parts.planted]), parts.error.clauses,
        scratch.address + descriptors.error_target, scratch.address + scratch.text,
    )  # fmt: skip
    hooks = plan_hooks(_hooks(parts, code, traced), isa, code.address + len(code.code))
    wanted = _wanted(program, parts, placed, traced, code, descriptors, rules)
    sites = plan_sites(wanted, isa, hooks.end, scratch.address + scratch.size)
    traps = build_trap_table(scratch.address + scratch.traps, sites.traps, sites.copies)
    return Built(descriptors, host, code, hooks, sites, traps, rules, read, user, read_user)


def _hooks(parts: Parts, code: Code, traced: Traced) -> list[Hook]:
    """The kernel functions to detour: its breakpoint handler when there are traps, its search
    of exception tables when a planted instruction may fault on purpose, and its search of BUG
    and WARN traps when one of those is planted."""
    facts, kernel, personality = traced.facts, traced.kernel, traced.personality
    assert facts is not None and kernel is not None and personality is not None
    hooks = []
    if any(choice.way == "trap" for _, choice in parts.planted):
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
    parts: Parts,
    placed: Placed,
    traced: Traced,
    code: Code,
    descriptors: Descriptors,
    rules: Mapping[tuple[int, int], FrameRule],
) -> list[Wanted]:
    """The work at every planted site: for each of its probes a call of its clauses, or counting
    alone.

    A program that exits from a planted clause calls everywhere, so that nothing is counted
    after its exit()."""
    kernel, scratch = traced.kernel, placed.scratch
    assert kernel is not None
    exits = exits_in(program, frozenset(c for e, _ in parts.planted for c in e.clauses))
    counters = None if exits else placed.counters
    wanted: dict[int, Wanted] = {}
    for e, choice in parts.planted:
        site = e.probe.site
        assert site is not None
        counted = counted_entries(program, placed.layout, e) if counters else None
        body: Body
        if counters is not None and counted is not None:
            body = CountBody(tuple(counters.displacement + at for at in counted))
        else:
            slots, rule = code.slots[e.clauses], rules.get(e.key)
            slots |= argument_slots(traced.isa, e, code.arguments[e.clauses])
            if e.clauses in code.caller and rule is not None:
                slots |= {rule.slot}
            argument = scratch.address + descriptors.offsets[e.key]
            body = CallBody(code.entry(e.clauses), argument, slots)
        following = kernel.following(site.function, site.address + len(site.code), FOLLOWING)
        before = wanted[site.address].bodies if site.address in wanted else ()
        wanted[site.address] = Wanted(site, choice.way, (*before, body), following, choice.again)
    return list(wanted.values())


def argument_slots(isa: Isa, enabled: Enabled, numbers: frozenset[int]) -> frozenset[int]:
    """The frame slots in which these arguments of a probe are, or are found by."""
    read = [a for n, a in enumerate(enabled.arguments) if n in numbers]
    stack = {isa.sp_slot for a in read if a.kind == ARGUMENT_STACK}
    return frozenset(stack | {a.value for a in read if a.kind == ARGUMENT_SLOT})


def fill(view: memoryview, scratch: Scratch, built: Built) -> None:
    """Write everything but the patches of kernel text into scratch."""

    def put(offset: int, data: bytes) -> None:
        view[offset : offset + len(data)] = data

    put(scratch.strings, built.descriptors.strings)
    put(scratch.sites, built.descriptors.data)
    put(scratch.traps, built.traps)
    if built.code is not None:
        put(built.code.address - scratch.address, built.code.code)
    for address, data in (*built.hooks.text, *built.sites.text):
        put(address - scratch.address, data)
