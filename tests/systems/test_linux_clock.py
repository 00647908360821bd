"""Which of the kernel's two states of its clock is read on a machine that stands still
(kernel/time/timekeeping.c: the shadow is made first and copied while the count is odd)."""

from __future__ import annotations

from typing import Any

import pytest

from kinst.systems.linux.facts import _steady_timekeeper

CORE, SHADOW = 0xFFFF_FFFF_8210_0000, 0xFFFF_FFFF_8220_0000


class Kernel:
    """Of 6.1 has the shadow; later ones keep all in tk_core."""

    def __init__(self, count: int, shadow: bool) -> None:
        self.count = count
        self.symbols = {"tk_core": CORE} | ({"shadow_timekeeper": SHADOW} if shadow else {})

    def has(self, name: str) -> bool:
        return name in self.symbols

    def symbol(self, name: str) -> int:
        return self.symbols[name]

    def number(self, address: int, size: int) -> int:
        assert (address, size) == (CORE, 4)
        return self.count


class Btf:
    """tk_core: a sequence count of 4 bytes and, aligned to 8, the timekeeper; or struct tk_data."""

    def __init__(self, named: bool) -> None:
        self.named = named

    def has(self, name: str, member: str) -> bool:
        return self.named

    def offset(self, name: str, member: str) -> int:
        assert (name, member) == ("tk_data", "timekeeper")
        return 24

    def size(self, name: str) -> int:
        return 4


@pytest.mark.parametrize(
    ("count", "shadow", "named", "expected"),
    [
        (6, True, False, CORE + 8),
        (7, True, False, SHADOW),
        (7, False, False, CORE + 8),
        (6, False, True, CORE + 24),
    ],
)
def test_a_timekeeper_that_is_whole(count: int, shadow: bool, named: bool, expected: int) -> None:
    kernel: Any = Kernel(count, shadow)
    btf: Any = Btf(named)
    assert _steady_timekeeper(kernel, btf) == expected
