"""The types of a kernel and its modules out of their files: core.types.TypeSource.

BTF first, which is small and fast; DWARF for what BTF lacks (the types of variables) and where
there is none.  Nothing is opened before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from kinst.core.dtypes import DType, EnumType, FunctionType
from kinst.core.errors import KinstError
from kinst.core.types import KERNEL, AmbiguousNameError, Symbol
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.dwarf.calls import Caller
from kinst.image.dwarf.cfi import Cfi, open_cfi
from kinst.image.dwarf.dies import Dies
from kinst.image.dwarf.enumerators import EnumeratorNames
from kinst.image.dwarf.file import open_file
from kinst.image.dwarf.index import Index, key_of, open_index
from kinst.image.dwarf.lists import Lists
from kinst.image.dwarf.locals import DwarfLocals
from kinst.image.dwarf.sections import DebugSections, debug_sections
from kinst.image.dwarf.types import DwarfTypes
from kinst.image.elf import SHN_ABS, STB_LOCAL, STT_FUNC, STT_OBJECT, Elf, open_elf
from kinst.image.placed import open_placed

PER_CPU_SECTION = ".data..percpu"
SHF_EXECINSTR = 4
ALSO_KERNEL = ("kernel", "unix", "genunix")  # what other systems call the kernel proper


@dataclass(frozen=True)
class Places:
    """Where files are.  kernel: gives its debug file.  modules: name to a module's file, with
    debug information where there is any.  cache: folder of indexes.  progress: of making one.
    module_debug: a module's file with DWARF, for when the other one has none."""

    kernel: Callable[[], Path]
    modules: Callable[[], Mapping[str, Path]]
    cache: Path | None
    progress: Callable[[float], None]
    module_debug: Callable[[str], Path | None] = lambda name: None


@dataclass(frozen=True)
class CallConvention:
    """Of an ISA: returns(code, address, target) as Isa.returns_of(); DWARF numbers of the stack
    pointer and of the registers that calls keep; bits of a return address that a signature has."""

    returns: Callable[[bytes, int, int], Sequence[int]]
    stack: int
    kept: frozenset[int]
    signature: int


class ImageTypes:
    """Types and symbols of one image."""

    def __init__(self, path: Path, module: str, base: ImageTypes | None, places: Places) -> None:
        self.module = module
        self._path = path
        self._base = base
        self._places = places

    @cached_property
    def elf(self) -> Elf:
        return open_elf(self._path)

    @cached_property
    def btf(self) -> BtfTypes | None:
        base = self._base.btf if self._base is not None else None
        if self._base is not None and base is None:
            return None
        return open_types(self.elf, self.module, base, self._places.cache)

    @cached_property
    def _debug(self) -> tuple[DebugSections, Dies, Index] | None:
        file = open_file(self._path)
        if not file.has_debug:
            return None
        index = open_index(file, self._places.cache, self._places.progress)
        sections = debug_sections(file, self.elf)
        return sections, Dies(sections, index.units), index

    @cached_property
    def dwarf(self) -> DwarfTypes | None:
        if self._debug is None:
            return None
        _, dies, index = self._debug
        cache = self._places.cache
        kept = (cache, key_of(open_file(self._path))) if cache else None
        names = EnumeratorNames(dies, index.enumerations, kept)
        return DwarfTypes(dies, index, self.module, names)

    def locals(
        self, registers: Sequence[str], calls: CallConvention | None = None
    ) -> DwarfLocals | None:
        """The local variables of its functions.  registers: D names by DWARF number.  calls: how
        functions are called, for values that only a caller has."""
        if self._debug is None or self.dwarf is None:
            return None
        sections, dies, index = self._debug
        caller = None
        # Files of modules have no addresses yet.
        if calls is not None and self._base is None:
            caller = Caller(
                partial(self._returns, calls), lambda: self._cfi, calls.stack, calls.kept,
                calls.signature,
            )  # fmt: skip
        return DwarfLocals(dies, Lists(sections, dies), index, self.dwarf, registers, caller)

    @cached_property
    def _cfi(self) -> Cfi | None:
        return open_cfi(self.elf)

    @cached_property
    def _code(self) -> list[tuple[int, bytes]]:
        """The executable sections, with their addresses; relocatable files have none yet."""
        elf = self.elf
        code = [s for s in elf.sections if s.flags & SHF_EXECINSTR and s.address]
        return [(s.address, elf.data(s)) for s in code]

    def _returns(self, calls: CallConvention, target: int) -> list[int]:
        found = [calls.returns(code, address, target) for address, code in self._code]
        return [back for some in found for back in some]

    def is_per_cpu(self, address: int) -> bool:
        """Whether a linked address is that of a per-CPU variable."""
        return any(low <= address < high for low, high in self._per_cpu)

    @cached_property
    def _per_cpu(self) -> list[tuple[int, int]]:
        sections = open_placed(str(self._path)).sections
        return [(s.address, s.end) for s in sections if s.name == PER_CPU_SECTION]

    @property
    def _first(self) -> BtfTypes | DwarfTypes | None:
        return self.btf or self.dwarf

    def tagged(self, kind: str, name: str) -> DType | None:
        return self._first.tagged(kind, name) if self._first else None

    def typedef(self, name: str) -> DType | None:
        return self._first.typedef(name) if self._first else None

    def function(self, name: str) -> FunctionType | None:
        return self._first.function(name) if self._first else None

    def enumerator(self, name: str) -> tuple[EnumType, int] | None:
        """By BTF; by DWARF where there is none (BTF is made of all that DWARF has: of 14,998 names
        of a Debian kernel none is missing).  Raises AmbiguousNameError."""
        known = self._first
        found = known.enumerators(name) if known is not None else []
        values = {value: str(type_) for type_, value in reversed(found)}
        if len(values) > 1:
            shown = [
                f"{value} in {type_ if type_ != 'enum' else 'an enum without a name'}"
                for value, type_ in reversed(values.items())
            ]
            raise AmbiguousNameError(
                f"{name} is ambiguous: {', '.join(shown[:-1])} and {shown[-1]}",
                "write the number; compared with a value of its type, a name is that type's",
            )
        return found[0] if found else None

    def symbol(self, name: str) -> Symbol | None:
        """The symbol of this name; of several a global one, else the first."""
        symbols = self.elf.symbols
        found = symbols.indexes(name)
        if not found:
            return None
        found.sort(key=lambda i: int(symbols.binding[i]) == STB_LOCAL)
        at = found[0]
        kind, number = int(symbols.kind[at]), int(symbols.section[at])
        section = self.elf.sections[number] if number < len(self.elf.sections) else None
        name_of = section.name if section is not None and number != SHN_ABS else ""
        address, size = int(symbols.address[at]), int(symbols.size[at])
        per_cpu = name_of == PER_CPU_SECTION
        function = kind == STT_FUNC
        type_: DType | None = self.function(name) if function else self._variable(name, at)
        return Symbol(self.module, name, address, size, type_, name_of, per_cpu)

    def _variable(self, name: str, at: int) -> DType | None:
        """The type of a variable, or of the one that a linker script gave another name."""
        if self.dwarf is None:
            return self.btf.variable(name) if self.btf else None
        found = self.dwarf.variable(name)
        if found is not None:
            return found
        symbols = self.elf.symbols
        same = (symbols.address == symbols.address[at]) & (symbols.kind == STT_OBJECT)
        for other in same.nonzero()[0].tolist():
            found = self.dwarf.variable(symbols.name_of(other))
            if found is not None:
                return found
        return None


class FileTypes:
    """See core.types.TypeSource."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[str, ImageTypes] = {}
        self._with_debug: dict[str, ImageTypes] = {}

    def _image(self, module: str) -> ImageTypes:
        """Raises KinstError for a module without a file."""
        module = KERNEL if module in ALSO_KERNEL else module
        if module not in self._known:
            if module == KERNEL:
                made = ImageTypes(self._places.kernel(), KERNEL, None, self._places)
            else:
                path = self._modules.get(module)
                if path is None:
                    raise KinstError(
                        f"no file of a module {module} is known",
                        "--module NAME loads one, --debug DIR says where its debug file is",
                    )
                made = ImageTypes(path, module, self._image(KERNEL), self._places)
            self._known[module] = made
        return self._known[module]

    def locals(
        self, module: str, registers: Sequence[str], calls: CallConvention | None = None
    ) -> DwarfLocals | None:
        """The local variables of an image's functions, None where it has no DWARF."""
        return self.with_dwarf(module).locals(registers, calls)

    def with_dwarf(self, module: str) -> ImageTypes:
        """An image by the file with its DWARF, where there is one.  Raises KinstError."""
        image = self._image(module)
        if image.module == KERNEL or image.dwarf is not None:
            return image
        if image.module not in self._with_debug:
            path = self._places.module_debug(image.module)
            made = (
                ImageTypes(path, image.module, self._image(KERNEL), self._places) if path else image
            )
            self._with_debug[image.module] = made
        return self._with_debug[image.module]

    @cached_property
    def _modules(self) -> Mapping[str, Path]:
        return self._places.modules()

    def modules(self) -> Sequence[str]:
        """See TypeSource."""
        return [KERNEL, *self._modules]

    def _images(self, module: str) -> Sequence[ImageTypes]:
        return [self._image(m) for m in ([module] if module else self.modules())]

    def tagged(self, kind: str, name: str, module: str = "") -> DType | None:
        """See TypeSource."""
        for image in self._images(module):
            if (found := image.tagged(kind, name)) is not None:
                return found
        return None

    def typedef(self, name: str, module: str = "") -> DType | None:
        """See TypeSource."""
        for image in self._images(module):
            if (found := image.typedef(name)) is not None:
                return found
        return None

    def enumerator(self, name: str, module: str = "") -> tuple[EnumType, int] | None:
        """See TypeSource."""
        for image in self._images(module):
            if (found := image.enumerator(name)) is not None:
                return found
        return None

    def symbol(self, name: str, module: str = "") -> Symbol | None:
        """See TypeSource."""
        for image in self._images(module):
            if (found := image.symbol(name)) is not None:
                return found
        return None

    def local(self, function: str, variable: str, module: str = "") -> DType | None:
        """See TypeSource."""
        for image in self._images(module):
            known = self.with_dwarf(image.module).locals(())
            found = known.type_in(function, variable) if known is not None else None
            if found is not None:
                return found
        return None

    def function(self, name: str, module: str = "") -> FunctionType | None:
        """See TypeSource."""
        for image in self._images(module):
            if (found := image.function(name)) is not None:
                return found
        return None
