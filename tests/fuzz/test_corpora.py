"""Inputs that coverage-guided searches have found to reach code that no other input reached
(guided.py)."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS, corpus


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept(name: str) -> None:
    kept = corpus(name)
    assert len(kept) > 20
    for data in kept:
        TARGETS[name](data)
