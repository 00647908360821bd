"""Values with which a system tells machines/vm how its kernel boots in a virtual machine.

Tested by tests/machines/vm/test_machine.py and tests/test_contracts.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kinst.core.dataclass import dataclass
from kinst.core.page_tables import Paging, Read


@dataclass(frozen=True, slots=True)
class ConsoleSigns:
    """Patterns by which kinst recognizes what a line on the kernel's console means."""

    # The kernel panics.
    panic: re.Pattern[str]
    # The kernel reports another problem; the name of the matching group is the Complaint's kind.
    trouble: re.Pattern[str]
    # The kernel starts its first program.
    first_program: re.Pattern[str]
    # The kernel died of a breakpoint that was removed from memory, but is still in QEMU's
    # translated code; "" if the kernel prints no such line.
    lost_breakpoint: str


class GuestFiles(Protocol):
    """Builder of the initial RAM disk of a guest that kinst boots: its first program and its
    commands."""

    def build(
        self, busybox: Path, files: Mapping[str, Path], modules: Sequence[Path] = ()
    ) -> bytes:
        """Return the initial RAM disk for the kernel. Equal files give equal bytes.

        Raises KinstError if a file cannot be read or a path in the guest is not absolute.

        Args:
            busybox: path of a statically linked busybox for the guest's ISA.
            files: maps absolute paths in the guest to files of the host.
            modules: kernel modules to load, in this order.
        """
        ...

    def beside(self, initrd: bytes, busybox: Path) -> bytes:
        """Return the user's initial RAM disk with the files of kinst's helper program added. Raises
        KinstError if busybox cannot be read."""
        ...

    def starting_beside(self, append: str) -> str:
        """Return a kernel command line: `append`, and parameters that start kinst's helper program
        in the user's initial RAM disk."""
        ...


# (paging, read, registers of a CPU, range of the kernel's image) -> whether the CPU's page tables
# show that the kernel has protected its text, or freed its boot code: the last step before it runs
# programs.
TextCheck = Callable[[Paging, Read, Mapping[str, int], tuple[int, int]], bool]


def never_final(
    _paging: Paging, _read: Read, _registers: Mapping[str, int], _image: tuple[int, int]
) -> bool:
    """Return False, as the TextCheck of a system whose page tables do not show when its kernel has
    finished booting."""
    return False


@dataclass(frozen=True, slots=True)
class Boot:
    """Settings with which a system's kernel is started in QEMU: image, command line, initial RAM
    disk, and meanings of console lines."""

    # The file that QEMU boots, in a kernel's build folder.
    image: str
    # The kernel's command line in any guest; {end} and {size}, in bytes, limit its physical memory.
    line: str
    # Additional words of the command line in guests of kinst's own.
    own: str
    # Additional words of the command line if modules are loaded.
    modules: str
    signs: ConsoleSigns
    files: GuestFiles
    text_is_final: TextCheck = never_final

    def command_line(self, end: int, size: int, append: str, *, own: bool) -> str:
        """Return the kernel's whole command line.

        Args:
            end: physical address at which the kernel's memory must end; replaces {end} in
                Boot.line.
            size: bytes of the kernel's memory; replaces {size} in Boot.line.
            append: what the user adds.
            own: whether to add Boot.own, for an initial RAM disk with kinst's own init.
        """
        parts = (self.line.format(end=end, size=size), self.own if own else "", append)
        return " ".join(filter(None, parts))
