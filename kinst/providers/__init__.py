"""Rank 2: one file for each provider; a provider is found by its file's name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from kinst.core.kernel import Found, Provider
from kinst.core.probe import ProbeInterface

_NONE = ProbeInterface()
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
    """What D has to know of each provider's probes; a module may offer INTERFACE."""
    return {
        name: getattr(importlib.import_module(type(provider).__module__), "INTERFACE", _NONE)
        for name, provider in load_all().items()
    }


def listed(providers: Mapping[str, Provider]) -> list[Found]:
    """The probes that are there without being asked for; their ids start at FIRST_ID."""
    return [found for p in providers.values() for found in p.listed()]
