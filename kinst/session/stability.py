"""Stability attributes of programs and probes, as dtrace(1) reports them with -v.

Tested by tests/d/stability.cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

from kinst.core.errors import KinstError
from kinst.core.kernel import Provider
from kinst.core.probe import LibraryProbe, ProbeName, ProbePattern
from kinst.core.stability import (
    ANY,
    OF_LIBRARIES,
    ProviderStability,
    attributes,
    is_open,
    least,
    of_description,
)
from kinst.core.types import TypeSource
from kinst.dlang.check.stability import check_minimum, declared_stability, of_clause
from kinst.providers import FIRST_ID, argument_types, listed
from kinst.session.compiled import Compiled, ProbeStability, ProgramStability
from kinst.session.process_probes import separated


def _named(pattern: ProbePattern, providers: Mapping[str, Provider]) -> ProbePattern:
    """Return a probe description with the names that the user knows.

    A description by id (-i) gets the name of the probe with that id. A description from a D
    library's declaration of a probe gets the name that the library declares. Any other description
    is returned unchanged.
    """
    if pattern.library is not None:
        return ProbePattern(*pattern.library.name.parts, library=pattern.library)
    found = listed(providers)[pattern.id - FIRST_ID : pattern.id - FIRST_ID + 1]
    if not pattern.id or not found:
        return pattern
    name = found[0].name
    return ProbePattern(name.provider, name.module, name.function, name.name)


def _of_provider(pattern: ProbePattern, providers: Mapping[str, Provider]) -> ProviderStability:
    if pattern.library is not None:
        return OF_LIBRARIES
    if is_open(pattern.provider) or pattern.provider not in providers:
        return ANY
    return providers[pattern.provider].stability


def check_stability(compiled: Compiled, providers: Mapping[str, Provider]) -> None:
    """Raise DError D_ATTR_MIN at the first name in a program that is less stable than -x amin=
    demands."""
    if not compiled.options.amin:
        return
    minimum = attributes(compiled.options.amin)
    for clause in compiled.tree.clauses:
        for one in clause.descriptions:
            described = replace(one, pattern=_named(one.pattern, providers))
            stability = _of_provider(described.pattern, providers)
            check_minimum(clause, described, stability, compiled.tree, minimum)


def program_stability(
    compiled: Compiled, providers: Mapping[str, Provider]
) -> tuple[ProgramStability, ...]:
    """Return the stability of each program of the request, in the same order."""
    declared = declared_stability(compiled.tree)
    programs = []
    for (text, _), program in zip(compiled.texts, compiled.programs, strict=True):
        descriptions, statements = [], []
        for clause in program.clauses:
            for one in clause.descriptions:
                pattern = _named(one.pattern, providers)
                stability = _of_provider(pattern, providers)
                descriptions.append(of_description(pattern, stability))
                statements.append(of_clause(clause, stability, compiled.tree, declared))
        programs.append(ProgramStability(text, least(descriptions), least(statements)))
    return tuple(programs)


def probe_stability(
    name: ProbeName | ProbePattern, providers: Mapping[str, Provider], compiled: Compiled
) -> ProbeStability:
    """Return the stability attributes of a probe, and the types of its arguments.

    Args:
        compiled: a program with a description that matches the probe.
    """
    pattern = ProbePattern(name.provider, name.module, name.function, name.name)
    pattern = replace(separated(pattern), library=_library_of(pattern, compiled))
    stability = _of_provider(pattern, providers)
    if pattern.library is not None:
        described = of_description(pattern, stability)
        return ProbeStability(described, stability.args, pattern.library.types)
    arguments: tuple[str, ...] = ()
    if compiled.types is not None:
        with suppress(KinstError):  # the kernel has no such function or tracepoint
            arguments = _arguments(pattern, providers, compiled.types)
    return ProbeStability(of_description(pattern, stability), stability.args, arguments)


def _arguments(
    pattern: ProbePattern, providers: Mapping[str, Provider], types: TypeSource
) -> tuple[str, ...]:
    """Return the type of each argument of a probe as text, with the argument's name in parentheses
    if it has one. Raises KinstError if the types cannot be found."""
    found = argument_types(pattern, types) or ()
    names: Sequence[str] = ()
    if pattern.provider in providers:
        names = providers[pattern.provider].argument_names(pattern, types)
    return tuple(
        f"{type_} ({name})" if name else str(type_)
        for type_, name in zip_longest(found, names[: len(found)], fillvalue="")
    )


def _library_of(pattern: ProbePattern, compiled: Compiled) -> LibraryProbe | None:
    """Return the probe of a D library that a description names; None if it names none.

    Args:
        compiled: the program that has the description.
    """
    named = (pattern.provider, pattern.name)
    for library in (one.library for one in compiled.patterns):
        if library is not None and (library.name.provider, library.name.name) == named:
            return library
    return None


def description_stability(
    compiled: Compiled, providers: Mapping[str, Provider]
) -> tuple[tuple[ProbePattern, ProbeStability], ...]:
    """Return each probe description of a program with its stability, in program order."""
    patterns = [
        _named(one.pattern, providers)
        for clause in compiled.tree.clauses
        for one in clause.descriptions
    ]
    return tuple((p, probe_stability(p, providers, compiled)) for p in patterns)
