"""Batches: parts of the instructions that a program means, planted one part after another.

A kernel has more instructions than can reasonably be planned and planted at once: two and a half
millions, while a hundred thousand take seconds and a few megabytes of scratch.  With -x batch=TIME
a program is traced with one part of the functions after another.  Only its aggregations go on
through all parts (consumer.aggregations): each part has scratch of its own, and the records of one
mean nothing in the next.  So clauses at instructions may only aggregate.

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


def check_batches(program: typed.TypedProgram, means_kernel: MeansKernel) -> None:
    """Raise DError or KinstError if a program uses anything that ends with its batch."""
    hint = "without -x batch=, or with aggregations alone"
    for clause in program.clauses:
        if not means_kernel(clause.patterns):
            continue
        if not clause.actions or any(
            not isinstance(a, typed.AggregateAction) for a in clause.actions
        ):
            message = "batches only aggregate: a clause at an instruction does something else"
            raise DError(message, clause.span, "D_UNKNOWN", hint)
    kept = [one.name for one in program.variables if one.scope != "this"]
    if kept:
        raise KinstError(f"batches only aggregate: {kept[0]} would be lost between them", hint)


def cut(
    compiled: Compiled, kernel: Kernel, system: System, means_kernel: MeansKernel
) -> list[frozenset[int]]:
    """Return the addresses of the functions that a program means, in batches.

    Functions without an instruction that can be planted are in no batch.  Raises KinstError if no
    function is left.
    """
    meant = dict[int, Function]()
    for pattern in compiled.patterns:
        if means_kernel([pattern]):
            with suppress(KinstError):  # enable() raises it later
                found = kernel.find(pattern.module, pattern.function or "*")
                meant |= {one.address: one for one in found}
    some = [one for _, one in sorted(meant.items()) if not system.refusals(one)]
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
