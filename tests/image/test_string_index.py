"""Strings of a section, found by an index, against comparing each of them."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinst.image.string_index import StringIndex

TEXTS = st.text(alphabet="ab_é", max_size=20)


@given(
    st.lists(TEXTS, min_size=1), st.lists(TEXTS), st.randoms(use_true_random=False), st.booleans()
)
def test_as_looking_at_each(
    texts: list[str], others: list[str], chosen: random.Random, ended: bool
) -> None:
    """Starts in any order, some of them twice, and tails of others, as a linker shares them."""
    section, starts = b"\0", [0]
    for text in texts:
        starts.append(len(section))
        section += text.encode() + b"\0"
    starts += chosen.choices(starts, k=5)
    starts += [at + 1 for at in starts if section[at] in b"ab_"]
    chosen.shuffle(starts)
    section = section if ended else section[:-1] or b"\0"
    starts = [at for at in starts if at < len(section)]
    held = [section[at:].split(b"\0")[0] for at in starts]
    index = StringIndex(section, np.array(starts, np.uint32))
    for wanted in [*texts, *others, "", "a", "aaaaaaaab", "ab" * 8]:
        expected = [k for k, one in enumerate(held) if one == wanted.encode()]
        assert index.find(wanted) == expected


def test_no_strings() -> None:
    assert StringIndex(b"", np.zeros(0, np.uint32)).find("name") == []


def test_a_last_string_that_has_no_end() -> None:
    """A cut section ends it, no matter which letters it has."""
    for last in map(chr, range(1, 128)):
        index = StringIndex(b"\0one\0" + last.encode(), np.array([1, 5, 0], np.uint32))
        assert [index.find(text) for text in ("one", last, "", "on")] == [[0], [1], [2], []]
