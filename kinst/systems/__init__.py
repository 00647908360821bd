"""Operating systems that kinst knows: one file or folder for each system.

Each file or folder defines a value SYSTEM (SystemKind, below). kinst chooses the system by looking
at the kernel's image, never by a name: to add a system, add a file. Rank 3 of the import
order (docs/architecture.md).

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from kinst.core.dialect import Dialect
from kinst.core.members import members

if TYPE_CHECKING:
    from kinst.core.boot import Boot
    from kinst.core.isa import Isa
    from kinst.core.kernel_package import KernelBuild
    from kinst.core.machine import KernelLocation, Target
    from kinst.core.system import System, VirtualLayout
    from kinst.image.debug_info import DebugInfo
    from kinst.image.elf import Elf
    from kinst.image.function_table import FunctionTable


class FileRules(Protocol):
    """Rules for the code in one kernel or module file: where control continues after a fault, which
    trap instructions end a thread or the kernel, and which functions never return. All addresses
    are linked addresses.

    Attributes:
        functions: the functions of the file; their module name is "".
    """

    functions: FunctionTable

    def fixup(self, address: int) -> int | None:
        """Return the address at which control continues if the instruction at `address` faults;
        None if the kernel does not expect this instruction to fault."""
        ...

    def is_fatal(self, address: int) -> bool:
        """Return whether control never continues after the trap instruction at `address`."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Return the names of functions that never return to their callers."""
        ...

    def counterpart(self, name: str) -> str:
        """Return the function of this system that has the same purpose as a function of another
        system; "" if none is known. The error message for an unknown function shows it as a hint.

        Args:
            name: a function that only another system's kernel has, such as FreeBSD's vm_fault.
        """
        ...


class SystemKind(Protocol):
    """An operating system: it recognizes its kernels, and makes a System for a running kernel. Each
    file or folder of kinst.systems has such a value, SYSTEM."""

    name: str
    # Whether this is the system for kernels that no other system knows.
    fallback: bool
    # Whether kinst itself runs on this system, and downloads kernels of this system.
    hosts: bool

    def knows(self, elf: Elf) -> bool:
        """Return whether the ELF file is a kernel of this system."""
        ...

    def dialect(self) -> Dialect:
        """Return the system's own part of D: its constants, structures and libraries."""
        ...

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        """Return where kernels of this system are mapped on an ISA; None if that is not known."""
        ...

    def boot(self, isa: Isa) -> Boot | None:
        """Return how QEMU boots a kernel of this system on an ISA; None if kinst boots no such
        kernel."""
        ...

    def running_build(self, memory: Iterable[bytes]) -> KernelBuild | None:
        """Find out from a machine's memory which build of this system's kernel runs there, and
        return it; None if the memory does not say.

        Args:
            memory: pieces of the machine's memory, in any order.
        """
        ...

    def lacks(self, name: str, elf: Elf) -> str:
        """Return why kernels with this ELF file do not have a part of D, or "" if they have that
        part.

        Args:
            name: a built-in variable, a subroutine or an action of D.
        """
        ...

    def of_file(self, elf: Elf) -> FileRules:
        """Return the rules for the code in a kernel's file, for use before the kernel runs."""
        ...

    def attach(self, target: Target, image: DebugInfo, location: KernelLocation) -> System:
        """Examine the kernel that runs on a target, and return a System for that kernel.

        Args:
            target: a machine that has been brought up.
            image: the files of the kernel that should run there.
            location: where the kernel may be in memory.

        Raises KinstError if another kernel than that of `image` runs there.
        """
        ...


def _kinds() -> Iterator[SystemKind]:
    """Import the systems one by one and yield each, systems with a folder of their own first."""
    found = sorted(members(__path__), key=lambda info: (not info.ispkg, info.name))
    for info in found:
        kind: SystemKind = importlib.import_module(f"{__name__}.{info.name}").SYSTEM
        yield kind


@cache
def kinds() -> tuple[SystemKind, ...]:
    """Return all systems, the fallback for unknown kernels last."""
    return tuple(sorted(_kinds(), key=lambda kind: kind.fallback))


def of_image(elf: Elf) -> SystemKind:
    """Return the system that recognizes an ELF file as one of its kernels; the fallback system if
    none does."""
    return next(kind for kind in kinds() if kind.fallback or kind.knows(elf))


def of_host() -> SystemKind:
    """Return the system that kinst itself runs on; the fallback system if kinst does not know it.

    The kernels that kinst can download are kernels of this system. A program that needs no kernel,
    because it has only BEGIN, END and timers, uses this system's dialect of D.
    """
    own = next((kind for kind in _kinds() if kind.hosts and not kind.fallback), None)
    return own or next(kind for kind in kinds() if kind.fallback)
