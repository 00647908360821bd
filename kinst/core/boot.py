"""How a system's kernel is started in a virtual machine of kinst's, as values for machines/vm.

Tested by tests/machines/vm/test_machine.py and tests/test_contracts.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kinst.core.page_tables import Paging, Read


@dataclass(frozen=True, slots=True)
class ConsoleSigns:
    """Meanings of lines on the kernel's console."""

    # The kernel gives up.
    panic: re.Pattern[str]
    # Other trouble, by the name of the group: a Complaint's kind.
    trouble: re.Pattern[str]
    # The kernel starts its first program.
    first_program: re.Pattern[str]
    # The kernel died of a breakpoint that remains only in QEMU's translation; "" if it does not say
    # so.
    lost_breakpoint: str


class GuestFiles(Protocol):
    """Files in a guest of kinst's own: its first program, and the commands."""

    def build(
        self, busybox: Path, files: Mapping[str, Path], modules: Sequence[Path] = ()
    ) -> bytes:
        """Return the archive that the kernel unpacks: the same bytes for the same files.

        Raises KinstError if a file cannot be read or a guest path is not absolute.

        Args:
            busybox: a statically linked one of the guest's ISA.
            files: absolute path in the guest to a file of the host.
            modules: kernel modules, loaded in this order.
        """
        ...

    def beside(self, initrd: bytes, busybox: Path) -> bytes:
        """Return the user's archive with kinst's helper added. Raises KinstError if busybox cannot
        be read."""
        ...

    def starting_beside(self, append: str) -> str:
        """Return the command line that starts that helper, followed by `append`."""
        ...


# Whether page tables, as a CPU with these registers has them, show that a kernel whose image is in
# this range has protected its text, or freed the code that only boots: the last thing that it does
# before it runs programs.
TextCheck = Callable[[Paging, Read, Mapping[str, int], tuple[int, int]], bool]


def never_final(
    _paging: Paging, _read: Read, _registers: Mapping[str, int], _image: tuple[int, int]
) -> bool:
    """Answer TextCheck for a kernel whose tables do not show it."""
    return False


@dataclass(frozen=True, slots=True)
class Boot:
    """How a kernel is started in QEMU."""

    # The file that QEMU boots, in a kernel's build folder.
    image: str
    # The kernel's command line in any guest; {end} and {size}, in bytes, limit its physical memory.
    line: str
    # Additions in guests of kinst's own.
    own: str
    # Additions if modules are loaded.
    modules: str
    signs: ConsoleSigns
    files: GuestFiles
    text_is_final: TextCheck = never_final

    def command_line(self, end: int, size: int, append: str, *, own: bool) -> str:
        """Return the kernel's whole command line. append: what the user adds."""
        parts = (self.line.format(end=end, size=size), self.own if own else "", append)
        return " ".join(filter(None, parts))
