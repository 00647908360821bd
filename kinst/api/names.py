"""The names of a kernel and the words of D, for completion: they need no machine.

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
    """A function of a kernel."""

    name: str
    # Whether it has inlined copies.
    inlined: bool
    # Of its code in the file, 0 if it has none of its own.
    offset: int = 0
    size: int = 0
    # As linked.
    address: int = 0


@dataclass(frozen=True, slots=True)
class KernelNames:
    """The names of a kernel."""

    isa: str
    # The file that has them.
    debug: Path
    # Whether inline functions are among them.
    inlined: bool
    # The ISA's rules for disassembling without a decoder.
    disassembly: Mapping[str, object]
    # Names for regs[].
    registers: tuple[str, ...]
    functions: tuple[FunctionName, ...]
    # Modules that the kernel can load.
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of D as kinst has it."""

    # Variables, functions and actions, each with what it is.
    words: Mapping[str, str]
    # Options of -x.
    options: tuple[str, ...]
    # Each provider, with how its probes are named.
    providers: Mapping[str, str]
    # Providers with probes in functions of a kernel, and those with probes at any instruction.
    of_kernel: tuple[str, ...]
    by_offset: tuple[str, ...]
    # Probes that always exist.
    probes: tuple[str, ...]


def kernel_names(request: Request) -> KernelNames | None:
    """Return the names of a request's kernel, sorted by their bytes; None if its files are not
    here: nothing is fetched.

    Names of inline functions need an index of the debug information, and none is made.  Raises
    KinstError for files that cannot be read."""
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
    """Return the offset in the file of the code at an address; 0 for code that is not in it."""
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
    """Return the words of D."""
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
