"""Which of Debian's kernels is fetched for an ISA when none is named: a value in
kinst.isa.NAME.debian.

Tested by tests/kernels/test_fetch.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelPackage:
    """architecture: Debian's name of the instruction set.  series: the first two numbers of the
    kernel's version.  flavour: Debian's word for how it is configured, "" for the generic one.
    room: bytes of packed and unpacked files and the indexes, with some to spare."""

    architecture: str
    series: tuple[int, int]
    flavour: str
    room: int
