"""Texts that are drawn for reading."""

from __future__ import annotations

from pathlib import Path

from tools.reading_sample import DOCSTRINGS, MESSAGES, PARAGRAPHS, docstrings, sample


def test_a_seed_draws_the_same_texts_each_time() -> None:
    first = list(sample(5))
    assert first == list(sample(5)) and first != list(sample(6))
    assert len(set(first)) == DOCSTRINGS + MESSAGES + PARAGRAPHS
    assert [text[0] for text in first] == list("D" * DOCSTRINGS + "M" * MESSAGES + "P" * PARAGRAPHS)


def test_docstrings_are_shown_with_their_owners(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""A module."""\n'
        'class B:\n    """A class."""\n'
        '    def c(self, d: int = 1) -> str:\n        """A method."""\n'
        "def e():\n    pass\n"
    )
    place = tmp_path / "a.py"
    assert list(docstrings(tmp_path)) == [
        f"{place}:1  module\nA module.",
        f"{place}:2  class B\nA class.",
        f"{place}:4  def c(self, d: int=1) -> str\nA method.",
    ]
