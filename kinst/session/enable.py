"""Stage that finds the probes of each clause, and numbers them (ids and epids).

-x cpu=N limits probes to one CPU (Dynamic Tracing Guide, "Options and Tunables"). dtrace(1) gives
the other CPUs no buffer, so that clauses do not even begin there. kinst gives the probes of the
traced kernel the condition cpu == N. BEGIN, END, ERROR and tick-N do not run on the kernel's CPUs,
and always fire.

At some sites a probe fires only if a condition is true. This stage makes a copy of the clause for
these sites, and puts the condition before the copy's predicate. In the same way, it makes a copy of
a clause for each way to compute the arguments that the clause reads. So later stages need not know
about conditions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kinst.core.dtypes import INT
from kinst.core.errors import AbsentError, DError, KinstError, Span
from kinst.core.isa import Isa
from kinst.core.kernel import Found, Kernel, Provider
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE, ARGUMENTS
from kinst.core.probe import (
    Argument,
    Function,
    Probe,
    ProbeName,
    ProbePattern,
    Selection,
    gaps_told,
)
from kinst.core.system import SiteRules
from kinst.core.units import counted
from kinst.dlang import typed
from kinst.dlang.api import Environment, compile_text
from kinst.dlang.walk import expressions, find, replaced
from kinst.providers import FIRST_ID, fbt, listed, load_all, of_instructions
from kinst.session.compiled import Compiled
from kinst.session.descriptions import gaps_in, matching, naming, shifted
from kinst.session.functions import instructions_outside
from kinst.session.perturbing import check_sites
from kinst.session.scratch import most_probes
from kinst.session.values import EnabledProgram, EnabledSite, StartedMachine
from kinst.sugar.library_probes import probe_names

_ARGUMENT = re.compile(r"arg[0-9]+\Z")
NOT_ALWAYS = "whether this jump leaves the function depends on flags or memory, and counts do not"


def check_arguments(program: typed.TypedProgram, enabled: Sequence[EnabledSite]) -> None:
    """Check that each probe at an instruction has the arguments (arg0 to arg9) that its clauses
    read.

    Some of these probes have no arguments, only registers. Raises DError for the first argument
    that a probe lacks.
    """
    asking = {
        clause.index
        for clause in program.clauses
        if any(_ARGUMENT.match(expr.name) for expr in find(clause, typed.Builtin))
    }
    fewest: dict[int, tuple[int, Probe]] = {}
    for e in enabled if asking else ():
        for clause in e.clauses if e.probe.site is not None else ():
            if clause in asking and (clause not in fewest or len(e.arguments) < fewest[clause][0]):
                fewest[clause] = len(e.arguments), e.probe
    for index, (count, probe) in sorted(fewest.items()):
        for expr in find(program.clauses[index], typed.Builtin):
            if not _ARGUMENT.match(expr.name):
                continue
            if not count:
                what, hint = "at an instruction", "use regs[], for example regs[R_RDI]"
            elif int(expr.name[3:]) >= count:
                what, hint = f"at {probe.name}", f"it has arg0 to arg{count - 1}"
            else:
                continue
            raise DError(f"{expr.name} means nothing {what}", expr.span, "D_ARGS_NONE", hint)


def enable(
    program: typed.TypedProgram,
    providers: Mapping[str, Provider],
    kernel: Kernel | None,
    *,
    zero: bool,
    absent: bool = False,
    most: int = 0,
    on_full: Callable[[Found], None] = lambda _: None,
    last_id: int = 0,
    of_libraries: Callable[[], Iterable[ProbeName]] = tuple,
) -> tuple[tuple[EnabledSite, ...], dict[int, int]]:
    """Return the probes that a program matches, and the number of matches by clause index.

    The probes are in the order in which the program's descriptions match them first.

    Args:
        zero: whether to accept a description that matches no probe, although the kernel has the
            functions that it names (as with -l, with -Z and in batches).
        absent: whether to accept a description of a function or module that the kernel does not
            have (as with -Z and in batches).
        most: number of instructions that the machine has memory for, 0 for any number; later ones
            are left out.
        on_full: called with the first instruction that is left out.
        last_id: the last probe id that earlier batches have used.
        of_libraries: returns the probes of D libraries, for hints.

    Raises DError for a description that matches nothing, or that its provider refuses.
    """
    ids = {one.name: FIRST_ID + k for k, one in enumerate(listed(providers))}
    named = _Named(ids, max(last_id, FIRST_ID - 1 + len(ids)) + 1, most, on_full)
    matched: dict[int, int] = {}
    # A description of a D library's probe becomes several descriptions; one of these must match.
    # By the user's description: the first error, and whether one has matched.
    left_out: dict[Span, DError] = {}
    met = set[Span]()
    for clause in program.clauses:
        for pattern, span in zip(clause.patterns, clause.pattern_spans, strict=True):
            try:
                found = matching(pattern, providers, kernel)
                count = named.add(found, clause.index, once=pattern.library is not None)
            except KinstError as error:
                none = isinstance(error, AbsentError)
                if absent and none:
                    continue
                tag = "D_PDESC_ZERO" if none else "D_PDESC_INVAL"
                hint = shifted(pattern, providers) or error.hint
                message = f"{pattern}: " * (pattern.library is not None) + error.message
                failure = DError(message, span, tag, hint)
                if pattern.library is None or pattern.library.alone:
                    raise failure from error
                left_out.setdefault(span, failure)
                continue
            if not (count or zero or named.full):
                failure = DError(
                    f"probe description {pattern} does not match any probes",
                    span,
                    "D_PDESC_ZERO",
                    naming(pattern, providers, kernel, of_libraries()),
                )
                if pattern.library is None or not pattern.library.function:
                    raise failure
                left_out.setdefault(span, failure)
                continue
            met.add(span)
            matched[clause.index] = matched.get(clause.index, 0) + count
    for span, failure in left_out.items():
        if span not in met:
            raise failure
    return named.enabled(), matched


def enable_program(
    compiled: Compiled,
    machine: StartedMachine | None,
    isa: Isa,
    say: Callable[[str], None],
    *,
    zero: bool,
    listed: bool = False,
    in_batches: bool = False,
    last_id: int = 0,
) -> EnabledProgram:
    """Find the probes that a compiled program matches, and return the program with them.

    Args:
        machine: the traced machine; None if the program has no probes of a kernel.
        say: called if the machine has too little memory for all instructions, and if parts of their
            functions do not decode.
        zero: whether a description may match nothing, as with -Z.
        listed: whether the probes are to be listed rather than to fire.
        in_batches: whether the machine traces in batches, so that the probes of a description may
            all be in another batch.
        last_id: the last probe id that earlier batches have used.

    Raises DError for a description that matches nothing.
    """
    providers = load_all()
    absent = zero or compiled.options.zdefs or in_batches
    kernel, cpus, room = (None, 1, 0)
    if machine is not None:
        kernel, cpus = machine.kernel, machine.cpus
        room = 0 if listed else machine.target.most_scratch

    def of_libraries() -> list[ProbeName]:
        return probe_names(compiled.dialect().libraries)

    matched, _ = enable(
        compiled.program, providers, kernel, zero=absent or listed, absent=absent,
        most=most_probes(compiled, cpus, room) if room else 0,
        on_full=partial(_tell_full, say, room), last_id=last_id, of_libraries=of_libraries,
    )  # fmt: skip
    if kernel is not None and not in_batches:
        gaps = gaps_in((e.probe for e in matched), kernel)
        if gaps:
            say(f"kinst: {gaps_told(gaps)}")
        if not listed:
            for name, reason in {e.probe.name: e.never for e in matched if e.never}.items():
                say(f"kinst: {name} never fires: {reason}")
            for told in unassigned_told(compiled.program, matched):
                say(f"kinst: {told}")
            if machine is not None and any(map(_means_all, compiled.patterns)):
                outside = _outside_told(machine)
                if outside:
                    say(f"kinst: {outside}")
    check_arguments(compiled.program, matched)
    check_sites(compiled.program, matched)
    check_cpu(compiled.options.cpu, cpus)
    enabled = with_few_selected(with_few_conditions(matched))
    enabled = on_one_cpu(enabled, compiled.options.cpu)
    if machine is not None and machine.facts.only_counts:
        enabled = with_plain_conditions(enabled, isa)
        enabled = with_real_calls(enabled, machine.system)
    program, enabled = with_expressions(compiled.program, enabled, isa)
    program, enabled = with_conditions(program, enabled, isa)
    enabled = with_read_arguments(program, enabled)
    if listed and not enabled:
        first = compiled.patterns[0]
        raise KinstError(
            f"failed to match {first}: No probe matches description",
            naming(first, providers, kernel, of_libraries()),
        )
    if program is not compiled.program:
        compiled = replace(compiled, program=program)
    return EnabledProgram(compiled, enabled, matched)


def _means_all(pattern: ProbePattern) -> bool:
    """Return whether a description means all instructions of all functions."""
    return (pattern.provider, pattern.function, pattern.name) == (of_instructions(), "*", "")


def _outside_told(machine: StartedMachine) -> str:
    """Return a sentence that says how many instructions of a user program have no probes because
    they belong to no function that is known; "" for a kernel, and if all belong to one."""
    if not machine.facts.only_counts:
        return ""
    sections = machine.images.kernel.debug.elf.sections
    outside = len(instructions_outside(machine.isa, machine.system, sections))
    some = counted(outside, "instruction is", "instructions are", spec=",")
    told = f"{some} not counted: they belong to no function with a symbol or an unwind table"
    return told if outside else ""


def unassigned_told(program: typed.TypedProgram, enabled: Sequence[EnabledSite]) -> list[str]:
    """Return a sentence for each clause that reads a clause-local variable to which no clause of
    the same firing has assigned a value before, at any of the clause's probes.

    Args:
        enabled: the probes, with the program's clauses as the user wrote them.
    """
    reads = {clause.index: dict[typed.Variable, None]() for clause in program.clauses}
    sets = {clause.index: set[typed.Variable]() for clause in program.clauses}
    for clause in program.clauses:
        for one in expressions(clause):
            variable = getattr(one, "variable", None)
            if not isinstance(variable, typed.Variable) or variable.scope != "this":
                continue
            if isinstance(one, typed.GlobalRead):
                reads[clause.index][variable] = None
            else:  # an assignment, or an address through which the program may assign
                sets[clause.index].add(variable)
    first: dict[tuple[int, typed.Variable], ProbeName] = {}
    assigned = set[tuple[int, typed.Variable]]()
    for clauses, probe in {e.clauses: e.probe.name for e in reversed(enabled)}.items():
        before = set[typed.Variable]()
        for index in clauses:
            before |= sets[index]
            for variable in reads[index]:
                first.setdefault((index, variable), probe)
                if variable in before:
                    assigned.add((index, variable))
    return [
        f"{variable.name} has no value at {probe}: no clause of this probe assigns it before"
        f" ({variable.name.replace('this', 'self', 1)} keeps a thread's value between probes)"
        for (index, variable), probe in first.items()
        if (index, variable) not in assigned
    ]


def _tell_full(say: Callable[[str], None], room: int, first: Found) -> None:
    """Say that more instructions match than the machine has memory for.

    Args:
        room: bytes of the machine's scratch.
        first: the first instruction that is left out.
    """
    site, own = first.site, room // 2**20
    place = f"{site.function.name}+{site.offset}" if site else str(first.name)
    say(
        f"kinst: more instructions match than {own} MB of scratch hold: those from {place} on"
        f" are left out (-x batch=10s goes over all of them; scratch={2 * own}m holds twice as"
        " many)"
    )


# Address of a site, and the selection of those of its hits that belong to the probe.
_Place = tuple[int, object]


def _place(found: Found) -> _Place:
    return found.site.address if found.site else 0, found.selection


class _Named:
    """Probes that a program matches, by name: their ids, their sites, and the clauses that they
    fire.

    There may be several hundred thousand probes, so parallel lists are used: they take less memory
    than an object for each probe.
    """

    def __init__(
        self, ids: Mapping[ProbeName, int], first: int, most: int, on_full: Callable[[Found], None]
    ) -> None:
        """Begin without probes.

        Args:
            ids: ids of the probes that already have an id, by name.
            first: first id for all other probes.
            most: number of instructions that the machine has memory for, 0 for any number.
            on_full: called with the first instruction that is left out.
        """
        self._most, self._on_full, self.full = most, on_full, False
        self._given, self._next = ids, first
        self._index: dict[ProbeName, int] = {}
        self._ids: list[int] = []
        self._first: list[Found] = []
        self._others: dict[int, list[Found]] = {}
        self._clauses: list[tuple[int, ...]] = []
        self._longer: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        # The sites at which a clause of a library's probe runs, by (index of the name, clause).
        self._places: dict[tuple[int, int], set[_Place]] = {}

    def add(self, found: Iterable[Found], clause: int, *, once: bool = False) -> int:
        """Add the probes that a description of a clause matches. Return how many different names
        they have.

        Args:
            found: the probes at their sites.
            clause: the clause's index.
            once: whether the description is a part of a D library's declaration of a probe. If so,
                the clause runs only once at a hit, even if several parts match there. It does not
                run at the sites of a part with other arguments, which has a clause of its own.
        """
        met = set[int]()
        for one in found:
            k = self._index.get(one.name)
            if k is None:
                if self._most and len(self._ids) >= self._most and one.site is not None:
                    if not self.full:
                        self._on_full(one)
                    self.full = True
                    break
                k = self._new(one)
            elif not self._has(k, one):
                self._others.setdefault(k, []).append(one)
            if once:
                self._places.setdefault((k, clause), set()).add(_place(one))
            if k not in met:
                met.add(k)
                before = self._clauses[k]
                if once and clause in before:
                    continue
                self._clauses[k] = self._longer.setdefault((before, clause), (*before, clause))
        return len(met)

    def _new(self, found: Found) -> int:
        k = self._index[found.name] = len(self._ids)
        given = self._given.get(found.name)
        if given is None:
            given = self._next
            self._next += 1
        self._ids.append(given)
        self._first.append(found)
        self._clauses.append(())
        return k

    def _has(self, k: int, found: Found) -> bool:
        """Return whether the probe with index `k` has been added with the site and selection of
        `found`.
        """
        at = _place(found)
        return any(at == _place(one) for one in (self._first[k], *self._others.get(k, ())))

    def enabled(self) -> tuple[EnabledSite, ...]:
        """Return all probes, one for each site, in the order in which their names were
        first added.
        """
        made, epid = [], 1
        for k, (id_, first, clauses) in enumerate(
            zip(self._ids, self._first, self._clauses, strict=True)
        ):
            epids: dict[tuple[int, ...], int] = {}
            for one in (first, *self._others.get(k, ())):
                here = self._clauses_at(k, one, clauses) if self._places else clauses
                if here not in epids:
                    epids[here] = epid
                    epid += len(here)
                probe = Probe(id_, one.name, one.site)
                made.append(
                    EnabledSite(
                        probe, here, epids[here], one.timer, arguments=one.arguments,
                        condition=one.condition, switch=one.switch, selection=one.selection,
                        never=one.never,
                    )
                )  # fmt: skip
        return tuple(made)

    def _clauses_at(self, k: int, found: Found, clauses: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of a probe's clauses that run at one of its sites.

        Args:
            k: index of the probe's name.
        """
        place, every = _place(found), {_place(found)}
        return tuple(c for c in clauses if place in self._places.get((k, c), every))


def check_cpu(cpu: int, cpus: int) -> None:
    """Raise KinstError if the traced machine does not have a CPU with this number.

    Args:
        cpu: the number, -1 for all CPUs.
        cpus: how many CPUs the machine has.
    """
    if cpu >= cpus:
        message = f"could not enable tracing: there is no CPU {cpu}"
        raise KinstError(message, f"the traced machine has {cpus}, 0 to {cpus - 1}")


def on_one_cpu(enabled: Sequence[EnabledSite], cpu: int) -> tuple[EnabledSite, ...]:
    """Return the probes, with those of the traced kernel limited to one CPU by a condition.

    Args:
        cpu: the CPU's number; -1 to limit no probe.
    """
    if cpu < 0:
        return tuple(enabled)
    return tuple(_limited(one, f"cpu == {cpu}") if _on_a_cpu(one) else one for one in enabled)


def _on_a_cpu(enabled: EnabledSite) -> bool:
    """Return whether a probe fires on CPUs of the traced kernel: it is at an instruction, or
    profile-N.
    """
    return enabled.probe.site is not None or (enabled.timer is not None and enabled.timer.each_cpu)


def _limited(enabled: EnabledSite, condition: str) -> EnabledSite:
    own = f" && ({enabled.condition})" if enabled.condition else ""
    return replace(enabled, condition=condition + own)


FEW_CONDITIONS = 16  # of a program; each makes a copy of each clause that it applies to
_ADDRESS = re.compile("0x[0-9a-f]{8,}")


def with_few_conditions(enabled: Sequence[EnabledSite]) -> tuple[EnabledSite, ...]:
    """Replace addresses in conditions by arguments of the probes, if there are many different
    conditions.

    The probes at the returns of thousands of functions may have conditions that differ only in
    addresses. With the addresses as arguments, all these probes have the same condition. No clause
    reads the added arguments: check_arguments() has refused clauses that read an argument which
    their probe does not have.
    """
    if len({e.condition for e in enabled}) <= FEW_CONDITIONS:
        return tuple(enabled)
    return tuple(_with_addresses(e) if e.condition else e for e in enabled)


def _with_addresses(enabled: EnabledSite) -> EnabledSite:
    """Return a probe with the addresses in its condition as its last arguments; the same probe if
    there is no room for them.
    """
    values = [int(text, 16) for text in _ADDRESS.findall(enabled.condition)]
    values = [value - (1 << 64 if value >> 63 else 0) for value in values]
    first = ARGUMENTS - len(values)
    if first < len(enabled.arguments) or any(value >> 31 not in (0, -1) for value in values):
        return enabled
    numbers = iter(range(first, ARGUMENTS))
    condition = _ADDRESS.sub(lambda _: f"(uint64_t)arg{next(numbers)}", enabled.condition)
    none = (Argument(ARGUMENT_NONE),) * (first - len(enabled.arguments))
    constants = (Argument(ARGUMENT_CONSTANT, value) for value in values)
    return replace(enabled, condition=condition, arguments=(*enabled.arguments, *none, *constants))


FEW_SELECTED = 3  # probes up to which each hit of a site tests the conditions of all
_NUMBER, _STATE = ARGUMENTS - 2, ARGUMENTS - 1  # numbers of added arguments


def with_few_selected(enabled: Sequence[EnabledSite]) -> tuple[EnabledSite, ...]:
    """Turn the selections of probes into conditions, at sites where few probes have a selection.

    Several probes may share a site. A probe's selection says which hits of the site belong to the
    probe: those at which a number in memory, such as that of a system call, has certain values. A
    trampoline can test a condition without a call. At a site where more than FEW_SELECTED probes
    have a selection, the selections stay: there, one call finds the probe of a hit.

    A condition gets the numbers from memory by two arguments that are added to the probe. No clause
    reads these: check_arguments() has refused clauses that read an argument which their probe does
    not have.
    """
    sites = Counter(e.probe.site for e in enabled if e.selection is not None)
    return tuple(
        _conditional(e, e.selection)
        if e.selection is not None and sites[e.probe.site] <= FEW_SELECTED
        else e
        for e in enabled
    )


def _conditional(enabled: EnabledSite, selection: Selection) -> EnabledSite:
    none = Argument(ARGUMENT_NONE)
    own = (*enabled.arguments, *(none,) * ARGUMENTS)[:_NUMBER]
    tests = " || ".join(f"(int)arg{_NUMBER} == {value}" for value in selection.values)
    condition = f"({tests})" if len(selection.values) > 1 else tests
    if selection.state is not None:
        condition += f" && (arg{_STATE} & {selection.mask}) == {selection.wanted}"
    arguments = (*own, selection.number, selection.state or none)
    return replace(_limited(enabled, condition), arguments=arguments, selection=None)


def condition_of(text: str, isa: Isa) -> typed.Expr:
    """Compile a condition, which is a D expression over regs[] and built-in variables.

    Raises DError if it is not a valid expression.
    """
    environment = Environment({r.d_name: r.index for r in isa.registers}, 8)
    _, program = compile_text(f"BEGIN/{text}/{{}}", "<condition>", None, environment)
    predicate = program.clauses[0].predicate
    assert predicate is not None
    return predicate


def with_plain_conditions(enabled: Sequence[EnabledSite], isa: Isa) -> tuple[EnabledSite, ...]:
    """Return all probes, with a refusal for each whose condition reads anything but general
    registers.

    This is for a machine whose trampolines only count: they cannot test flags or memory. A refused
    probe is, for example, the return of a function by the jump `jne`: the condition tests a flag,
    because the function returns only if the jump is taken.
    """
    plain: dict[str, bool] = {"": True}
    made = []
    for e in enabled:
        if e.condition not in plain:
            plain[e.condition] = _is_plain(condition_of(e.condition, isa), isa)
        known = plain[e.condition]
        made.append(e if known else replace(e, condition="", refusal=NOT_ALWAYS))
    return tuple(made)


def with_real_calls(enabled: Sequence[EnabledSite], system: SiteRules) -> tuple[EnabledSite, ...]:
    """Return all probes, with a refusal for each entry and return that does not stand for the calls
    of its function's name (SiteRules.call_refusal)."""
    reasons: dict[Function, str] = {}
    made = []
    for e in enabled:
        site = e.probe.site
        if site is None or e.refusal or e.probe.name.name not in fbt.NAMES:
            made.append(e)
            continue
        if site.function not in reasons:
            reasons[site.function] = system.call_refusal(site.function)
        why = reasons[site.function]
        made.append(replace(e, refusal=why) if why else e)
    return tuple(made)


def _is_plain(condition: typed.Expr, isa: Isa) -> bool:
    slots = {register.index: register.slot for register in isa.registers}
    read = [one.index for one in find(condition, typed.RegisterRead)]
    return not any(find(condition, typed.Load)) and all(
        isinstance(index, typed.IntConst) and slots.get(index.value) in isa.snippets.names
        for index in read
    )


def with_conditions(
    program: typed.TypedProgram, enabled: Sequence[EnabledSite], isa: Isa
) -> tuple[typed.TypedProgram, tuple[EnabledSite, ...]]:
    """Turn the conditions of probes into predicates of clauses.

    Each clause is copied for each condition under which it runs. Returns the program with these
    copies, and the probes. A probe that had a condition has the indexes of copies instead.
    """
    clauses = list(program.clauses)
    copies: dict[tuple[int, str], int] = {}
    conditions: dict[str, typed.Expr] = {}
    changed = []
    for e in enabled:
        if not e.condition:
            changed.append(e)
            continue
        if e.condition not in conditions:
            conditions[e.condition] = condition_of(e.condition, isa)
        own = []
        for index in e.clauses:
            key = (index, e.condition)
            if key not in copies:
                copies[key] = len(clauses)
                clauses.append(_copy(clauses[index], conditions[e.condition], len(clauses)))
            own.append(copies[key])
        changed.append(replace(e, clauses=tuple(own), condition=""))
    if len(clauses) == len(program.clauses):
        return program, tuple(changed)
    return replace(program, clauses=tuple(clauses)), tuple(changed)


def with_read_arguments(
    program: typed.TypedProgram, enabled: Sequence[EnabledSite]
) -> tuple[EnabledSite, ...]:
    """Remove, from probes at instructions, the arguments that no clause of the probe reads.

    Later stages handle probes with equal arguments together (EnabledSite.work). Unread arguments
    would make probes differ: arg0 of a return is an offset, another one for each return.
    """
    read: dict[tuple[int, ...], frozenset[int]] = {}
    none, changed = Argument(ARGUMENT_NONE), []
    for e in enabled:
        if e.probe.site is None or not e.arguments:
            changed.append(e)
            continue
        if e.clauses not in read:
            builtins = (
                one.name for c in e.clauses for one in find(program.clauses[c], typed.Builtin)
            )
            read[e.clauses] = frozenset(int(n[3:]) for n in builtins if _ARGUMENT.match(n))
        wanted = read[e.clauses]
        some = e.arguments[: max(wanted) + 1] if wanted else ()
        own = tuple([a if n in wanted else none for n, a in enumerate(some)])
        changed.append(replace(e, arguments=own))
    return tuple(changed)


def with_expressions(
    program: typed.TypedProgram, enabled: Sequence[EnabledSite], isa: Isa
) -> tuple[typed.TypedProgram, tuple[EnabledSite, ...]]:
    """Replace reads of arguments by the D expressions that compute these arguments.

    An argument may be computed by an expression (Argument.expression), and by a different one at
    another probe. A clause is copied for each set of expressions that it needs. Returns the program
    with the copies, and the probes, which refer to them.
    """
    clauses = list(program.clauses)
    copies: dict[tuple[int, tuple[tuple[str, str], ...]], int] = {}
    expressions: dict[str, typed.Expr] = {}
    changed = []
    for e in enabled:
        told = {f"arg{n}": a.expression for n, a in enumerate(e.arguments) if a.expression}
        if not told:
            changed.append(e)
            continue
        own = []
        for index in e.clauses:
            read = {expr.name for expr in find(program.clauses[index], typed.Builtin)}
            key = index, tuple((name, text) for name, text in told.items() if name in read)
            if key not in copies:
                copies[key] = len(clauses) if key[1] else index
                for _, text in key[1]:
                    if text not in expressions:
                        expressions[text] = condition_of(text, isa)
                values = {name: expressions[text] for name, text in key[1]}
                if values:
                    clauses.append(_with_values(clauses[index], values, len(clauses)))
            own.append(copies[key])
        changed.append(replace(e, clauses=tuple(own)))
    if len(clauses) == len(program.clauses):
        return program, tuple(changed)
    return replace(program, clauses=tuple(clauses)), tuple(changed)


def _with_values(
    clause: typed.Clause, values: Mapping[str, typed.Expr], index: int
) -> typed.Clause:
    def value(node: object) -> typed.Expr | None:
        if isinstance(node, typed.Builtin) and node.name in values:
            return typed.Cast(node.type, node.span, values[node.name])
        return None

    return replace(replaced(clause, value), index=index)


def _copy(clause: typed.Clause, condition: typed.Expr, index: int) -> typed.Clause:
    predicate = condition
    if clause.predicate is not None:
        predicate = typed.Logical(INT, clause.span, "&&", condition, clause.predicate)
    return replace(clause, index=index, predicate=predicate)
