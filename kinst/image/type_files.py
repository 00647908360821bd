"""Types of a kernel and its modules, read from their files (implements core.types.TypeSource).

A file is opened when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType, EnumType, FunctionType, PointerType
from kinst.core.errors import KinstError
from kinst.core.types import KERNEL, PROGRAM, Symbol
from kinst.image.btf_strings import has_string
from kinst.image.elf_file import open_file

if TYPE_CHECKING:
    from kinst.image.debug_info import DebugInfo

_SPREAD = 3  # how much longer or shorter than a wrong name a similar name may be
ALSO_KERNEL = ("kernel", "unix", "genunix", PROGRAM)  # what other systems call the kernel proper


class DebugOpener(Protocol):
    """Protocol of an object that opens files with debug information, each once (DebugFiles)."""

    def open(
        self, path: str | Path, module: str = KERNEL, base: DebugInfo | None = None
    ) -> DebugInfo: ...


@dataclass(frozen=True)
class ImagePaths:
    """Paths of the files of a kernel and its modules.

    Attributes:
        kernel: returns the path of the kernel's debug file.
        modules: function that returns a mapping from the name of each module to a path: that of
            the module's separate debug file, or of the module's own file if it has no separate one.
        debug: opener of the files.
        module_debug: function that takes the name of a module whose file in the mapping has no
            DWARF. It returns the path of a file of the module that has DWARF, such as a debug file
            that must first be fetched; None if there is none.
    """

    kernel: Callable[[], Path]
    modules: Callable[[], Mapping[str, Path]]
    debug: DebugOpener
    module_debug: Callable[[str], Path | None] = lambda name: None


def _similar(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of `names` that are spelt almost like `name`, the most similar first. To
    save time, only names with the same first letter are compared."""
    lengths = range(len(name) - _SPREAD, len(name) + _SPREAD + 1)
    near = [one for one in names if len(one) in lengths and one[:1] == name[:1]]
    return get_close_matches(name, sorted(near), 3, 0.7)


class FileTypes:
    """Types of one machine's images, read from their files. Implements core.types.TypeSource."""

    def __init__(self, paths: ImagePaths, tracepoints: Callable[[], Sequence[str]] = tuple) -> None:
        """Store where the files are; open none yet.

        Args:
            paths: paths of the files.
            tracepoints: returns patterns such as "btf_trace_{}". With a tracepoint's name for {}, a
                pattern is the name of a function or typedef. This has the prototype of the
                functions that the tracepoint calls.
        """
        self._paths, self._tracepoints = paths, tracepoints
        self._known: dict[str, DebugInfo] = {}
        self._with_debug: dict[str, DebugInfo] = {}

    def _image(self, module: str) -> DebugInfo:
        """Return the debug information of a module or of the kernel. Raises KinstError for a module
        without a file."""
        module = KERNEL if module in ALSO_KERNEL else module
        if module not in self._known:
            if module == KERNEL:
                image = self._paths.debug.open(self._paths.kernel())
            else:
                path = self._modules.get(module)
                if path is None:
                    raise KinstError(
                        f"no file of a module {module} is known",
                        "--module NAME loads one, --debug DIR says where its debug file is",
                    )
                image = self._paths.debug.open(path, module, self._image(KERNEL))
            self._known[module] = image
        return self._known[module]

    def with_dwarf(self, module: str) -> DebugInfo:
        """Return the debug information of an image, from a file with DWARF if there is one,
        otherwise from the file without DWARF. Raises KinstError for a module without a file."""
        image = self._image(module)
        if image.module == KERNEL or image.has_dwarf:
            return image
        if image.module not in self._with_debug:
            path = self._paths.module_debug(image.module)
            with_debug = (
                self._paths.debug.open(path, image.module, self._image(KERNEL)) if path else image
            )
            self._with_debug[image.module] = with_debug
        return self._with_debug[image.module]

    @cached_property
    def _modules(self) -> Mapping[str, Path]:
        return self._paths.modules()

    def modules(self) -> Sequence[str]:
        return [KERNEL, *self._modules]

    def _lacks(self, name: str, module: str) -> bool:
        """Return whether no image has a type or constant of this name, as the strings in the files'
        BTF show. False if an image may have it.

        Searching the strings is faster than reading the types, so a misspelled name is reported
        sooner. But if debug information of any image has been opened already, do not search: return
        False, and the caller looks the name up there.

        Args:
            module: name of the only image to look at; "" for all images.
        """
        wanted = [module] if module else self.modules()
        if self._known or not set(wanted) <= {KERNEL, *self._modules}:
            return False
        paths = [
            self._modules[image_name] if image_name != KERNEL else self._paths.kernel()
            for image_name in wanted
        ]
        return not any(has_string(open_file(path), name) for path in paths)

    def _images(self, module: str) -> Sequence[DebugInfo]:
        return [self._image(m) for m in ([module] if module else self.modules())]

    def tagged(self, kind: str, name: str, module: str = "") -> DType | None:
        for image in [] if self._lacks(name, module) else self._images(module):
            types = image.types
            if types is not None and (found := types.tagged(kind, name)) is not None:
                return found
        return None

    def typedef(self, name: str, module: str = "") -> DType | None:
        for image in [] if self._lacks(name, module) else self._images(module):
            types = image.types
            if types is not None and (found := types.typedef(name)) is not None:
                return found
        return None

    def enumerator(self, name: str, module: str = "") -> tuple[EnumType, int] | None:
        for image in [] if self._lacks(name, module) else self._images(module):
            if (found := image.enumerator(name)) is not None:
                return found
        return None

    def symbol(self, name: str, module: str = "") -> Symbol | None:
        for image in self._images(module):
            if (found := image.symbol(name)) is not None:
                return found
        return None

    def local(self, function: str, variable: str, module: str = "") -> DType | None:
        looked_in = 0
        for image in self._images(module):
            variables = self.with_dwarf(image.module).locals()
            if variables is None:
                continue
            looked_in += 1
            type_ = variables.type_in(function, variable)
            if type_ is not None:
                return type_
        if not looked_in:
            raise KinstError(f"{module or KERNEL} has no debug information about local variables")
        return None

    def locals(self, function: str, module: str = "") -> Sequence[str]:
        for image in self._images(module):
            variables = self.with_dwarf(image.module).locals()
            names = variables.names_in(function) if variables is not None else ()
            if names:
                return names
        return ()

    def function(self, name: str, module: str = "") -> FunctionType | None:
        for image in self._images(module):
            if (found := image.prototype(name)) is not None:
                return found
        return None

    def tracepoint(self, name: str) -> FunctionType | None:
        for form in self._tracepoints():
            type_ = self.function(form.format(name)) or self.typedef(form.format(name))
            pointed = type_.to if isinstance(type_, PointerType) else type_
            if isinstance(pointed, FunctionType):
                return pointed
        return None

    def lacks_function(self, name: str) -> bool:
        return all(
            image.has_dwarf and image.lacks_function(name) and not image.elf.symbols.indexes(name)
            for image in self._images("")
        )

    def similar_functions(self, name: str) -> Sequence[str]:
        return _similar(name, self._function_names)

    def similar_tracepoints(self, name: str) -> Sequence[str]:
        prefixes = [form.removesuffix("{}") for form in self._tracepoints()]
        names = {
            function.removeprefix(prefix)
            for prefix in prefixes
            for function in self._function_names
            if function.startswith(prefix)
        }
        return _similar(name, names)

    @cached_property
    def _function_names(self) -> Set[str]:
        """Names of all functions in the images' symbol tables."""
        return {name for image in self._images("") for name in image.symbol_functions()}
