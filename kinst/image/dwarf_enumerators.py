"""Names of values of enumerations out of DWARF (DWARF 5, section 5.7): read from one entry, and
all of a file, sorted by name, for its index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kinst.image.dwarf_dies import Die, Dies
from kinst.image.dwarf_numbers import AT_NAME, FORM_SDATA
from kinst.image.dwarf_sections import DebugSections
from kinst.image.dwarf_store import Arrays

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


def enumerator_arrays(
    sections: DebugSections, units: Sequence[int], enumerations: npt.NDArray[np.int64]
) -> Arrays:
    """Of the index: the names in order of their bytes, one after the other, where each starts
    (one more for the end), and for each the offset of its enumeration.

    units: offsets of all units; enumerations: of the entries.  Raises KinstError for damaged
    debug information.
    """
    dies = Dies(sections, units)
    rows = sorted(
        (name.encode("utf-8", "surrogateescape"), offset)
        for offset in enumerations.tolist()
        for name, _ in enumerators_of(dies, dies.die(offset))
    )
    lengths = np.array([0, *(len(name) for name, _ in rows)], dtype=np.int64)
    text = b"".join(name for name, _ in rows)
    return {
        "enumerator_text": np.frombuffer(text or b"\0", dtype=np.uint8),
        "enumerator_at": np.cumsum(lengths).astype(np.uint32),
        "enumerator_die": np.array([offset for _, offset in rows], dtype=np.uint64),
    }
