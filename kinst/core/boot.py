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
    """What lines of the kernel's console mean."""

    # The kernel gives up.
    panic: re.Pattern[str]
    # Other trouble, by the name of the group: a Complaint's kind.
    trouble: re.Pattern[str]
    # The kernel starts its first program.
    first_program: re.Pattern[str]
    # The kernel died of a breakpoint that is only left in QEMU's translation; "" if it says nothing
    # of that.
    lost_breakpoint: str


class GuestFiles(Protocol):
    """What is in a guest of kinst's own: its first program, and the commands."""

    def build(
        self, busybox: Path, files: Mapping[str, Path], modules: Sequence[Path] = ()
    ) -> bytes:
        """The archive that the kernel unpacks: the same bytes for the same files.

        busybox: a statically linked one of the guest's ISA.  files: absolute path in the guest to a
        file of the host.  modules: kernel modules, loaded in this order.  Raises KinstError if a
        file cannot be read or a guest path is not absolute."""
        ...

    def beside(self, initrd: bytes, busybox: Path) -> bytes:
        """An archive of the user's with kinst's helper added.  Raises KinstError if busybox cannot
        be read."""
        ...

    def starting_beside(self, append: str) -> str:
        """The command line by which that helper is started, and after it what `append` says."""
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

    # What QEMU boots, in the folder in which a kernel was built.
    image: str
    # The kernel's command line in any guest: {end} and {size} are of the physical memory that it
    # may use, in bytes.
    line: str
    # More of it in guests of kinst's own.
    own: str
    # More of it if modules are loaded.
    modules: str
    signs: ConsoleSigns
    files: GuestFiles
    text_is_final: TextCheck = never_final

    def command_line(self, end: int, size: int, append: str, *, own: bool) -> str:
        """The whole of it.  append: what the user adds."""
        parts = (self.line.format(end=end, size=size), self.own if own else "", append)
        return " ".join(filter(None, parts))
