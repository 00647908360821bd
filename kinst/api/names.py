"""Names of a kernel's functions and modules, and the words of D, for completion of command lines.
No machine is started.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kinst.codegen.subroutines import prototypes
from kinst.core.dataclass import dataclass
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

MODULES = "modules.dep"  # depmod's file: each line begins with the path of a module


@dataclass(frozen=True, slots=True)
class FunctionName:
    """Name of a function of a kernel.

    Attributes:
        name: the name.
        inlined: whether the function has inlined copies.
        offset: offset of its code in the kernel's file; 0 if it only has inlined copies.
        size: bytes of its code; 0 if it only has inlined copies.
        address: address of its code as linked; 0 if it only has inlined copies.
    """

    name: str
    inlined: bool
    offset: int = 0
    size: int = 0
    address: int = 0


@dataclass(frozen=True, slots=True)
class KernelNames:
    """Names of a kernel's functions, registers and modules.

    Attributes:
        isa: name of the instruction set.
        debug: the kernel's file, which has the names.
        inlined: whether `functions` includes inline functions.
        disassembly: how completion disassembles the ISA's code, as arguments for
            isa._plain.PlainDisassembly(). The ISA's own decoder would take too long to load.
        registers: names of the registers for regs[].
        functions: sorted by the bytes of their names.
        modules: modules that the kernel can load.
    """

    isa: str
    debug: Path
    inlined: bool
    disassembly: Mapping[str, object]
    registers: tuple[str, ...]
    functions: tuple[FunctionName, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of D that kinst knows.

    Attributes:
        words: D's variables, functions and actions, each with its meaning.
        options: names of the options of -x.
        providers: names of providers, each with the form of its probe descriptions.
        of_kernel: providers with probes in functions of a kernel.
        by_offset: providers with probes at any instruction.
        probes: descriptions of the probes that exist on every machine, such as BEGIN and END.
    """

    words: Mapping[str, str]
    options: tuple[str, ...]
    providers: Mapping[str, str]
    of_kernel: tuple[str, ...]
    by_offset: tuple[str, ...]
    probes: tuple[str, ...]


def kernel_names(request: Request) -> KernelNames | None:
    """Return the names of the kernel that a request selects. None if the kernel's files are not on
    this host; kinst fetches nothing here.

    Inline functions are included only if there is an index of the kernel's debug information
    already. Raises KinstError if a file cannot be read.
    """
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
    """Return the offset in an ELF file of the code at an address; 0 if the file has no code for
    this address."""
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
    """Return the words of D that kinst knows."""
    words = {one.name: one.meaning for one in builtins.VARIABLES.values()}
    words |= dict.fromkeys(builtins.ARRAYS, "array")
    words |= {one.name: "aggregating function" for one in builtins.AGGREGATING.values()}
    words |= dict.fromkeys(builtins.ACTIONS, "action")
    words |= dict.fromkeys(prototypes(), "subroutine")
    providers = load_all()
    return Vocabulary(
        words,
        tuple(sorted(NAMES | OWN_NAMES)),
        {name: one.usage for name, one in providers.items() if not one.interface.of_process},
        tuple(name for name, one in providers.items() if one.needs_kernel),
        tuple(name for name, one in interfaces().items() if one.by_offset),
        tuple(str(f.name) for f in listed(providers)),
    )
