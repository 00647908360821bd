"""Stage that parses the programs of a request and checks them together; it needs no machine.

Tested by tests/session/test_compile_once.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
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
    Macros,
    combine,
    compile_programs,
    parse_option,
    parse_text,
    type_names,
)
from kinst.dlang.check.actions import destructive_name, is_destructive
from kinst.dlang.check.calls import destructive_calls
from kinst.dlang.check.measures import measures_of
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import own_numbers
from kinst.dlang.vocabulary.d_options import (
    OWN_NAMES,
    Options,
    parse_only,
    parse_rate,
    parse_size,
)
from kinst.dlang.walk import expressions, symbols_in
from kinst.isa import register_hint
from kinst.patch.ways import plant_rules
from kinst.providers import argument_types, interfaces, load_all
from kinst.session.batches import check_batches
from kinst.session.compiled import Compiled
from kinst.session.cpp import preprocess
from kinst.session.descriptions import check_descriptions, check_providers, wants_kernel
from kinst.session.request import Request
from kinst.session.sizes import TRAMPOLINES, check_buffers, fitted
from kinst.session.stability import check_stability
from kinst.session.whose import in_command
from kinst.sugar.locals import provisional
from kinst.systems import of_host

GLOB = frozenset("*?[")
COMMAND = "kinst"  # $0 without a script


def _macros(request: Request, script: str, target_pid: int, options: Options) -> Macros:
    variables = {**own_numbers(), "target": target_pid}
    return Macros((script, *request.arguments), variables, options.defaultargs, options.argref)


def _with_settings(options: Options, settings: tuple[tuple[str, str], ...]) -> Options:
    for name, value in settings:
        if name not in OWN_NAMES:
            options = options.with_option(name, value or None)
    return options


def host_dialect() -> Dialect:
    """Return the part of D that belongs to this host's operating system."""
    return of_host().dialect()


def compile_program(
    request: Request,
    isa: RegisterNames,
    types: TypeSource,
    say: Callable[[str], None],
    dialect: Callable[[], Dialect],
) -> Compiled:
    """Parse a request's programs, and check everything that can be checked without a kernel.

    Args:
        isa: the register names of the ISA to be traced.
        types: the types of the kernel to be traced.
        say: called with the C preprocessor's messages.
        dialect: returns the traced system's part of D.

    Raises DError for an error in a program, with its position, and KinstError for an error in the
    options.
    """
    providers = load_all()
    compiled = compile_request(request, isa, 0, types, say, dialect)
    check_stability(compiled, providers)
    if not (request.zero or compiled.options.zdefs):
        check_descriptions(compiled.program, providers)
    if compiled.batch:
        wants = partial(wants_kernel, providers=providers, fired=True)
        check_batches(compiled.program, wants)
    return compiled


def needs_kernel(compiled: Compiled, *, fired: bool) -> bool:
    """Return whether a program uses probes or symbols of a kernel.

    Args:
        fired: whether the program is to run; then profile-N needs a kernel as well.
    """
    wanted = bool(symbols_in(compiled.program))
    return wanted or wants_kernel(compiled.patterns, load_all(), fired=fired)


def compile_request(
    request: Request,
    isa: RegisterNames,
    target_pid: int,
    types: TypeSource | None = None,
    say: Callable[[str], None] | None = None,
    dialect: Callable[[], Dialect] = host_dialect,
) -> Compiled:
    """Parse the programs of -n, -P, -m, -f, -i and -s, and check them as one program.

    Args:
        isa: the register names of the ISA to be traced.
        target_pid: the value of $target.
        types: the types of the kernel to be traced; None if they are not known.
        say: called with the C preprocessor's messages.
        dialect: returns the traced system's part of D.

    Raises DError for an error in a program, with its position, and KinstError for an error in the
    options.
    """
    programs = parse_request(request, target_pid, types, say, dialect=dialect)
    if not (request.zero or _options(request, programs).zdefs):
        check_providers(programs, load_all())
    return _checked(request, programs, isa, types, dialect)


def _options(request: Request, programs: tuple[tree.ProgramNode, ...]) -> Options:
    """Return the D options of a request; -x on the command line overrides the programs' own."""
    options = _with_settings(Options(), request.settings)
    written = tuple((o.name, o.value) for o in combine(programs).options)
    return _with_settings(_with_settings(options, written), request.settings)


def parse_request(
    request: Request,
    target_pid: int,
    types: TypeSource | None = None,
    say: Callable[[str], None] | None = None,
    before: tuple[tree.ProgramNode, ...] = (),
    dialect: Callable[[], Dialect] = host_dialect,
) -> tuple[tree.ProgramNode, ...]:
    """Parse the request's programs, and return their syntax trees in the same order.

    Args:
        target_pid: the value of $target.
        before: the syntax trees of the same programs for another $target; only programs that
            contain $target are parsed again. Empty to parse all.
    """
    options = _with_settings(Options(), request.settings)
    programs: list[tree.ProgramNode] = []
    only_command = _is_only_command(request, before)
    known = type_names(types, dialect, prototypes())
    part = len(request.programs) > 1

    def knows(name: str) -> bool:
        """Return whether the kernel or an earlier program of the request has a type of this
        name.
        """
        own = any(t.name == name for p in programs for t in p.items
                  if isinstance(t, tree.TypeDeclarationNode))  # fmt: skip
        return own or known(name)

    for ordinal, text in enumerate(request.programs, 1):
        if before and not (options.cpp or only_command or "$target" in text.text):
            programs.append(before[ordinal - 1])
            continue
        script = text.file if text.letter == "s" else COMMAND
        macros = _macros(request, script, target_pid, options)
        if text.letter == "s":
            source = text.text
            if options.cpp:
                path = request.preprocessor_path
                source = preprocess(source, text.file, request.preprocessor, say, path)
            programs.append(
                parse_text(source, text.file, macros, script=True, part=part, knows_type=knows)
            )
        else:
            programs.append(
                parse_option(
                    text.letter, text.text, macros, ordinal=ordinal, part=part, knows_type=knows
                )
            )
    if _is_only_command(request, programs):
        programs = [in_command(one, target_pid) for one in programs]
    return tuple(programs)


def _is_only_command(request: Request, programs: Sequence[tree.ProgramNode]) -> bool:
    written = [(one.name, one.value) for one in combine(tuple(programs)).options]
    return dict((*written, *request.settings)).get("only") == "command"


def with_programs(
    request: Request, before: Compiled, programs: tuple[tree.ProgramNode, ...], isa: RegisterNames
) -> Compiled:
    """Check other syntax trees in place of a request's programs, and return the checked program.

    Returns `before` itself if no tree has changed. Raises DError.

    Args:
        before: the request's programs as they were checked.
        programs: one syntax tree for each program of the request, in the same order.
    """
    if all(map(operator.is_, programs, before.programs)):
        return before
    measures = {one.name: one.measure for one in before.program.aggregations}
    return _checked(request, programs, isa, before.types, before.dialect, measures)


def _check_destructive(program: typed.TypedProgram, options: Options) -> None:
    """Raise KinstError if a program has a destructive action without -w, or an action that kinst
    does not support.
    """
    for clause in program.clauses:
        names = list(destructive_calls(tuple(expressions(clause))))
        names += [destructive_name(action) for action in clause.actions if is_destructive(action)]
        if names and not options.destructive:
            message = f"could not enable tracing: destructive actions not allowed: {names[0]}( )"
            raise KinstError(message, "-w permits them")
        for action in clause.actions:
            if isinstance(action, typed.RefusedAction):
                raise KinstError(f"{action.span}: there is no {action.name}(): {action.reason}")


def _local_type(types: TypeSource | None) -> Callable[[ProbePattern, str], DType | None]:
    def type_of(pattern: ProbePattern, name: str) -> DType | None:
        """Return the type of a local variable of the function that a description names; None if it
        is not known.
        """
        module = "" if GLOB & set(pattern.module) else pattern.module
        plain = pattern.function.partition("@")[0]
        found = None if types is None else types.local(plain, name, module)
        return None if types is None or found is None else as_named(found, types)

    return type_of


def _local_names(types: TypeSource | None) -> Callable[[ProbePattern], Sequence[str]]:
    def names_of(pattern: ProbePattern) -> Sequence[str]:
        """Return the names of the local variables of the function that a description names."""
        module = "" if GLOB & set(pattern.module) else pattern.module
        return () if types is None else types.locals(pattern.function.partition("@")[0], module)

    return names_of


def _checked(
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
        measures: what each aggregation measures, by its name, if that was found before in the
            user's own program; empty if `programs` are the user's own.
    """
    options = _options(request, programs)
    environment = Environment(
        {r.d_name: r.index for r in isa.registers},
        options.strsize,
        types,
        arguments=partial(argument_types, types=types) if types is not None else None,
        register_hint=partial(register_hint, isa),
        stackframes=options.stackframes,
        ustackframes=options.ustackframes,
        jstackframes=options.jstackframes,
        providers=interfaces(),
        subroutines=prototypes(),
        measures={**measures_of(combine(programs)), **measures},
        dialect=dialect,
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
    batch = parse_rate("batch", own["batch"]) / 1e9 if "batch" in own else 0
    return Compiled(
        tuple(texts), programs, program, options, plant_rules(own.get("plant", "")), room, types,
        batch, only, dialect,
    )  # fmt: skip
