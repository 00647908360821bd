"""Strings of a section, found by an index, against comparing each of them."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinst.core.columns import stable_order
from kinst.image.elf import open_elf
from kinst.image.string_index import StringIndex
from tests import ROOT

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


@given(
    st.lists(st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1)), max_size=40),
    st.sampled_from([0, 1 << 40, (1 << 64) - 4]),
)
def test_order_of_equal_numbers_stays(numbers: list[int], base: int) -> None:
    """Numbers that are near to one another share a word with their indexes, others do not."""
    near = [base + (n & 3) for n in numbers]
    for some in (numbers, near):
        order = stable_order(np.array(some, np.uint64)).tolist()
        assert order == sorted(range(len(some)), key=lambda i: some[i])


def test_symbols_by_the_beginnings_of_their_names(tmp_path: Path) -> None:
    """Beginnings of less and of more than a word, and names that end with the string table."""
    names = [
        "a",
        "ab",
        "abcdefg",
        "abcdefgh",
        "abcdefghi",
        "abcdefghij",
        "b",
        "xabcdefghi",
        "",
        "z",
    ]
    source = "\n".join(f"{name} = {k}" for k, name in enumerate(names) if name)
    (tmp_path / "a.s").write_text(source + "\n")
    subprocess.run(["as", "-o", tmp_path / "a.o", tmp_path / "a.s"], check=True)
    symbols = open_elf(tmp_path / "a.o").symbols
    every = np.arange(len(symbols))
    named = symbols.names_of(every)
    assert set(named) == set(names)
    for prefixes in (("a",), ("abcdefgh",), ("abcdefghi",), ("abcdefghijk",), ("b", "abcdefghij")):
        expected = [name.startswith(prefixes) for name in named]
        assert symbols.begin_with(every, prefixes).tolist() == expected


def test_no_strings() -> None:
    assert StringIndex(b"", np.zeros(0, np.uint32)).find("name") == []


def test_a_last_string_that_has_no_end() -> None:
    """A cut section ends it, no matter which letters it has."""
    for last in map(chr, range(1, 128)):
        index = StringIndex(b"\0one\0" + last.encode(), np.array([1, 5, 0], np.uint32))
        assert [index.find(text) for text in ("one", last, "", "on")] == [[0], [1], [2], []]


def test_indexes_are_sorted_stably_everywhere() -> None:
    """np.argsort() of many 64-bit numbers returns another order than theirs in a guest of QEMU 7.2
    whose emulated processor has AVX2, unless it is stable."""
    calls = re.compile(r"argsort\((?:[^()]|\([^()]*\))*\)")
    found = [
        f"{path}: {call}"
        for path in (ROOT / "kinst").rglob("*.py")
        for call in calls.findall(path.read_text())
        if "stable" not in call and call != "argsort()"
    ]
    assert not found, "\n".join(found)
