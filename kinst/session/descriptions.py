"""Probe descriptions: the probes that a description matches, and hints for one that matches none.

Tested by tests/session/test_enable.py and tests/dlang/vocabulary/test_other_tracers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from kinst.core.errors import AbsentError, DError, KinstError
from kinst.core.kernel import Found, Kernel, Provider, all_named
from kinst.core.probe import Function, Gap, Probe, ProbeName, ProbePattern, gaps_told
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary.other_tracers import probe_hint
from kinst.providers import FIRST_ID, listed

_GLOB = re.compile(r"[*?\[]")


def wants_kernel(
    patterns: Sequence[ProbePattern], providers: Mapping[str, Provider], *, fired: bool
) -> bool:
    """Return whether any of these descriptions needs a traced kernel.

    A description needs a kernel if it matches no probe without one, such as
    kinst::vfs_read:7. It needs none if its provider refuses it already: no kernel has such a probe.

    Args:
        fired: whether the probes are to fire rather than to be listed. To fire, profile-N needs a
            kernel as well, since it samples the kernel's CPUs.
    """
    for pattern in patterns:
        try:
            found = expand(pattern, providers, None)
        except AbsentError:
            continue
        samples = fired and any(one.timer is not None and one.timer.each_cpu for one in found)
        if samples or not (found or pattern.id):
            return True
    return False


def expand(
    pattern: ProbePattern, providers: Mapping[str, Provider], kernel: Kernel | None
) -> list[Found]:
    """Return the probes that a description matches, each once, in the order of the providers.

    A description by id (-i) matches the probe that has this number in the list of kinst -l.

    Args:
        kernel: the traced kernel; None to match only probes that need no kernel.
    """
    return list(matching(pattern, providers, kernel))


def matching(
    pattern: ProbePattern, providers: Mapping[str, Provider], kernel: Kernel | None
) -> Iterator[Found]:
    """Yield the probes that a description matches, in the order of the providers.

    Args:
        kernel: the traced kernel; None to match only probes that need no kernel.
    """
    if pattern.id:
        yield from listed(providers)[pattern.id - FIRST_ID : pattern.id - FIRST_ID + 1]
        return
    for provider in providers.values():
        for found in provider.match(pattern, kernel):
            if pattern.library is None:
                yield found
            elif name := pattern.library.named(found.name, found.site):
                yield replace(found, name=name)


def gaps_in(probes: Iterable[Probe], kernel: Kernel) -> Sequence[Gap]:
    """Return the gaps (bytes that do not decode) in which probes may be missing: those of each
    function that has a probe after its first instruction.
    """
    sites = (probe.site for probe in probes if probe.site is not None)
    functions = {s.function.address: s.function for s in sites if s.offset > 0}
    return kernel.gaps(list(functions.values()))


def check_providers(
    programs: Sequence[tree.ProgramNode],
    providers: Mapping[str, Provider],
    of_libraries: Callable[[], Iterable[ProbeName]] = tuple,
) -> None:
    """Check that probe descriptions name existing providers.

    This is the first check of a program, since the actions of a clause cannot be checked without
    its probe. Raises DError D_PDESC_ZERO for the first description that is wrong: it names a
    provider that neither kinst nor a program declares, or is written in another tracer's language.

    Args:
        of_libraries: returns the probes of D libraries, for the hint.
    """
    declared = {
        item.name for program in programs for item in program.items
        if isinstance(item, tree.ProviderNode)
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
                    hint = naming(pattern, providers, None, of_libraries())
                    raise DError(message, description.span, "D_PDESC_ZERO", hint)


def check_descriptions(program: typed.TypedProgram, providers: Mapping[str, Provider]) -> None:
    """Raise DError for a description that can match no probe in any kernel."""
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
    """Return the hint "did you mean ...?" for a description with a provider's name in the wrong
    field; "" for any other description.

    An example is kinst:vfs_read:19. In a description of fewer than four fields the first field is a
    module or a function, so D does not take "kinst" for the provider.
    """
    if pattern.provider or pattern.id:
        return ""
    provider, between, last = pattern.module, pattern.function, pattern.name
    if not provider:  # kinst:vfs_read
        provider, between = pattern.function, ""
    if provider not in providers:
        return ""
    interface = providers[provider].interface
    calls = interface.of_functions or interface.system_calls or interface.of_process
    if not (calls or interface.by_offset):  # sdt:sched:sched_switch
        meant = ProbePattern(provider, between, "", last)
    elif between or last == "*":
        meant = ProbePattern(provider, "", between, last)
    else:
        meant = ProbePattern(provider, "", last, "" if interface.by_offset else "entry")
    return f"did you mean {meant}?"


def naming(
    pattern: ProbePattern,
    providers: Mapping[str, Provider],
    kernel: Kernel | None,
    of_libraries: Iterable[ProbeName] = (),
) -> str:
    """Return a hint how to name probes, for a description that matches no probe.

    Args:
        kernel: the traced kernel; None if there is none yet.
        of_libraries: the probes of D libraries.
    """
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
        if providers[pattern.provider].names_functions and _lacks_module(pattern, kernel):
            return (
                f"no module {pattern.module} is loaded: in a guest that kinst boots, --module NAME"
                " or FILE loads one"
            )
        return providers[pattern.provider].usage
    if pattern.provider:
        names = {*providers, *(one.provider for one in of_libraries)}
        near = get_close_matches(pattern.provider, names, 1)
        if near:
            return f"did you mean {replace(pattern, provider=near[0])}?"
        return f"providers are {', '.join(sorted(names))}"
    if last and not (pattern.module or pattern.function):
        if last.startswith("sys_"):  # as kernels name the functions of system calls
            return f"in D: syscall::{last[4:]}:entry"
        by_name = {one.name: one for one in of_libraries}
        for name in get_close_matches(last, by_name, 1):
            return f"did you mean {by_name[name].provider}:::{name}?"
    return ", ".join(p.usage for p in providers.values() if p.needs_kernel)


def _lacks_module(pattern: ProbePattern, kernel: Kernel | None) -> bool:
    """Return whether a description of functions names a module that the kernel has not loaded."""
    return bool(pattern.module and kernel and not kernel.find(pattern.module, "*"))


def _exactly(pattern: ProbePattern, kernel: Kernel) -> Sequence[Function]:
    """Return the parts (main and cold) of the functions that a description names.

    Empty if the description has a glob, or the kernel has no such function.
    """
    if any(c in pattern.function + pattern.module for c in "*?["):
        return ()
    with suppress(KinstError):
        return [p for f in kernel.find(pattern.module, pattern.function) for p in kernel.parts(f)]
    return ()
