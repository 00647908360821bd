"""Probe descriptions that mean nothing: found before there is a kernel, and told with what to type.

Tested by tests/session/test_enable.py and tests/dlang/vocabulary/test_other_tracers.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from kinst.core.errors import AbsentError, DError, KinstError
from kinst.core.kernel import Kernel, Provider, all_named
from kinst.core.probe import Function, ProbePattern, gaps_told
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary.other_tracers import probe_hint

_GLOB = re.compile(r"[*?\[]")


def check_providers(programs: Sequence[tree.Program], providers: Mapping[str, Provider]) -> None:
    """Check that descriptions name providers that there are, before anything else in a program.

    What a clause does cannot be checked without its probe.  Raises DError D_PDESC_ZERO for the
    first description of a provider that neither kinst nor the program has, or that has the form
    of another language.
    """
    declared = {
        item.name for program in programs for item in program.items
        if isinstance(item, tree.Provider)
    }  # fmt: skip
    known = {**providers, **dict.fromkeys(declared)}
    for program in programs:
        for clause in program.clauses:
            for description in clause.descriptions:
                pattern = description.pattern
                named = pattern.provider and not _GLOB.search(pattern.provider)
                absent = named and pattern.provider not in known
                foreign = not named and pattern.name not in known and probe_hint(pattern)
                if absent or foreign:
                    message = f"probe description {pattern} does not match any probes"
                    hint = naming(pattern, providers, None)
                    raise DError(message, description.span, "D_PDESC_ZERO", hint)


def check_descriptions(program: typed.Program, providers: Mapping[str, Provider]) -> None:
    """Raises DError for a description of which it is known before there is a kernel that it means
    none of its probes."""
    for clause in program.clauses:
        for pattern, span in zip(clause.patterns, clause.pattern_spans, strict=True):
            provider = providers.get(pattern.provider)
            if provider is None or not provider.needs_kernel:
                continue
            try:
                list(provider.match(pattern, None))
            except AbsentError as error:
                raise DError(error.message, span, "D_PDESC_ZERO", error.hint) from error


def shifted(pattern: ProbePattern, providers: Mapping[str, Provider]) -> str:
    """A hint for kinst:vfs_read:19 and kinst:vfs_read, where fields are missing, so that what is
    meant as a provider is none."""
    if pattern.provider or pattern.id:
        return ""
    if pattern.module in providers:
        meant = replace(pattern, provider=pattern.module, module="")
    elif pattern.function in providers and not pattern.module:
        meant = ProbePattern(pattern.function, "", pattern.name, "")
    else:
        return ""
    return f"did you mean {meant}?"


def naming(pattern: ProbePattern, providers: Mapping[str, Provider], kernel: Kernel | None) -> str:
    """A hint for a description that means nothing: how probes are named."""
    if pattern.id:
        return "kinst -l lists those with numbers"
    if meant := probe_hint(pattern):
        return meant
    if meant := shifted(pattern, providers):
        return meant
    last = pattern.name
    if pattern.function and kernel and (lost := kernel.gaps(_exactly(pattern, kernel))):
        return gaps_told(lost)
    if last and not pattern.function and kernel and all_named(kernel, last):
        return f"{last} is a function: {last}:entry and {last}:return, or -f {last}"
    if pattern.provider in providers:
        return providers[pattern.provider].usage
    if pattern.provider:
        near = get_close_matches(pattern.provider, providers, 1)
        if near:
            return f"did you mean {replace(pattern, provider=near[0])}?"
        return f"providers are {', '.join(sorted(providers))}"
    return ", ".join(p.usage for p in providers.values() if p.needs_kernel)


def _exactly(pattern: ProbePattern, kernel: Kernel) -> Sequence[Function]:
    """The function, with its parts, that a description without globs names, or nothing."""
    if any(c in pattern.function + pattern.module for c in "*?["):
        return ()
    with suppress(KinstError):
        return [p for f in kernel.find(pattern.module, pattern.function) for p in kernel.parts(f)]
    return ()
