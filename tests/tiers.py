"""Tiers of tests: make test, make test-all, and make test-release alone (CONTRIBUTING.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from kinst.isa import names

# All instruction sets: a test that is parametrized by them runs for every folder of kinst/isa.
ISAS = tuple(names())
# True in make test-all and make test-release, which draw more examples.
EVERYTHING = bool(os.environ.get("KINST_TEST_ALL"))
# The instruction set whose kernel make test fetches.
FIRST = "amd64"


def draws(few: int, many: int) -> int:
    """Return how many examples a test marked `drawn` draws: few in make test, otherwise many."""
    return many if EVERYTHING else few


def of_kernels(isas: Iterable[str]) -> list[Any]:
    """Return the parameters of a test that needs the kernel of each of these instruction sets."""
    return [pytest.param(isa, marks=() if isa == FIRST else pytest.mark.full) for isa in isas]


def of_kernel_versions(isas: Iterable[str], others: Iterable[tuple[str, str]]) -> list[Any]:
    """Return the parameters (isa, version of the kernel) of a test that needs the usual kernel of
    each of these instruction sets, "", and in make test-release other versions too.

    Args:
        others: instruction set and version of each of these.
    """
    usual = [pytest.param(*one.values, "", marks=one.marks) for one in of_kernels(isas)]
    return [*usual, *(pytest.param(*one, marks=pytest.mark.slow) for one in others)]
