"""The copy of the kernel's clock that is read on a stopped machine.

kernel/time/timekeeping.c: the shadow is made first and copied while the count is odd.
"""

from __future__ import annotations

from typing import Any

import pytest

from kinst.systems.linux.facts import _steady_timekeeper

CORE, SHADOW = 0xFFFF_FFFF_8210_0000, 0xFFFF_FFFF_8220_0000


TK_DATA = {"timekeeper": 24, "shadow_timekeeper": 344}


class Kernel:
    """A kernel: 6.1 has the shadow, later ones keep all in tk_core, or in an array of such."""

    def __init__(self, count: int, shadow: bool, core: str) -> None:
        self.count = count
        self.symbols = {core: CORE} | ({"shadow_timekeeper": SHADOW} if shadow else {})

    def has(self, name: str) -> bool:
        return name in self.symbols

    def symbol(self, name: str) -> int:
        return self.symbols[name]

    def number(self, address: int, size: int) -> int:
        assert (address, size) == (CORE, 4)
        return self.count


class Btf:
    """Types for tk_core: a sequence count of 4 bytes and, aligned to 8, the timekeeper; or struct
    tk_data with these members."""

    def __init__(self, **members: int) -> None:
        self.members = members

    def has(self, name: str, member: str) -> bool:
        return name == "tk_data" and member in self.members

    def offset(self, name: str, member: str) -> int:
        assert name == "tk_data"
        return self.members[member]

    def size(self, name: str) -> int:
        return 4


@pytest.mark.parametrize(
    ("count", "shadow", "core", "members", "expected"),
    [
        (6, True, "tk_core", {}, CORE + 8),
        (7, True, "tk_core", {}, SHADOW),
        (7, False, "tk_core", {}, CORE + 8),
        (6, False, "tk_core", {"timekeeper": 24}, CORE + 24),
        (6, False, "timekeeper_data", TK_DATA, CORE + 24),
        (7, False, "timekeeper_data", TK_DATA, CORE + 344),
    ],
)
def test_a_timekeeper_that_is_whole(
    count: int, shadow: bool, core: str, members: dict[str, int], expected: int
) -> None:
    kernel: Any = Kernel(count, shadow, core)
    btf: Any = Btf(**members)
    assert _steady_timekeeper(kernel, btf) == expected
