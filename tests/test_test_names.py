"""The names of test files: pytest imports each by its own name alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_no_two_test_files_have_the_same_name() -> None:
    names = Counter(file.name for file in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
