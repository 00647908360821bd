"""Rank 2: one file for each provider; a provider is found by its file's name.

Tested by tests/providers/test_providers.py.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from functools import cache

from kinst.core.dtypes import DType
from kinst.core.kernel import Found, Provider
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

FIRST_ID = 1  # of the probes that are there without being asked for


@cache
def load_all() -> Mapping[str, Provider]:
    """Every provider by name; each module of this package offers PROVIDER."""
    found: dict[str, Provider] = {}
    for info in pkgutil.iter_modules(__path__):
        provider: Provider = importlib.import_module(f"{__name__}.{info.name}").PROVIDER
        found[provider.name] = provider
    return found


@cache
def interfaces() -> Mapping[str, ProbeInterface]:
    """What D has to know of each provider's probes."""
    return {name: provider.interface for name, provider in load_all().items()}


@cache
def of_instructions() -> str:
    """Name of the provider whose probes are instructions, named by their offset."""
    return next(name for name, one in interfaces().items() if one.by_offset)


@cache
def of_functions() -> str:
    """Name of the provider whose probes are entry and return of functions."""
    return next(name for name, one in interfaces().items() if one.of_functions)


@cache
def _kernel_probe() -> re.Pattern[str]:
    names = [name for name, provider in load_all().items() if provider.needs_kernel]
    return re.compile(rf"\b({'|'.join(map(re.escape, names))}):")


def names_kernel_probe(text: str) -> bool:
    """Whether a program's text seems to name a provider whose probes are in a traced kernel."""
    return _kernel_probe().search(text) is not None


def argument_types(pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
    """The types of args[] at the one probe that a description means, None if it means more.

    Raises KinstError where the kernel's types do not tell."""
    asked = [p for name, p in load_all().items() if pattern.provider in ("", name)]
    found = [known for p in asked if (known := p.argument_types(pattern, types)) is not None]
    return found[0] if len(found) == 1 else None


def listed(providers: Mapping[str, Provider]) -> list[Found]:
    """The probes that are there without being asked for; their ids start at FIRST_ID."""
    return [found for p in providers.values() for found in p.listed()]
