"""Rank 3: one file or folder for each operating system.

Each has a value SYSTEM (SystemKind, below).  kinst finds the system from the kernel's image, never
by name: to add a system, add a file.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from kinst.core.dialect import Dialect

if TYPE_CHECKING:
    from kinst.core.boot import Boot
    from kinst.core.isa import Isa
    from kinst.core.kernel_package import KernelBuild
    from kinst.core.machine import Bearings, Target
    from kinst.core.system import System, VirtualLayout
    from kinst.image.debug_info import DebugInfo
    from kinst.image.elf import Elf
    from kinst.image.function_table import FunctionTable


class FileRules(Protocol):
    """Facts about the code in a file of a system, at linked addresses.

    fixup(), is_fatal() and dead_ends() are those of core.system.Refusals.

    Attributes:
        functions: the functions of the file; they are in no module.
    """

    functions: FunctionTable

    def fixup(self, address: int) -> int | None: ...
    def is_fatal(self, address: int) -> bool: ...
    def dead_ends(self) -> Sequence[str]: ...


class SystemKind(Protocol):
    """An operating system: the value SYSTEM of a file or folder of kinst.systems."""

    name: str
    # Whether it is for kernels that no other system knows.
    fallback: bool
    # Whether kinst itself runs on this system, and fetches kernels of it.
    hosts: bool

    def knows(self, elf: Elf) -> bool:
        """Return whether the image is a kernel of this system."""
        ...

    def dialect(self) -> Dialect:
        """Return the system's part of D."""
        ...

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        """Return where such a kernel is mapped; None if that is not known."""
        ...

    def boot(self, isa: Isa) -> Boot | None:
        """Return how such a kernel is booted in a virtual machine; None if kinst boots none."""
        ...

    def running_build(self, memory: Iterable[bytes]) -> KernelBuild | None:
        """Find out from a machine's memory, in any order, which build of this system's kernel runs
        there.  Return None if the memory does not say."""
        ...

    def lacks(self, name: str, elf: Elf) -> str:
        """Return why kernels of this image lack a built-in variable, a subroutine or an action of
        D, or ""."""
        ...

    def of_file(self, elf: Elf) -> FileRules:
        """Return what is known of the code in this file before it runs."""
        ...

    def attach(self, target: Target, image: DebugInfo, bearings: Bearings) -> System:
        """Find out about the kernel that runs on a target after bring_up().

        Raises KinstError if the image is another kernel's."""
        ...


def _kinds() -> Iterator[SystemKind]:
    """Load every system there is by and by, those with a folder of their own first."""
    found = sorted(pkgutil.iter_modules(__path__), key=lambda info: (not info.ispkg, info.name))
    for info in found:
        kind: SystemKind = importlib.import_module(f"{__name__}.{info.name}").SYSTEM
        yield kind


@cache
def kinds() -> tuple[SystemKind, ...]:
    """Return all systems, the fallback last."""
    return tuple(sorted(_kinds(), key=lambda kind: kind.fallback))


def of_image(elf: Elf) -> SystemKind:
    """Return the system that knows this kernel."""
    return next(kind for kind in kinds() if kind.fallback or kind.knows(elf))


def of_host() -> SystemKind:
    """Return the system that kinst runs on.

    Without a kernel, BEGIN, END and timers run on it; kinst fetches its kernels."""
    own = next((kind for kind in _kinds() if kind.hosts and not kind.fallback), None)
    return own or next(kind for kind in kinds() if kind.fallback)
