"""The part of a probe's clauses that a trampoline can run inline, without calling an entry
function: counting, predicates, and finding the counter of a count by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.layout.aggregation_tables import literal_keys
from kinst.codegen.snippets import PureCode, compile_snippets, guard_code, index_code
from kinst.core.bodies import CountBody, Snippet
from kinst.core.dataclass import dataclass
from kinst.core.isa import Isa
from kinst.core.probe import Argument
from kinst.core.records import ProgramLayout
from kinst.dlang import typed

Clauses = tuple[int, ...]  # indexes of clauses
Arguments = tuple[Argument, ...]  # where arg0, arg1, ... are at a site
_Purpose = tuple[str, Clauses, Arguments]  # what a snippet is for


@dataclass(frozen=True, slots=True)
class Snippets:
    """The compiled snippets of a program.

    Attributes:
        found: each snippet, by ("guard" or "index", indexes of clauses, where the probe's arguments
            are). guard() and index() say what these two do. An expression that is not pure has no
            snippet.
    """

    found: Mapping[_Purpose, Snippet | None]

    def guard(self, clauses: Clauses, arguments: Arguments) -> Snippet | None:
        """Return the snippet that tests whether the predicate of at least one of these clauses
        holds.

        None if one of the clauses has no predicate, if a predicate is not pure, or if a trampoline
        cannot run LLVM's code.
        """
        return self.found.get(("guard", clauses, arguments))

    def index(self, clauses: Clauses, arguments: Arguments) -> Snippet | None:
        """Return the snippet that finds the counter of the key (helpers/key_slots.py), for a probe
        whose only action is @a[key] = count().

        None for any other probe. Also None if the aggregation has no counters for its keys, if the
        key is not pure, or if a trampoline cannot run LLVM's code.
        """
        return self.found.get(("index", clauses, arguments))


def snippets_of(
    program: typed.TypedProgram,
    layout: ProgramLayout,
    counters: int | None,
    probes: Iterable[tuple[Clauses, Arguments]],
    machine: CodeMachine,
    isa: Isa,
) -> Snippets:
    """Compile the snippets that trampolines of a program can use. There is a guard for each clause
    with a predicate, and a guard for all clauses of a probe together. For a probe whose only action
    is @a[key] = count(), there is a snippet that finds the key's counter.

    Args:
        layout: layout of the program's data.
        counters: displacement of the counter blocks from the per-CPU base, or the address of the
            counters if all CPUs share them; None if there are no counters.
        probes: for each probe, the indexes of its clauses, and where arg0, arg1, ... are at its
            site.
        machine: a CPU of the traced kernel.
        isa: the kernel's ISA.
    """
    wanted: dict[_Purpose, PureCode | None] = {}
    for all_clauses, arguments in dict.fromkeys(probes):
        for clauses in dict.fromkeys((all_clauses, *((clause,) for clause in all_clauses))):
            purpose = "guard", clauses, arguments
            predicates = [program.clauses[clause].predicate for clause in clauses]
            conditions = [predicate for predicate in predicates if predicate is not None]
            if purpose not in wanted and len(conditions) == len(clauses):
                name = f"guard_{len(wanted)}"
                wanted[purpose] = guard_code(conditions, arguments, machine, isa, name)
        purpose, update = ("index", all_clauses, arguments), keyed_count(program, all_clauses)
        if counters is not None and update is not None:
            table, name = layout.aggregations[update.aggregation.index], f"index_{len(wanted)}"
            if table.slots:
                wanted[purpose] = index_code(
                    update.keys[0], table, counters, arguments, machine, isa, name
                )
    pure = {purpose: code for purpose, code in wanted.items() if code is not None}
    compiled = compile_snippets(list(pure.values()), machine, isa)
    return Snippets(dict(zip(pure, compiled, strict=True)))


def keyed_count(
    program: typed.TypedProgram, clauses: tuple[int, ...]
) -> typed.AggregateAction | None:
    """Return the aggregating action of a probe whose clauses do nothing else: one clause with one
    action. Return None for any other probe.

    Args:
        clauses: indexes of the probe's clauses.
    """
    actions = program.clauses[clauses[0]].actions
    if len(clauses) == len(actions) == 1 and isinstance(actions[0], typed.AggregateAction):
        return actions[0]
    return None


def counted(
    program: typed.TypedProgram,
    layout: ProgramLayout,
    probe: int,
    clauses: Clauses,
    arguments: Arguments,
    counters: int,
    snippets: Snippets,
) -> tuple[CountBody, ...] | None:
    """Return the counting that a trampoline does instead of calling these clauses; None if one of
    the clauses does anything but count with constant keys, or has a predicate that is not pure.

    Args:
        layout: layout of the program's data.
        probe: id of the probe.
        clauses: the clauses that the probe runs.
        arguments: where the probe's arguments are.
        counters: displacement of the counter blocks from the per-CPU base, or the address of the
            counters if all CPUs share them.
        snippets: the program's snippets.
    """
    bodies = list[CountBody]()
    for clause in clauses:
        offsets = counted_entries(program, layout, probe, clause)
        guard = snippets.guard((clause,), arguments)
        if offsets is None or (guard is None and program.clauses[clause].predicate is not None):
            return None
        places = tuple(counters + at for at in offsets)
        if guard is None and bodies and bodies[-1].guard is None:
            bodies[-1] = CountBody((*bodies[-1].offsets, *places))
        else:
            bodies.append(CountBody(places, guard))
    return tuple(bodies)


def own_keys(
    program: typed.TypedProgram, layout: ProgramLayout
) -> Callable[[int, Clauses], tuple[int, ...]]:
    """Return a function by which probes that do the same counting are found: two probes do if their
    clauses, their arguments and the function's results for them are equal.

    The function gets a probe's id and clauses. It returns a number for each aggregating action of
    the clauses. If the keys depend on the probe (probefunc, id and so on), that is the index of the
    probe's own entry in the aggregation's table of constant keys. It is -1 if all keys are
    literals, or if the aggregation has a hash table.
    """
    tables: dict[Clauses, tuple[int, ...]] = {}
    entries = layout.site_keys

    def keys(probe: int, clauses: Clauses) -> tuple[int, ...]:
        if clauses not in tables:
            tables[clauses] = tuple(
                action.aggregation.index
                for clause in clauses
                for action in program.clauses[clause].actions
                if isinstance(action, typed.AggregateAction)
            )
        return tuple([entries.get((probe, table), -1) for table in tables[clauses]])

    return keys


def counted_entries(
    program: typed.TypedProgram, layout: ProgramLayout, probe: int, index: int
) -> tuple[int, ...] | None:
    """Return which counters a clause increments when its predicate holds, as byte offsets in a
    counter block; None if the clause does anything but count with constant keys.

    Args:
        probe: id of the probe.
        index: index of the clause.
    """
    offsets = []
    clause = program.clauses[index]
    if not clause.actions:
        return None
    for action in clause.actions:
        if not isinstance(action, typed.AggregateAction):
            return None
        table = layout.aggregations[action.aggregation.index]
        if table.counters < 0 or table.constant_keys is None:
            return None
        keys = literal_keys(action.keys)
        entry = (
            table.constant_keys.index(keys)
            if keys is not None
            else layout.site_keys[probe, table.index]
        )
        offsets.append(table.counters + 8 * entry)
    return tuple(offsets)


def exits_in(program: typed.TypedProgram, clauses: frozenset[int]) -> bool:
    """Return whether any of these clauses has an exit()."""
    return any(
        isinstance(action, typed.ExitAction)
        for c in clauses
        for action in program.clauses[c].actions
    )
