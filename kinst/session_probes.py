"""From clauses to probes: every description expanded, ids and epids given out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinst.codegen.walk import expressions
from kinst.core.errors import DError, KinstError
from kinst.core.kernel import Found, Kernel, Provider, Timer
from kinst.core.probe import Probe, ProbePattern
from kinst.dlang import typed

FIRST_ID = 1
_ARGUMENT = re.compile(r"arg[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Enabled:
    """A probe that clauses are attached to.

    clauses: their indexes, in program order.  epid: of the first of them; the others follow.
    """

    probe: Probe
    clauses: tuple[int, ...]
    epid: int
    timer: Timer | None


def wants_kernel(patterns: Sequence[ProbePattern], providers: Mapping[str, Provider]) -> bool:
    """Whether any of these descriptions can mean a probe of a traced kernel."""
    hosts = [p for p in providers.values() if not p.needs_kernel]
    return not all(pattern.id or any(p.match(pattern, None) for p in hosts) for pattern in patterns)


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

    Raises DError at the first use in a clause of an instruction's probe."""
    for index in sorted({c for e in enabled if e.probe.site is not None for c in e.clauses}):
        for expr in expressions(program.clauses[index]):
            if isinstance(expr, typed.Builtin) and _ARGUMENT.match(expr.name):
                raise DError(
                    f"{expr.name} means nothing at an instruction",
                    expr.span,
                    "D_ARGS_NONE",
                    "use regs[], for example regs[R_RDI]",
                )


def enable(
    program: typed.Program, providers: Mapping[str, Provider], kernel: Kernel | None, *, zero: bool
) -> tuple[tuple[Enabled, ...], dict[int, int]]:
    """The probes of a program, in the order of their ids, and matches per clause.

    zero: a description may match nothing (-Z).  Raises DError at the description otherwise,
    and where a provider says why it cannot be.
    """
    ids: dict[str, int] = {}
    founds: dict[str, Found] = {}
    clauses: dict[str, list[int]] = {}
    matched: dict[int, int] = {}
    for one in listed(providers):
        ids[str(one.name)] = FIRST_ID + len(ids)
    for clause in program.clauses:
        for pattern, span in zip(clause.patterns, clause.pattern_spans, strict=True):
            try:
                found = expand(pattern, providers, kernel)
            except KinstError as error:
                raise DError(error.message, span, "D_PDESC_INVAL", error.hint) from error
            if not found and not zero:
                raise DError(
                    f"probe description {pattern} does not match any probes", span, "D_PDESC_ZERO"
                )
            for one in found:
                key = str(one.name)
                ids.setdefault(key, FIRST_ID + len(ids))
                founds.setdefault(key, one)
                attached = clauses.setdefault(key, [])
                if clause.index not in attached:
                    attached.append(clause.index)
                    matched[clause.index] = matched.get(clause.index, 0) + 1
    enabled, epid = [], 1
    for key, one in founds.items():
        probe = Probe(ids[key], one.name, one.site)
        enabled.append(Enabled(probe, tuple(clauses[key]), epid, one.timer))
        epid += len(clauses[key])
    return tuple(enabled), matched
