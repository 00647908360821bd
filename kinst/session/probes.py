"""From clauses to probes: every description expanded, ids and epids given out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinst.codegen.walk import expressions
from kinst.core.errors import AbsentError, DError, KinstError
from kinst.core.kernel import Argument, Found, Kernel, Provider, Timer, all_named
from kinst.core.probe import Probe, ProbePattern
from kinst.dlang import typed

FIRST_ID = 1
_ARGUMENT = re.compile(r"arg[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Enabled:
    """A probe that clauses are attached to, at one of its sites.

    clauses: their indexes, in program order; one comes once for each of its descriptions that the
    probe matches (libdtrace compiles a clause for each: dt_compile_clause()).  epid: of the first
    of them; the others follow.
    arguments, condition: as in core.kernel.Found.
    """

    probe: Probe
    clauses: tuple[int, ...]
    epid: int
    timer: Timer | None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What no other Enabled has: a probe with several sites has one for each."""
        return self.probe.id, self.probe.site.address if self.probe.site else 0


def wants_kernel(
    patterns: Sequence[ProbePattern], providers: Mapping[str, Provider], *, fired: bool
) -> bool:
    """Whether any of these descriptions can mean a probe of a traced kernel or, if they are to be
    fired, one that samples its CPUs (profile-N).  One that a provider without a kernel says it
    cannot make does not."""
    for pattern in patterns:
        try:
            found = expand(pattern, providers, None)
        except AbsentError:
            continue
        samples = fired and any(one.timer is not None and one.timer.each_cpu for one in found)
        if samples or not (found or pattern.id):
            return True
    return False


def listed(providers: Mapping[str, Provider]) -> list[Found]:
    """The probes that are there without being asked for; their ids start at FIRST_ID."""
    return [found for p in providers.values() for found in p.listed()]


def expand(
    pattern: ProbePattern, providers: Mapping[str, Provider], kernel: Kernel | None
) -> list[Found]:
    """Every probe that a description means, each once, in the providers' order.

    An id means one of the probes that are there without being asked for, as -l numbers them."""
    if pattern.id:
        return listed(providers)[pattern.id - FIRST_ID : pattern.id - FIRST_ID + 1]
    return [found for p in providers.values() for found in p.match(pattern, kernel)]


def check_arguments(program: typed.Program, enabled: Sequence[Enabled]) -> None:
    """arg0 to arg9 are a function's or a timer's; an instruction has registers.

    Raises DError at the first use in a clause of a probe that has no such argument."""
    fewest: dict[int, tuple[int, Probe]] = {}
    for e in enabled:
        for clause in e.clauses if e.probe.site is not None else ():
            known = fewest.setdefault(clause, (len(e.arguments), e.probe))
            fewest[clause] = min(known, (len(e.arguments), e.probe), key=lambda one: one[0])
    for index, (count, probe) in sorted(fewest.items()):
        for expr in expressions(program.clauses[index]):
            if not isinstance(expr, typed.Builtin) or not _ARGUMENT.match(expr.name):
                continue
            if not count:
                what, hint = "at an instruction", "use regs[], for example regs[R_RDI]"
            elif int(expr.name[3:]) >= count:
                what, hint = f"at {probe.name}", f"it has arg0 to arg{count - 1}"
            else:
                continue
            raise DError(f"{expr.name} means nothing {what}", expr.span, "D_ARGS_NONE", hint)


# Where else the probes of some of dtrace(1)'s providers are.
_ELSEWHERE = {"syscall": "; a system call is a function, fbt::__*_sys_read:entry"}


def naming(pattern: ProbePattern, providers: Mapping[str, Provider], kernel: Kernel | None) -> str:
    """A hint for a description that means nothing: how probes are named."""
    if pattern.id:
        return "kinst -l lists those with numbers"
    last = pattern.name
    if last and not pattern.function and kernel and all_named(kernel, last):
        return f"{last} is a function: {last}:entry and {last}:return, or -f {last}"
    if pattern.provider in providers:
        return providers[pattern.provider].usage
    if pattern.provider:
        others = f"providers are {', '.join(sorted(providers))}"
        return f"{others}{_ELSEWHERE.get(pattern.provider, '')}"
    return ", ".join(p.usage for p in providers.values() if p.needs_kernel)


def enable(
    program: typed.Program,
    providers: Mapping[str, Provider],
    kernel: Kernel | None,
    *,
    zero: bool,
    absent: bool = False,
) -> tuple[tuple[Enabled, ...], dict[int, int]]:
    """The probes of a program, in the order of their ids, and matches per clause.

    zero: a description may match nothing.  absent: also for names that the kernel does not have
    (-Z).  Raises DError at the description otherwise,
    and where a provider says why it cannot be.
    """
    ids: dict[str, int] = {}
    founds: dict[str, dict[int, Found]] = {}  # by site
    clauses: dict[str, list[int]] = {}
    matched: dict[int, int] = {}
    for one in listed(providers):
        ids[str(one.name)] = FIRST_ID + len(ids)
    for clause in program.clauses:
        for pattern, span in zip(clause.patterns, clause.pattern_spans, strict=True):
            try:
                found = expand(pattern, providers, kernel)
            except KinstError as error:
                none = isinstance(error, AbsentError)
                if absent and none:
                    continue
                tag = "D_PDESC_ZERO" if none else "D_PDESC_INVAL"
                raise DError(error.message, span, tag, error.hint) from error
            if not found and not zero:
                raise DError(
                    f"probe description {pattern} does not match any probes",
                    span,
                    "D_PDESC_ZERO",
                    naming(pattern, providers, kernel),
                )
            for one in found:
                key = str(one.name)
                ids.setdefault(key, FIRST_ID + len(ids))
                founds.setdefault(key, {}).setdefault(one.site.address if one.site else 0, one)
            names = dict.fromkeys(str(one.name) for one in found)
            for key in names:
                clauses.setdefault(key, []).append(clause.index)
            matched[clause.index] = matched.get(clause.index, 0) + len(names)
    enabled, epid = [], 1
    for key, sites in founds.items():
        for one in sites.values():
            probe = Probe(ids[key], one.name, one.site)
            attached = clauses[key]
            enabled.append(
                Enabled(probe, tuple(attached), epid, one.timer, one.arguments, one.condition)
            )
        epid += len(attached)
    return tuple(enabled), matched
