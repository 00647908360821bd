"""What a test is in: make test, make test-all, or before a release only (CONTRIBUTING.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from kinst.isa import names

# All that kinst has: a test of each instruction set is run for every folder of kinst/isa.
ISAS = tuple(names())
# Whether this run is one of make test-all or make test-release, which draw more examples.
EVERYTHING = bool(os.environ.get("KINST_TEST_ALL"))
# The instruction set whose kernel make test fetches.
FIRST = "amd64"


def draws(few: int, many: int) -> int:
    """How many examples a test draws that is marked `drawn`: few in make test, else many."""
    return many if EVERYTHING else few


def of_kernels(isas: Iterable[str]) -> list[Any]:
    """Parameters of a test that needs the kernel of each of these instruction sets."""
    return [pytest.param(isa, marks=() if isa == FIRST else pytest.mark.full) for isa in isas]
