"""Names of values of enumerations out of DWARF (DWARF 5, section 5.7).

By name they are wanted only where a file has no BTF.  So the index of debug information (dwarf.py)
has where the enumerations are, and the table of their names is made when one is first asked for,
and kept in a file of its own: a kernel's 16,000 take a second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from kinst.image.dwarf import store as dwarf_store
from kinst.image.dwarf.dies import Die, Dies
from kinst.image.dwarf.numbers import AT_NAME, FORM_SDATA
from kinst.image.dwarf.store import Arrays

TAG_ENUMERATOR, AT_CONST_VALUE = 0x28, 0x1C


def enumerators_of(dies: Dies, die: Die) -> tuple[tuple[str, int], ...]:
    """(name, value) of each value of an enumeration, in the order of its declaration."""
    found = []
    for child in dies.children(die):
        if child.tag == TAG_ENUMERATOR:
            value = child.number(AT_CONST_VALUE)
            if child.forms.get(AT_CONST_VALUE) != FORM_SDATA and value >> 31 == 1:
                value -= 1 << 32
            found.append((child.text(AT_NAME), value))
    return tuple(found)


class EnumeratorNames:
    """The enumerations of one file by the names of their values."""

    def __init__(
        self, dies: Dies, enumerations: Sequence[int], kept: tuple[Path, str] | None = None
    ) -> None:
        """enumerations: where they are in .debug_info.  kept: the folder of saved tables, and
        what this one is made of (dwarf.key_of())."""
        self._dies = dies
        self._enumerations = enumerations
        self._kept = kept

    def enumerations(self, name: str) -> Sequence[int]:
        """Where the enumerations are that have a value of this name.  Raises KinstError for
        damaged debug information."""
        wanted = name.encode("utf-8", "surrogateescape")
        text, at = self._table["text"], self._table["at"]

        def name_of(row: int) -> bytes:
            return bytes(text[at[row] : at[row + 1]])

        rows = range(len(at) - 1)
        first, last = (side(rows, wanted, key=name_of) for side in (bisect_left, bisect_right))
        return [int(die) for die in self._table["die"][first:last]]

    @cached_property
    def _table(self) -> Arrays:
        """The names in order of their bytes, one after the other, where each starts (one more
        for the end), and for each its enumeration."""
        if self._kept is None:
            return self._made()
        folder, key = self._kept
        path = folder / f"enumerators-{key}.index"
        found = dwarf_store.load(path, key)
        if found is None:
            found = self._made()
            dwarf_store.save(path, key, found)
        return found

    def _made(self) -> Arrays:
        rows = sorted(
            (name.encode("utf-8", "surrogateescape"), int(offset))
            for offset in self._enumerations
            for name, _ in enumerators_of(self._dies, self._dies.die(int(offset)))
        )
        lengths = np.array([0, *(len(name) for name, _ in rows)], dtype=np.int64)
        text = b"".join(name for name, _ in rows)
        return {
            "text": np.frombuffer(text or b"\0", dtype=np.uint8),
            "at": np.cumsum(lengths).astype(np.uint32),
            "die": np.array([offset for _, offset in rows], dtype=np.uint64),
        }
