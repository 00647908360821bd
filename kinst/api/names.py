"""The names of a kernel and the words of D, for people who are typing: without a machine.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kinst.codegen.subroutines import prototypes
from kinst.core.paths import cache_folder
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.d_options import NAMES, OWN_NAMES
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf, open_elf
from kinst.image.elf_file import SHF_EXECINSTR
from kinst.isa import load
from kinst.kernels.fetch import prepared
from kinst.providers import interfaces, listed, load_all
from kinst.session.file_image import FileImage
from kinst.session.kernel import RunningKernel
from kinst.session.kernel_files import isa_of_file, with_build
from kinst.session.request import DEFAULT_ISA, Request

MODULES = "modules.dep"  # depmod's file: a module, its path first, on each line


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function of a kernel.  inlined: it has inlined copies.  offset, size: of its code in the
    file, 0 where it has none of its own; address: as linked."""

    name: str
    inlined: bool
    offset: int = 0
    size: int = 0
    address: int = 0


@dataclass(frozen=True, slots=True)
class KernelNames:
    """debug: the file that has them.  inlined: those of inline functions are among them.
    disassembly: what kinst.isa has of it for people who are typing.  registers: names for regs[].
    modules: those that the kernel may load."""

    isa: str
    debug: Path
    inlined: bool
    disassembly: Mapping[str, object]
    registers: tuple[str, ...]
    functions: tuple[FunctionName, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """words: D's variables, functions and actions, and what they are.  options: of -x.  providers:
    how their probes are named.  of_kernel: those of them whose probes are in functions of a kernel;
    by_offset: at any instruction (ProbeInterface).  probes: those that are always there."""

    words: Mapping[str, str]
    options: tuple[str, ...]
    providers: Mapping[str, str]
    of_kernel: tuple[str, ...]
    by_offset: tuple[str, ...]
    probes: tuple[str, ...]


def kernel_names(request: Request) -> KernelNames | None:
    """Those of the kernel that is asked for, in order of their bytes; None for one that is not
    here: nothing is fetched.  The names of inline functions need an index of its debug
    information, and none is made.  Raises KinstError for files that cannot be read."""
    request = with_build(request)
    options = request.machine
    file = options.debug or ("" if request.kind.abilities.boots else options.kernel)
    modules: Path | None = None
    if file:
        isa, debug = isa_of_file(file), Path(file)
    else:
        isa = load(options.isa or DEFAULT_ISA)
        ready = prepared(isa.name, options.release)
        if ready is None or options.kernel:
            return None
        debug, modules = ready.debug, ready.modules / MODULES
    elf = open_elf(debug)
    image = FileImage(elf)
    found = RunningKernel(image, image, isa).find("", "*")
    index = DebugInfo(elf, cache=cache_folder()).made_index
    inlined = frozenset(index.inline_names() if index is not None else ())
    rows = [
        FunctionName(f.name, f.name in inlined, _offset(elf, f.address), f.size, f.address)
        for f in found
    ]
    rows += [FunctionName(name, True) for name in inlined - {f.name for f in found}]
    rows.sort(key=lambda row: row.name.encode())
    registers = tuple(register.d_name for register in isa.registers)
    return KernelNames(
        isa.name, debug, index is not None, isa.plain, registers, tuple(rows), _modules(modules)
    )


def _offset(elf: Elf, address: int) -> int:
    """Where in the file the code at an address is; 0 for code that is not in it."""
    for section in elf.sections:
        if section.flags & SHF_EXECINSTR and section.address <= address < section.end:
            return section.offset + address - section.address
    return 0


def _modules(path: Path | None) -> tuple[str, ...]:
    try:
        lines = path.read_text(errors="replace").splitlines() if path else []
    except OSError:
        return ()
    files = (Path(line.partition(":")[0]).name for line in lines)
    return tuple(sorted({file.partition(".")[0].replace("-", "_") for file in files if file}))


def vocabulary() -> Vocabulary:
    """The words of D as kinst has it."""
    words = {one.name: one.meaning for one in builtins.VARIABLES.values()}
    words |= dict.fromkeys(builtins.ARRAYS, "array")
    words |= {one.name: "aggregating function" for one in builtins.AGGREGATING.values()}
    words |= dict.fromkeys(builtins.ACTIONS, "action")
    words |= dict.fromkeys(prototypes(), "subroutine")
    providers = load_all()
    return Vocabulary(
        words,
        tuple(sorted(NAMES | OWN_NAMES)),
        {name: one.usage for name, one in providers.items()},
        tuple(name for name, one in providers.items() if one.needs_kernel),
        tuple(name for name, one in interfaces().items() if one.by_offset),
        tuple(str(f.name) for f in listed(providers)),
    )
