"""Where a distribution has the kernel that kinst boots for one instruction set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelPackage:
    """Debian's package of a kernel; the debug package is named the same with -dbg.

    suite: code name of the release.  architecture: Debian's name of the instruction set.
    image: regular expression of the whole package name; its groups are numbers that order the
    versions.  room: bytes of packed and unpacked files and the indexes, with some to spare.
    """

    suite: str
    architecture: str
    image: str
    room: int
