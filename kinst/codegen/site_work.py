"""The part of a probe's clauses that its trampoline does without a call: counting, predicates,
finding the counters of keyed counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.layout.aggregation_tables import literal_keys
from kinst.codegen.snippets import PureCode, compile_snippets, guard_code, index_code
from kinst.core.bodies import CountBody, Snippet
from kinst.core.isa import Isa
from kinst.core.probe import Argument
from kinst.core.records import ProgramLayout
from kinst.dlang import typed

Clauses = tuple[int, ...]  # indexes
Arguments = tuple[Argument, ...]  # where arg0, arg1, ... are at a site
_Purpose = tuple[str, Clauses, Arguments]  # what a snippet is for


@dataclass(frozen=True, slots=True)
class Snippets:
    """The compiled snippets of a program.

    Attributes:
        found: each by its purpose; none for an expression that is not pure.
    """

    found: Mapping[_Purpose, Snippet | None]

    def guard(self, clauses: Clauses, arguments: Arguments) -> Snippet | None:
        """Return the snippet that tests whether one of the clauses' predicates holds; each of them
        has one."""
        return self.found.get(("guard", clauses, arguments))

    def index(self, clauses: Clauses, arguments: Arguments) -> Snippet | None:
        """Return the snippet that finds the counter of a probe's one clause."""
        return self.found.get(("index", clauses, arguments))


def snippets_of(
    program: typed.TypedProgram,
    layout: ProgramLayout,
    counters: int | None,
    probes: Iterable[tuple[Clauses, Arguments]],
    machine: CodeMachine,
    isa: Isa,
) -> Snippets:
    """Compile all snippets of probes: a guard for each clause that has a predicate, one for all
    clauses of a probe, and those that find the counters of keyed counts.

    Args:
        program: the program.
        layout: of its data.
        counters: added to the layout's offsets in the counter blocks; None without such blocks.
        probes: clauses and arguments of each probe.
        machine: that the code is for.
        isa: of the kernel.
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
    """Return the keyed count that a probe's one clause consists of; None if it does anything
    else."""
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
    """Return a probe's clauses as counting alone, or None if a clause does anything else.

    Args:
        program: the program.
        layout: of its data.
        probe: its id.
        clauses: that it runs.
        arguments: where its arguments are.
        counters: as in snippets_of().
        snippets: of the program.
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
    """Return a function of a probe's id and its clauses, which returns the probe's entries in the
    tables that these clauses count in.  Probes with equal clauses, arguments and entries count the
    same."""
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
    """Return the offsets of the counters that one hit adds one to, if a clause only counts with
    constant keys, apart from its predicate; otherwise None."""
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
