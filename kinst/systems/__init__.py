"""Rank 3: one file or folder for each operating system.

Each offers a value SYSTEM (SystemKind, below).  A system is found from the kernel's image, never
chosen by name: adding one is adding one file.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Protocol

from kinst.core.boot import Boot
from kinst.core.dialect import Dialect
from kinst.core.isa import Isa
from kinst.core.kernel_package import KernelBuild
from kinst.core.machine import Bearings, Target
from kinst.core.system import System, VirtualLayout
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf
from kinst.image.function_table import FunctionTable


class FileRules(Protocol):
    """What a system knows of the code in a file of its own, at linked addresses.

    functions: they are in no module.  fixup, is_fatal, dead_ends: as in core.system.Refusals."""

    functions: FunctionTable

    def fixup(self, address: int) -> int | None: ...
    def is_fatal(self, address: int) -> bool: ...
    def dead_ends(self) -> Sequence[str]: ...


class SystemKind(Protocol):
    """What a file or folder of kinst.systems offers."""

    name: str
    # Whether it is for kernels that no other one knows.
    fallback: bool
    # Whether kinst itself runs on it, where it also fetches kernels from.
    hosts: bool

    def knows(self, elf: Elf) -> bool:
        """Whether the image is a kernel of this system."""
        ...

    def dialect(self) -> Dialect:
        """The system's part of D."""
        ...

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        """Where such a kernel keeps itself; None where that is not known."""
        ...

    def boot(self, isa: Isa) -> Boot | None:
        """How such a kernel is started in a virtual machine; None where kinst starts none."""
        ...

    def running_build(self, memory: Iterable[bytes]) -> KernelBuild | None:
        """Find out from a machine's memory, in any order, which build of this system's kernel runs
        there.  Return None if the memory does not say."""
        ...

    def lacks(self, name: str, elf: Elf) -> str:
        """Why a built-in variable, a subroutine or an action of D cannot be had in a kernel of
        this image, or ""."""
        ...

    def of_file(self, elf: Elf) -> FileRules:
        """What is known of its code before it runs."""
        ...

    def attach(self, target: Target, image: DebugInfo, bearings: Bearings) -> System:
        """Find out about the kernel that runs on a target that was brought up.  Raises KinstError
        when the image is another kernel's."""
        ...


@cache
def kinds() -> tuple[SystemKind, ...]:
    """Every system there is, those that know their kernels first."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{name}").SYSTEM for name in names]
    return tuple(sorted(found, key=lambda kind: kind.fallback))


def of_image(elf: Elf) -> SystemKind:
    """The system whose kernel this is."""
    return next(kind for kind in kinds() if kind.fallback or kind.knows(elf))


def of_host() -> SystemKind:
    """The system that kinst runs on: that of BEGIN, END and timers without a kernel, and of kernels
    that kinst fetches itself."""
    return next(kind for kind in kinds() if kind.fallback or kind.hosts)
