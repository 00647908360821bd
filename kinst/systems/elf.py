"""The system for unknown kernels, with facts from an ELF file and its DWARF only.

Probes in such a kernel can use functions, instructions, registers, arguments, source lines, inline
functions, local variables and types. They cannot use D's built-in variables for the current thread,
process and caller, since kinst does not know where their values are. kinst writes nothing into the
kernel: all probes are stop-planted.

The loader of kinst.systems finds the value SYSTEM by its name.

Tested by tests/vm/other_systems and tests/test_contracts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinst.core.basic_system import BasicSystem
from kinst.core.boot import Boot
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.kernel_package import KernelBuild
from kinst.core.machine import KernelLocation, KernelMemory, Target
from kinst.core.probe import Function
from kinst.core.system import Facts, System, VirtualLayout
from kinst.core.types import KERNEL
from kinst.core.words import MASK
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf
from kinst.image.elf_file import SHF_EXECINSTR, SHT_NOBITS
from kinst.image.function_table import FunctionTable
from kinst.image.variable_table import VariableTable
from kinst.systems import FileRules

# Parts of D for which kinst must know the system's structures.
_LACKING = {
    **dict.fromkeys(
        ("caller", "curthread", "cwd", "errno", "execargs", "execname", "gid", "pid", "ppid",
         "root", "stackdepth", "tid", "ucaller", "uid", "ustackdepth", "vtimestamp", "uregs"),
        "{}",
    ),
    **dict.fromkeys(
        ("copyin", "copyinstr", "copyinto", "copyout", "copyoutstr", "d_path", "getmajor",
         "getminor", "inet_ntop", "path_in_mount", "progenyof", "stack", "ustack"),
        "{}()",
    ),
    "self": "a thread-local variable",
    "usym": "a name of a program's address",
}  # fmt: skip
_SAMPLE = 16  # bytes of code that are compared
_SAMPLES = 64  # functions whose code is compared
_AT_PLACE = 64  # bytes of live code that are searched for in the file
_VARIED = 16  # different values that those bytes must have: padding has fewer


class _FileCode:
    """The code in the sections of a kernel's ELF file, by linked address."""

    def __init__(self, elf: Elf) -> None:
        self._sections = [
            (s.address, elf.data(s))
            for s in elf.sections
            if s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS and s.address and s.size
        ]
        if not self._sections:
            raise KinstError(f"{elf.path}: no code", "the kernel's own ELF file is needed")

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        """The sections' linked addresses and bytes."""
        return self._sections

    @property
    def range(self) -> tuple[int, int]:
        """Lowest and highest linked address of the file's code, [low, high)."""
        return (
            min(at for at, _ in self._sections),
            max(at + len(data) for at, data in self._sections),
        )

    def read(self, address: int, size: int) -> bytes:
        """Return code of the file at a linked address. Raises KinstError if the file has no code
        there."""
        for at, data in self._sections:
            if at <= address and address + size <= at + len(data):
                return data[address - at : address - at + size]
        raise KinstError(f"the kernel's file has no code at {address:#x}")

    def find(self, code: bytes) -> int | None:
        """Return the linked address at which the file's code has these bytes. Return None if the
        bytes occur nowhere or several times."""
        matches: list[int] = []
        for at, data in self._sections:
            offset = data.find(code)
            while offset >= 0 and len(matches) < 2:
                matches.append(at + offset)
                offset = data.find(code, offset + 1)
        return matches[0] if len(matches) == 1 else None


def _agreement(
    memory: KernelMemory, code: _FileCode, places: Sequence[int], slide: int
) -> tuple[int, int]:
    """Compare live memory with the file's code at sample addresses.

    Args:
        places: linked addresses of the samples.
        slide: running address minus linked address.

    Returns:
        The number of samples that are equal, and the number that differ. A sample does not count if
        it cannot be read, or if memory has only 0x00 or only 0xff bytes there.
    """
    same = other = 0
    for at in places:
        try:
            expected = code.read(at, _SAMPLE)
            there = memory.read(at + slide & MASK, _SAMPLE)
        except KinstError:
            continue
        if there == expected:
            same += 1
        elif there.strip(b"\0") and there.strip(b"\xff"):
            other += 1
    return same, other


def _locate(
    memory: KernelMemory,
    elf: Elf,
    code: _FileCode,
    functions: Sequence[Function],
    location: KernelLocation,
) -> tuple[int, bool]:
    """Find where the kernel's code is in live memory.

    kinst tries several slides: 0, and a slide for each address in `location`. To get this slide,
    kinst reads the code at the address, and searches the file for the same code. If the file has it
    at exactly one linked address, the slide is the difference of the two addresses. For each slide,
    kinst compares samples of the file's code with memory. kinst takes the slide with the highest
    number of equal samples, minus different ones.

    Args:
        functions: the file's functions, at linked addresses.
        location: addresses inside the kernel's live code.

    Returns:
        (slide, True); (0, False) if the kernel is not loaded yet, and memory has no code where the
        samples should be.

    Raises KinstError if memory has other code there: another kernel runs.
    """
    samples = [f.address for f in functions if f.size >= _SAMPLE]
    samples = samples[:: max(1, len(samples) // _SAMPLES)]
    slides = [0]
    for place in location.places:
        try:
            there = memory.read(place, _AT_PLACE)
        except KinstError:
            continue
        linked = code.find(there) if len(set(there)) >= _VARIED else None
        if linked is not None:
            slides.append(place - linked & MASK)
    counts = [(_agreement(memory, code, samples, slide), slide) for slide in dict.fromkeys(slides)]
    (same, other), slide = max(counts, key=lambda count: count[0][0] - count[0][1])
    if same > other:
        return slide, True
    if other:
        raise KinstError(
            f"the code in this machine's memory is not that of {elf.path}",
            "give the ELF file of the running kernel with --kernel",
        )
    return 0, False


class ElfKernel(BasicSystem):
    """A running kernel of an unknown system, described from its ELF file alone. Implements System
    (core/system.py). Systems with more facts derive their classes from this class."""

    module = KERNEL  # name of the module of its functions and variables

    def __init__(
        self, target: Target, image: DebugInfo, location: KernelLocation, elf: Elf | None = None
    ) -> None:
        """Find the kernel in the target's memory and index its functions and variables.

        Args:
            elf: the file with the kernel's code and symbols; None for the file of `image`.

        Raises KinstError if the machine runs another kernel, or if the file has no code or no
        symbols.
        """
        elf = elf or image.elf
        self._target = target
        self._image = image
        self._file = _FileCode(elf)
        linked = FunctionTable(elf, 0, self.module)
        self._slide, self._is_loaded = _locate(target, elf, self._file, linked.all, location)
        self._functions = FunctionTable(elf, self._slide, self.module) if self._slide else linked
        self._variables = VariableTable(elf, self._slide)
        self.facts = Facts(slide=self._slide, cpus=target.cpus)

    @property
    def text(self) -> tuple[int, int]:
        low, high = self._file.range
        return low + self._slide & MASK, high + self._slide & MASK

    def functions(self) -> Sequence[Function]:
        return self._functions.all

    def lookup(self, name: str) -> Sequence[Function]:
        return self._functions.lookup(name)

    def glob(self, pattern: str) -> Sequence[Function]:
        return self._functions.glob(pattern)

    def function_at(self, address: int) -> Function | None:
        return self._functions.at(address)

    def variable_at(self, address: int) -> tuple[str, str, int] | None:
        variable = self._variables.at(address)
        return None if variable is None else (self.module, *variable)

    def code(self, address: int, size: int) -> bytes:
        """Return the code that the kernel has at a running address: from live memory or, before the
        kernel is loaded, from its file."""
        if self._is_loaded:
            return self._target.read(address, size)
        return self._file.read(address - self._slide & MASK, size)

    def frame_address(self, address: int) -> tuple[str, int] | None:
        """Return how to compute the canonical frame address at a running address: (D name of the
        base register, offset to add), from the file's call frame information. Return None if the
        file has no rule for this address."""
        registers = self._target.isa.dwarf_registers
        return self._image.frame_address(address - self._slide & MASK, registers)


class PlainFile:
    """Rules for the code of an unknown system's file. Implements FileRules
    (kinst/systems/__init__.py)."""

    def __init__(self, elf: Elf) -> None:
        self.functions = FunctionTable(elf, 0, "")

    def fixup(self, address: int) -> int | None:
        return None

    def is_fatal(self, address: int) -> bool:
        """Return True: kinst assumes that each trap instruction ends the thread or the kernel."""
        return True

    def dead_ends(self) -> Sequence[str]:
        return ()

    def counterpart(self, name: str) -> str:
        return ""


class ElfKind:
    """The fallback system: it accepts any ELF file as one of its kernels. It is also the base class
    of systems that know more. Implements SystemKind (kinst/systems/__init__.py)."""

    name = "elf"
    fallback = True
    hosts = False
    # Names in _LACKING that this system knows.
    knows_of: frozenset[str] = frozenset()

    def knows(self, elf: Elf) -> bool:
        return True

    def dialect(self) -> Dialect:
        """Return D without a system's own part."""
        return UNKNOWN

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        """Return None: the virtual layout of an unknown system is not known."""
        return None

    def boot(self, isa: Isa) -> Boot | None:
        return None

    def running_build(self, memory: Iterable[bytes]) -> KernelBuild | None:
        return None

    def lacks(self, name: str, elf: Elf) -> str:
        """Return why a kernel of this system lacks a built-in variable, a subroutine or an action
        of D, or "" if the kernel has it.

        A kernel lacks each name that needs the structures of threads and processes, unless its
        system's class has the name in `knows_of`.
        """
        lacking = _LACKING.get(name, "").format(name)
        if not lacking or name in self.knows_of:
            return ""
        if self.fallback:
            return f"{lacking} needs a system that kinst knows: {elf.path} is of none"
        return f"{lacking} is not known of the system {self.name}"

    def of_file(self, elf: Elf) -> FileRules:
        return PlainFile(elf)

    def attach(self, target: Target, image: DebugInfo, location: KernelLocation) -> System:
        return ElfKernel(target, image, location)


SYSTEM = ElfKind()
