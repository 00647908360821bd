"""Batches (-x batch=TIME): parts of the functions that a program traces, planted in turn.

A kernel has two and a half million instructions; to plan and plant a hundred thousand of them takes
seconds and a few megabytes of scratch. With -x batch=TIME, kinst traces the first batch of
functions for TIME, then the second batch for TIME, and so on. Each batch has its own scratch, so
records and variables are lost when the batch ends. Only aggregations continue through all batches
(consumer.aggregations), so clauses at instructions may only aggregate.

Tested by tests/fake/test_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from kinst.core.errors import DError, KinstError
from kinst.core.kernel import Kernel
from kinst.core.probe import Function, ProbePattern
from kinst.core.system import System
from kinst.dlang import typed
from kinst.session.compiled import Compiled

BYTES = 400_000  # of code in a batch: some hundred thousand instructions

# Whether any of these descriptions means a probe of a traced kernel.
MeansKernel = Callable[[Sequence[ProbePattern]], bool]

_ONLY = "with -x batch= a program can only aggregate"


def check_batches(program: typed.TypedProgram, means_kernel: MeansKernel) -> None:
    """Check that the clauses at instructions of the kernel only aggregate, as -x batch= requires.

    Raises DError for a clause with another action or without any, and KinstError for a global or
    thread-local variable, whose value would be lost with its batch.

    Args:
        means_kernel: takes probe descriptions, and returns whether at least one of them matches
            probes of the traced kernel.
    """
    hint = "leave out -x batch=, or use aggregations alone"
    for clause in program.clauses:
        if not means_kernel(clause.patterns):
            continue
        if not clause.actions or any(
            not isinstance(a, typed.AggregateAction) for a in clause.actions
        ):
            message = f"{_ONLY}: a clause at an instruction does something else"
            raise DError(message, clause.span, "D_UNKNOWN", hint)
    kept = [one.name for one in program.variables if one.scope != "this"]
    if kept:
        raise KinstError(
            f"{_ONLY}: {kept[0]} would be lost between batches",
            hint,
        )


def cut(
    compiled: Compiled, kernel: Kernel, system: System, means_kernel: MeansKernel
) -> list[frozenset[int]]:
    """Split the functions that a program traces into batches, in address order.

    Returns the addresses of the functions of each batch. Functions that the system forbids to plant
    are left out. Raises KinstError if no function is left.

    Args:
        means_kernel: takes probe descriptions, and returns whether at least one of them matches
            probes of the traced kernel.
    """
    meant = dict[int, Function]()
    for pattern in compiled.patterns:
        if means_kernel([pattern]):
            with suppress(KinstError):  # enable() raises it later
                found = kernel.find(pattern.module, pattern.function or "*")
                meant |= {match.address: match for match in found}
    some = [match for _, match in sorted(meant.items()) if not system.refusals(match)]
    if not some:
        raise KinstError("there is nothing to plant in batches", "-x batch= is for instructions")
    return _filled(some)


def _filled(functions: Sequence[Function]) -> list[frozenset[int]]:
    batches, room = [set[int]()], BYTES
    for one in functions:
        if one.size > room and batches[-1]:
            batches.append(set())
            room = BYTES
        batches[-1].add(one.address)
        room -= one.size
    return [frozenset(one) for one in batches]
