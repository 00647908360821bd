"""-x cpu=N: what happens on one CPU only (Dynamic Tracing Guide, "Options and Tunables").

dtrace(1) gives the other CPUs no buffer, so that clauses do not even begin there.  Here every
clause gets a predicate more; those of kinst's own probes - BEGIN, END, timers - run on no CPU of
the traced kernel, and always.
"""

from __future__ import annotations

from dataclasses import replace

from kinst.core.dtypes import INT, StringType
from kinst.core.errors import KinstError, Span
from kinst.core.probe import ProbeName, ProbePattern
from kinst.dlang import typed
from kinst.dlang.builtins import VARIABLES

OWN_PROVIDER = "dtrace"
OWN_NAMES = ("BEGIN", "END", "ERROR")
TIMERS = "profile"
TICK = "tick-"


def check_cpu(cpu: int, cpus: int) -> None:
    """Raises KinstError for a CPU that the traced machine has not; cpu: -1 for all."""
    if cpu >= cpus:
        message = f"could not enable tracing: there is no CPU {cpu}"
        raise KinstError(message, f"the traced machine has {cpus}, 0 to {cpus - 1}")


def on_one_cpu(program: typed.Program, cpu: int) -> typed.Program:
    """The program with its clauses limited to one CPU."""
    return replace(program, clauses=tuple(_limited(clause, cpu) for clause in program.clauses))


def _may_be_own(pattern: ProbePattern) -> bool:
    """Whether the description matches probes of kinst's own; a number always does."""
    names = (ProbeName(OWN_PROVIDER, "", "", name) for name in OWN_NAMES)
    timer = pattern.name.startswith(TICK)
    return (
        bool(pattern.id)
        or any(map(pattern.matches, names))
        or (timer and pattern.matches(ProbeName(TIMERS, "", "", pattern.name)))
    )


def _is_own(pattern: ProbePattern) -> bool:
    """Whether it matches nothing else."""
    exact = pattern.name in OWN_NAMES or pattern.name.startswith(TICK)
    return _may_be_own(pattern) and (exact or pattern.provider == OWN_PROVIDER or bool(pattern.id))


def _limited(clause: typed.Clause, cpu: int) -> typed.Clause:
    if all(map(_is_own, clause.patterns)):
        return clause
    span = clause.span
    here = typed.Builtin(INT, span, "cpu")
    wanted: typed.Expr = typed.Binary(INT, span, "==", here, typed.IntConst(INT, span, cpu))
    if any(map(_may_be_own, clause.patterns)):
        timers = any(p.name.startswith(TICK) for p in clause.patterns)
        for provider in (OWN_PROVIDER, TIMERS) if timers else (OWN_PROVIDER,):
            wanted = typed.Logical(INT, span, "||", _provided(provider, span), wanted)
    if clause.predicate is not None:
        wanted = typed.Logical(INT, span, "&&", wanted, clause.predicate)
    return replace(clause, predicate=wanted)


def _provided(provider: str, span: Span) -> typed.Expr:
    """Whether the probe that fires is one of this provider."""
    text = typed.StrConst(StringType(len(provider) + 1), span, provider.encode())
    part = typed.Builtin(VARIABLES["probeprov"].type, span, "probeprov")
    return typed.Binary(INT, span, "==", part, text)
