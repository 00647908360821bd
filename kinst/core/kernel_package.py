"""A kernel's build, and Debian's kernel that is fetched for an ISA if the user names none (a value
in kinst.isa.NAME.debian).

Tested by tests/kernels/test_fetch.py and tests/kernels/test_vmlinux_search.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelBuild:
    """One build of a kernel.

    Attributes:
        release: as uname -r prints it.
        build_id: GNU build-id, in hexadecimal.
    """

    release: str
    build_id: str


@dataclass(frozen=True, slots=True)
class KernelPackage:
    """A kernel of Debian's.

    Attributes:
        architecture: Debian's name of the instruction set.
        series: the first two numbers of the kernel's version.
        flavour: Debian's word for how it is configured, "" for the generic one.
        room: bytes of packed and unpacked files and the indexes, with some to spare.
    """

    architecture: str
    series: tuple[int, int]
    flavour: str
    room: int
