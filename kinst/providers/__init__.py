"""The providers of probes, one file for each provider. kinst finds them by the names of their
files.

Tested by tests/providers/test_providers.py.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import cache

from kinst.core.dtypes import DType
from kinst.core.kernel import Found, Provider
from kinst.core.members import member_names
from kinst.core.probe import ProbeInterface, ProbePattern
from kinst.core.types import TypeSource
from kinst.providers.dtrace import BEGIN, END, ERROR

__all__ = [
    "BEGIN",
    "END",
    "ERROR",
    "FIRST_ID",
    "argument_types",
    "interfaces",
    "listed",
    "load_all",
    "names_kernel_probe",
    "of_functions",
    "of_instructions",
]

FIRST_ID = 1  # id of the first of the probes that always exist


@cache
def load_all() -> Mapping[str, Provider]:
    """Import all providers, and return them by name. Each is the value PROVIDER of a module of this
    package."""
    providers: dict[str, Provider] = {}
    for name in member_names(__path__):
        provider: Provider = importlib.import_module(f"{__name__}.{name}").PROVIDER
        providers[provider.name] = provider
    return providers


@cache
def interfaces() -> Mapping[str, ProbeInterface]:
    """Return what the D compiler needs to know of each provider's probes, by the provider's
    name."""
    return {name: provider.interface for name, provider in load_all().items()}


@cache
def of_instructions() -> str:
    """Return the name of the provider whose probes are instructions, named by their offset."""
    return next(name for name, one in interfaces().items() if one.by_offset)


@cache
def of_functions() -> str:
    """Return the name of the provider whose probes are entries and returns of functions."""
    return next(name for name, one in interfaces().items() if one.of_functions)


@cache
def _kernel_probe() -> re.Pattern[str]:
    names = [name for name, provider in load_all().items() if provider.needs_kernel]
    return re.compile(rf"\b({'|'.join(map(re.escape, names))}):")


def names_kernel_probe(text: str) -> bool:
    """Return whether a D program may name probes in a traced kernel: whether its text has the name
    of a provider that needs a kernel, followed by a colon. The text is not parsed, so the name may
    be in a comment.
    """
    return _kernel_probe().search(text) is not None


def argument_types(pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
    """Return the types of args[0], args[1], ... at the probe that a description names. Return None
    if no provider knows the types, or if several do.

    Args:
        types: the kernel's types.

    Raises KinstError if the kernel's types do not have the probe's function.
    """
    named = [p for name, p in load_all().items() if pattern.provider in ("", name)]
    known = [args for p in named if (args := p.argument_types(pattern, types)) is not None]
    return known[0] if len(known) == 1 else None


def listed(providers: Mapping[str, Provider]) -> list[Found]:
    """Return the probes that exist whether or not a description names them, in the order of their
    ids, which start at FIRST_ID.
    """
    return [found for p in providers.values() for found in p.listed()]
