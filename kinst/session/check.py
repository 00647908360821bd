"""Checking of the syntax trees of a request's programs, together, as one program.

The stage compile checks the trees of the programs that the user wrote; the stage expand checks the
trees that it made from these.

Tested by tests/session/test_compile_once.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kinst.codegen.subroutines import prototypes
from kinst.core.dialect import Dialect
from kinst.core.dtypes import DType
from kinst.core.errors import KinstError
from kinst.core.probe import ProbePattern
from kinst.core.registers import RegisterNames
from kinst.core.types import TypeSource, as_named
from kinst.dlang import typed
from kinst.dlang.api import (
    Environment,
    combine,
    compile_programs,
)
from kinst.dlang.check.actions import destructive_name, is_destructive
from kinst.dlang.check.calls import destructive_calls
from kinst.dlang.check.measures import measures_of
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary.d_options import (
    Options,
    parse_only,
    parse_rate,
    parse_size,
)
from kinst.dlang.walk import expressions, find
from kinst.isa import register_hint
from kinst.patch.ways import ALONE, plant_rules
from kinst.providers import argument_types, interfaces
from kinst.session.compiled import Compiled
from kinst.session.parse import options_of
from kinst.session.request import Request
from kinst.session.sizes import TRAMPOLINES, check_buffers, fitted
from kinst.sugar.locals import provisional

GLOB = frozenset("*?[")


def _argument_types(pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
    """Return what argument_types() returns. The hint of an error names functions or tracepoints
    that are spelt almost as in the description."""
    try:
        return argument_types(pattern, types)
    except KinstError as error:
        name = pattern.function or pattern.name
        similar = types.similar_functions if pattern.function else types.similar_tracepoints
        near = () if error.hint else similar(name)
        if not near or name in near:
            raise
        raise KinstError(error.message, _meant(near)) from error


def _meant(names: Sequence[str]) -> str:
    """Return a hint that names what the user may have meant; "" for no names."""
    return f"did you mean {' or '.join(names)}?" if names else ""


def check_programs(
    request: Request,
    programs: tuple[tree.ProgramNode, ...],
    isa: RegisterNames,
    types: TypeSource | None,
    dialect: Callable[[], Dialect],
    measures: Mapping[str, typed.Measure] = {},
) -> Compiled:
    """Check syntax trees as one program, and return the checked program.

    Args:
        programs: one syntax tree for each program of the request, in the same order.
        types: the types of the kernel to be traced; None if they are not known.
        dialect: returns the traced system's part of D.
        measures: for trees that kinst has rewritten: what each aggregation measures, in the user's
            own words, by the aggregation's name. Empty for the trees of the user's own programs,
            from which these texts are then taken.
    """
    options = options_of(request, programs)
    environment = Environment(
        {r.d_name: r.index for r in isa.registers},
        options.strsize,
        types,
        arguments=partial(_argument_types, types=types) if types is not None else None,
        register_hint=partial(register_hint, isa),
        stackframes=options.stackframes,
        ustackframes=options.ustackframes,
        jstackframes=options.jstackframes,
        providers=interfaces(),
        subroutines=prototypes(),
        measures={**measures_of(combine(programs)), **measures},
        dialect=dialect,
        fixed_registers=_fixed_registers(isa),
    )
    ways = _local_type(types), _local_names(types)
    program = compile_programs([provisional(p, *ways) for p in programs], environment)
    _check_destructive(program, options)
    check_buffers(options, program)
    options = fitted(options, program, request.cpus)
    texts, first = [], 0
    for text, one in zip(request.programs, programs, strict=True):
        texts.append((text, tuple(range(first, first + len(one.clauses)))))
        first += len(one.clauses)
    own = dict((*program.options, *request.settings))
    room = parse_size("scratch", own["scratch"]) if "scratch" in own else TRAMPOLINES
    only = parse_only("only", own["only"]) if "only" in own else ""
    plant = plant_rules(own.get("plant", ""))
    if any(find(program, typed.DivertAction)):
        # No jump may cover an instruction that goto() or skip() leads to, and no counter may stand
        # for instructions that return() leaves out.
        plant = replace(ALONE, forced=plant.forced, call_sites=plant.call_sites)
    batch = parse_rate("batch", own["batch"]) / 1e9 if "batch" in own else 0
    return Compiled(
        tuple(texts), programs, program, options, plant, room, types,
        batch, only, dialect,
    )  # fmt: skip


def with_programs(
    request: Request, before: Compiled, programs: tuple[tree.ProgramNode, ...], isa: RegisterNames
) -> Compiled:
    """Check the syntax trees that kinst has made of a request's programs, and return the checked
    program.

    Returns `before` itself if no tree has changed. Raises DError.

    Args:
        before: the programs as the user wrote them, already checked.
        programs: the new syntax tree of each of these programs, in the same order.
    """
    if all(map(operator.is_, programs, before.programs)):
        return before
    measures = {one.name: one.measure for one in before.program.aggregations}
    return check_programs(request, programs, isa, before.types, before.dialect, measures)


def _check_destructive(program: typed.TypedProgram, options: Options) -> None:
    """Raise KinstError if a program has a destructive action without -w, or an action that kinst
    does not support.
    """
    for clause in program.clauses:
        names = [f"{name}( )" for name in destructive_calls(tuple(expressions(clause)))]
        names += _written_symbols(clause)
        names += [destructive_name(action) for action in clause.actions if is_destructive(action)]
        if names and not options.destructive:
            message = f"could not enable tracing: destructive actions not allowed: {names[0]}"
            raise KinstError(message, "-w permits them")
        for action in clause.actions:
            if isinstance(action, typed.RefusedAction):
                raise KinstError(f"{action.span}: there is no {action.name}(): {action.reason}")


def _written_symbols(clause: typed.Clause) -> list[str]:
    """Return the text "`NAME =" for each assignment of a clause to a kernel variable NAME or to a
    part of it. Error messages name the assignment by this text.
    """
    return [
        f"`{one.name} ="
        for store in find(clause, typed.Store)
        for one in _symbols_of(store.address)
    ]


def _symbols_of(address: typed.Expr) -> Iterator[typed.SymbolAddress]:
    """Yield the kernel variable that an address lies in.

    The expression must be the variable's address, or that address plus offsets and indexes. Yields
    nothing for an address that was loaded from memory.
    """
    while isinstance(address, typed.Cast | typed.Binary):
        address = address.operand if isinstance(address, typed.Cast) else address.left
    if isinstance(address, typed.SymbolAddress):
        yield address


def _fixed_registers(isa: RegisterNames) -> dict[int, str]:
    """Return why a clause cannot assign some registers: the reason, by the register's index in
    regs[].
    """
    otherwise = f"kinst changes no registers on {isa.name}"
    if isa.writable_slots:
        otherwise = "kinst does not change this register"
    return {
        register.index: isa.fixed_slots.get(register.slot, otherwise)
        for register in isa.registers
        if register.slot not in isa.writable_slots
    }


def _local_type(types: TypeSource | None) -> Callable[[ProbePattern, str], DType | None]:
    def type_of(pattern: ProbePattern, name: str) -> DType | None:
        """Return the type of a local variable of the function that a description names; None if it
        is not known.

        Raises KinstError for a provider whose probes are in no function, and for a function that
        does not exist.
        """
        interface = interfaces().get(pattern.provider)
        if interface is not None and not interface.has_locals:
            raise KinstError(
                f"{pattern.provider} probes have no local variables",
                "args[0] is the first argument; kinst -l -v lists all with their types",
            )
        module = "" if GLOB & set(pattern.module) else pattern.module
        plain = pattern.function.partition("@")[0]
        if types is None:
            return None
        _check_function(plain, types)
        found = types.local(plain, name, module)
        return None if found is None else as_named(found, types)

    return type_of


def _check_function(name: str, types: TypeSource) -> None:
    """Raise KinstError if there is no function of this name. This never builds an index."""
    if name.isidentifier() and types.lacks_function(name):
        raise KinstError(f'no function named "{name}"', _meant(types.similar_functions(name)))


def _local_names(types: TypeSource | None) -> Callable[[ProbePattern], Sequence[str]]:
    def names_of(pattern: ProbePattern) -> Sequence[str]:
        """Return the names of the local variables of the function that a description names. Raises
        KinstError if there is no such function."""
        if types is None:
            return ()
        module = "" if GLOB & set(pattern.module) else pattern.module
        plain = pattern.function.partition("@")[0]
        _check_function(plain, types)
        return types.locals(plain, module)

    return names_of
