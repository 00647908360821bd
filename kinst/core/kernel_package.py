"""Values for builds of kernels: a build's release and build-id, and the Debian kernel that kinst
fetches for an ISA if the user names no kernel (kinst.isa.NAME.debian).

Tested by tests/kernels/test_fetch.py and tests/kernels/test_vmlinux_search.py."""

from __future__ import annotations

from kinst.core.dataclass import dataclass


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
    """A kernel packaged by Debian.

    Attributes:
        architecture: Debian's name of the instruction set.
        series: the first two numbers of the kernel's version.
        flavour: Debian's name of the kernel's configuration, "" for the generic configuration.
        disk_space: bytes of disk that the packed files, the unpacked files and the indexes take,
            rounded up.
    """

    architecture: str
    series: tuple[int, int]
    flavour: str
    disk_space: int
