"""Any kernel that kinst does not know: what its ELF file and its DWARF tell.  SYSTEM is found by
name.

There are functions, instructions, registers, arguments, source lines, inline functions, local
variables and types; there is no thread, no process and no caller, because where those are is the
system's to say.  Nothing is written into such a kernel: its probes are stop-planted.

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
from kinst.core.machine import Bearings, KernelMemory, Target
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

# What D has that only a system's own structures tell.
_LACKING = {
    **dict.fromkeys(
        ("caller", "curthread", "cwd", "errno", "execargs", "execname", "gid", "pid", "ppid",
         "root", "stackdepth", "tid", "ucaller", "uid", "ustackdepth", "vtimestamp", "uregs"),
        "{}",
    ),
    **dict.fromkeys(
        ("copyin", "copyinstr", "copyinto", "copyout", "copyoutstr", "d_path", "getmajor",
         "getminor", "inet_ntop", "progenyof", "stack", "ustack"),
        "{}()",
    ),
    "self": "a thread-local variable",
    "usym": "a name of a program's address",
}  # fmt: skip
_SAMPLE = 16  # bytes of code that are compared
_SAMPLES = 64  # functions that are looked at
_AT_PLACE = 64  # bytes of code that are looked for in the file,
_VARIED = 16  # when they have so many different values: padding is no place


class _FileCode:
    """The code of the file."""

    def __init__(self, elf: Elf) -> None:
        self._sections = [
            (s.address, elf.data(s))
            for s in elf.sections
            if s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS and s.address and s.size
        ]
        if not self._sections:
            raise KinstError(f"{elf.path}: no code", "the kernel's own ELF file is needed")

    @property
    def range(self) -> tuple[int, int]:
        """[lowest, highest) linked address."""
        return (
            min(at for at, _ in self._sections),
            max(at + len(data) for at, data in self._sections),
        )

    def read(self, address: int, size: int) -> bytes:
        """Raises KinstError where the file has no code."""
        for at, data in self._sections:
            if at <= address and address + size <= at + len(data):
                return data[address - at : address - at + size]
        raise KinstError(f"the kernel's file has no code at {address:#x}")

    def find(self, code: bytes) -> int | None:
        """The linked address of these bytes; None where they are not there, or twice."""
        found: list[int] = []
        for at, data in self._sections:
            place = data.find(code)
            while place >= 0 and len(found) < 2:
                found.append(at + place)
                place = data.find(code, place + 1)
        return found[0] if len(found) == 1 else None


def _agreement(
    memory: KernelMemory, code: _FileCode, places: Sequence[int], slide: int
) -> tuple[int, int]:
    """Of these linked places: at how many the memory has the file's code, and at how many it has
    something else.  Neither is where nothing can be read, or nothing is there yet."""
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
    bearings: Bearings,
) -> tuple[int, bool]:
    """(how far the kernel lies from where it was linked, whether it is in memory at all).

    It may be where it was linked, or where the code at one of the machine's places says.
    functions: as linked.  Raises KinstError when another kernel's code is there.
    """
    known = [f.address for f in functions if f.size >= _SAMPLE]
    known = known[:: max(1, len(known) // _SAMPLES)]
    slides = [0]
    for place in bearings.places:
        try:
            there = memory.read(place, _AT_PLACE)
        except KinstError:
            continue
        linked = code.find(there) if len(set(there)) >= _VARIED else None
        if linked is not None:
            slides.append(place - linked & MASK)
    found = [(_agreement(memory, code, known, slide), slide) for slide in dict.fromkeys(slides)]
    (same, other), slide = max(found, key=lambda one: one[0][0] - one[0][1])
    if same > other:
        return slide, True
    if other:
        raise KinstError(
            f"the code in this machine's memory is not that of {elf.path}",
            "give the ELF file of the running kernel with --kernel",
        )
    return 0, False


class ElfKernel(BasicSystem):
    """The System protocol (core/system.py) by a file alone.

    A system that knows more derives from it."""

    def __init__(self, target: Target, image: DebugInfo, bearings: Bearings) -> None:
        """Raises KinstError when the machine runs another kernel, and for a file without code or
        symbols."""
        elf = image.elf
        self._target = target
        self._image = image
        self._file = _FileCode(elf)
        linked = FunctionTable(elf, 0, KERNEL)
        self._slide, self._is_loaded = _locate(target, elf, self._file, linked.all, bearings)
        self._functions = FunctionTable(elf, self._slide, KERNEL) if self._slide else linked
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
        found = self._variables.at(address)
        return None if found is None else (KERNEL, *found)

    def code(self, address: int, size: int) -> bytes:
        """The file's, while the kernel has not been loaded, or its page tables do not map it."""
        if self._is_loaded:
            return self._target.read(address, size)
        return self._file.read(address - self._slide & MASK, size)

    def frame_address(self, address: int) -> tuple[str, int] | None:
        """By the file's call frame information."""
        registers = self._target.isa.dwarf_registers
        return self._image.frame_address(address - self._slide & MASK, registers)


class PlainFile:
    """The FileRules protocol (kinst/systems/__init__.py)."""

    def __init__(self, elf: Elf) -> None:
        self.functions = FunctionTable(elf, 0, "")

    def fixup(self, address: int) -> int | None:
        return None

    def is_fatal(self, address: int) -> bool:
        """Nothing runs on behind a trap."""
        return True

    def dead_ends(self) -> Sequence[str]:
        return ()


class ElfKind:
    """The SystemKind protocol (kinst/systems/__init__.py) for any ELF file.

    A system that knows more derives from it."""

    name = "elf"
    fallback = True
    hosts = False
    # Names of _LACKING that the system knows all the same.
    knows_of: frozenset[str] = frozenset()

    def knows(self, elf: Elf) -> bool:
        return True

    def dialect(self) -> Dialect:
        """Nothing but D's own."""
        return UNKNOWN

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        """None: memory is read as the CPUs see it."""
        return None

    def boot(self, isa: Isa) -> Boot | None:
        return None

    def running_build(self, memory: Iterable[bytes]) -> KernelBuild | None:
        return None

    def lacks(self, name: str, elf: Elf) -> str:
        """Where threads, processes and callers are is the system's to say."""
        what = _LACKING.get(name, "").format(name)
        if not what or name in self.knows_of:
            return ""
        if self.fallback:
            return f"{what} needs a system that kinst knows: {elf.path} is of none"
        return f"{what} is not known of the system {self.name}"

    def of_file(self, elf: Elf) -> FileRules:
        return PlainFile(elf)

    def attach(self, target: Target, image: DebugInfo, bearings: Bearings) -> System:
        return ElfKernel(target, image, bearings)


SYSTEM = ElfKind()
