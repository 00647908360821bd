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
    """Return False: the page tables do not show that the kernel has finished booting. A TextCheck
    (Boot.text_is_final) for systems whose page tables never show that."""
    return False


class KernelFile(Protocol):
    """The kernel's ELF file, in which Boot.span finds where the boot begins."""

    def address(self, name: str) -> int | None:
        """Return the linked address of a symbol; None if the file does not have it."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Return the file's bytes at a linked address."""
        ...


@dataclass(frozen=True, slots=True)
class Leap:
    """The jump by which a booting kernel begins to run at its own virtual addresses.

    Attributes:
        code: the kernel's code that ends with the jump, as it is in the file and in RAM.
        size: size of the jump in bytes.
        register: the register, by the GDB stub's name, that holds the target of the jump.
        target: linked address of the target.
    """

    code: bytes
    size: int
    register: str
    target: int


@dataclass(frozen=True, slots=True)
class BootSpan:
    """The part of a kernel's boot that can be traced. All addresses are linked addresses.

    Attributes:
        text: start of the kernel's image.
        first: the function at whose first instruction tracing begins. When the first CPU enters it,
            the page tables map the kernel's image, and the CPU has a stack and a current thread.
        last: the function that starts the first program; 0 if the kernel has no such symbol.
            Tracing ends there, unless a command is to be traced as well.
        slides: all possible values of the kernel's slide: how far KASLR may move the kernel.
        leap: the jump whose target shows the slide; None if kinst cannot find the jump.
        touched: used to find the slide if `leap` is None: ranges of memory (virtual address, bytes)
            whose first access comes after the page tables map the kernel's image, and before
            `first`. kinst stops the kernel at this access, and reads the slide from the page
            tables. () if no such ranges are known; then kinst tries all `slides`.
    """

    text: int
    first: int
    last: int
    slides: Sequence[int]
    leap: Leap | None = None
    touched: Sequence[tuple[int, int]] = ()


def no_span(_file: KernelFile) -> BootSpan | None:
    """Return None: it is not known which part of the kernel's boot can be traced. Boot.span of
    systems whose boots kinst cannot trace."""
    return None


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
    # (the kernel's file) -> the part of its boot that can be traced; None if it is not known.
    span: Callable[[KernelFile], BootSpan | None] = no_span

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
