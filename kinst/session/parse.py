"""Parsing of the texts of a request's programs into syntax trees.

Tested by tests/session/test_compile_once.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.subroutines import prototypes
from kinst.core.dialect import Dialect
from kinst.core.types import TypeSource
from kinst.dlang.api import (
    Macros,
    combine,
    parse_option,
    parse_text,
    type_names,
)
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import own_numbers
from kinst.dlang.vocabulary.d_options import (
    OWN_NAMES,
    Options,
)
from kinst.session.cpp import preprocess
from kinst.session.process_probes import with_processes
from kinst.session.request import Request
from kinst.session.whose import in_command
from kinst.sugar.library_probes import LibraryProbes
from kinst.systems import of_host

COMMAND = "kinst"  # $0 without a script


def host_dialect() -> Dialect:
    """Return the part of D that belongs to this host's operating system."""
    return of_host().dialect()


def _macros(request: Request, script: str, target_pid: int, options: Options) -> Macros:
    variables = {**own_numbers(), "target": target_pid}
    return Macros((script, *request.arguments), variables, options.defaultargs, options.argref)


def _with_settings(options: Options, settings: tuple[tuple[str, str], ...]) -> Options:
    for name, value in settings:
        if name not in OWN_NAMES:
            options = options.with_option(name, value or None)
    return options


def options_of(request: Request, programs: tuple[tree.ProgramNode, ...]) -> Options:
    """Return the D options of a request; -x on the command line overrides the programs' own."""
    options = _with_settings(Options(), (*request.kind.settings, *request.settings))
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
    programs = [with_processes(one, request, target_pid) for one in programs]
    probes = LibraryProbes(programs, lambda: dialect().libraries, types)
    programs = [probes.expand(one) for one in programs]
    if _is_only_command(request, programs):
        programs = [in_command(one, target_pid) for one in programs]
    return tuple(programs)


def _is_only_command(request: Request, programs: Sequence[tree.ProgramNode]) -> bool:
    written = [(one.name, one.value) for one in combine(tuple(programs)).options]
    return dict((*written, *request.settings)).get("only") == "command"
