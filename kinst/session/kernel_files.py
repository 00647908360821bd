"""Files of the kernel that a request traces; each is found, fetched and opened when it is first
needed.

Tested by tests/session/test_build_folder.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinst.codegen.values.variable_code import is_thread_local
from kinst.core.dialect import Dialect, with_libraries
from kinst.core.dtypes import StackType, SymbolType
from kinst.core.errors import DError, KinstError
from kinst.core.paths import cache_folder
from kinst.core.types import KERNEL, TypeSource
from kinst.dlang import typed
from kinst.dlang.walk import expressions
from kinst.image.elf_file import open_file
from kinst.image.type_files import FileTypes, ImagePaths
from kinst.isa import load, name_of_machine
from kinst.providers import load_all
from kinst.session.descriptions import wants_kernel
from kinst.session.report import Report
from kinst.session.request import Request
from kinst.systems import SystemKind, of_host, of_image

if TYPE_CHECKING:
    from kinst.core.isa import Isa
    from kinst.image.debug_info import DebugFiles, DebugInfo
    from kinst.session.request_machine import Files

_LONG = 1.0  # seconds of silence before work is reported


def _module(name: str) -> Any:
    """Import a module of kinst, and return it.

    The module is imported late, so that an error in a program is reported without loading it.

    Args:
        name: the module's name without "kinst.".
    """
    return import_module(f"kinst.{name}")


_THREAD_LOCAL = "self"  # name by which a system is asked for thread-local variables


class KernelFiles:
    """Files of the kernel that a request traces.

    Attributes:
        types: the types of the kernel and its modules; a file is opened when a type is first
            needed.
    """

    def __init__(self, request: Request, isa: str, report: Report) -> None:
        """Begin without opening a file.

        Args:
            isa: the name of the kernel's ISA.
        """
        self._request = request
        self._isa = isa
        self._progress, self._confirm = report.progress, report.confirm
        self.types: TypeSource = FileTypes(
            ImagePaths(lambda: self.paths.debug, self._modules, self, self._module_debug),
            lambda: self.system.dialect().tracepoint_prototypes,
        )

    @cached_property
    def _debug(self) -> DebugFiles:
        debug_info = _module("image.debug_info")
        files: DebugFiles = debug_info.DebugFiles(cache_folder(), self._progress)
        return files

    def open(
        self, path: str | Path, module: str = KERNEL, base: DebugInfo | None = None
    ) -> DebugInfo:
        """Open a file with debug information; the second call for a file returns the same object.

        Raises KinstError.

        Args:
            module: the module that the file belongs to.
            base: for a module's file, the debug information of the kernel.
        """
        return self._debug.open(path, module, base)

    @cached_property
    def paths(self) -> Files:
        """Paths of the kernel's files: the user's, or files that kinst has fetched.

        Raises KinstError if a file is missing or cannot be fetched.
        """
        files: Files = _module("session.request_machine").find_files(
            self._request, self._progress, self._confirm
        )
        return files

    @cached_property
    def image(self) -> DebugInfo:
        """Debug information of the kernel's file with symbols (vmlinux)."""
        return self.open(self.paths.debug)

    @cached_property
    def system(self) -> SystemKind:
        """Kind of operating system that the kernel's file belongs to."""
        return of_image(self.image.elf)

    def check_system(self, program: typed.TypedProgram) -> None:
        """Raise DError at the first expression whose value the traced kernel's system does not
        offer.

        Only clauses of the traced kernel are checked: BEGIN, END and tick-N run in kinst's own
        process, on the host's system.
        """
        providers = load_all()
        for clause in program.clauses:
            if not wants_kernel(clause.patterns, providers, fired=True):
                continue
            for expr in expressions(clause):
                name = _asked(expr)
                reason = self.system.lacks(name, self.image.elf) if name else ""
                if reason:
                    raise DError(reason, expr.span, "D_UNKNOWN")

    def dialect(self) -> Dialect:
        """Return the part of D that belongs to the traced kernel's operating system, with the
        user's D libraries (-L).

        If the request names a kernel file, that file tells the system. Otherwise the system is the
        host's, since kinst fetches a kernel of that system, or traces this host.

        Raises KinstError if a folder of D libraries does not exist.
        """
        return self._dialect

    @cached_property
    def _dialect(self) -> Dialect:
        options = self._request.machine
        named = options.debug or options.kernel
        system = self.system if named else of_host()
        return with_libraries(system.dialect(), self._request.libraries)

    @cached_property
    def folders(self) -> Sequence[Path]:
        """Folders with debug files of modules: those of --debug DIR and --build DIR, those of the
        user's own modules, and Debian's, fetched on first use.

        Raises KinstError if Debian's cannot be fetched.
        """
        files, folders = self.paths, list(self.paths.folders)
        ready = files.ready
        fetched = [one for one in files.modules if ready and one.is_relative_to(ready.modules)]
        folders += {one.parent: None for one in files.modules if one not in fetched}
        if ready and fetched:
            module_debug = _module("kernels.fetch_modules").module_debug
            folders.append(module_debug(self._isa, ready, fetched, self._progress, self._confirm))
        return folders

    def _modules(self) -> Mapping[str, Path]:
        """Return the debug file, or else the file, of each module of --module, by module name."""
        found = {_module_name(path): path for path in self.paths.modules}
        return {name: find_file(name, self.paths.folders) or path for name, path in found.items()}

    def _module_debug(self, name: str) -> Path | None:
        return find_file(name, self.folders)


def _module_name(path: Path) -> str:
    name: str = _module("kernels.kmod").module_name(path)
    return name


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the debug file of a module in or below one of these folders; None if the folders have
    no such file.
    """
    for folder in folders:
        for suffix in ("*.ko.debug", "*.ko"):
            for file in sorted(folder.rglob(suffix)):
                if _module_name(Path(file.name.removesuffix(".debug"))) == name:
                    return file
    return None


def with_build(request: Request) -> Request:
    """Return a request that names the kernel and the debug file in the folder of --build.

    For a kernel that runs already, the request gets only the debug file. Raises KinstError if the
    folder lacks a file, or holds a kernel for another ISA than --vm says.
    """
    options = request.machine
    if not options.build:
        return request
    folder = Path(options.build)
    if not folder.is_dir():
        raise KinstError(f"--build {folder}: no such folder")
    debug = folder / "vmlinux"
    if not debug.is_file():
        raise KinstError(f"--build {folder}: there is no vmlinux in it", "make it first")
    if not request.kind.abilities.boots:
        folders = (*options.debug_folders, str(folder))
        return replace(
            request, machine=replace(options, debug=str(debug), debug_folders=folders)
        )  # fmt: skip
    isa = isa_of_file(str(debug))
    if options.isa and options.isa != isa.name:
        raise KinstError(f"--build {folder}: a kernel for {isa.name}, and --vm={options.isa}")
    boot = of_host().boot(isa)
    if boot is None:
        raise KinstError(f"--build {folder}: a kernel of a system that kinst does not boot")
    kernel = folder / boot.image
    if not kernel.is_file():
        raise KinstError(
            f"--build {folder}: there is no {boot.image} in it", f"make {kernel.name}"
        )  # fmt: skip
    folders = (*options.debug_folders, str(folder)) if options.modules else options.debug_folders
    made = replace(
        options, isa=isa.name, kernel=str(kernel), debug=str(debug), debug_folders=folders
    )  # fmt: skip
    return replace(request, machine=made)


def with_vmlinux(request: Request, report: Report) -> Request:
    """Return a request that also names the vmlinux of the kernel that runs in its machine.

    kinst finds the vmlinux by the build-id in the machine's memory. If the machine is a user
    program, the request gets the program's file instead, or the file of the library whose probes
    the request's D programs name. The request is returned unchanged if it already names a kernel
    file, or if kinst cannot read the machine's memory before it opens the machine.

    Raises KinstError if memory has no build-id or there is no such vmlinux, TargetError if reading
    memory fails.
    """
    options = request.machine
    program = request.kind.program(request.command, options.process) if options.kind else ""
    if program:
        library: str = _module("session.process_probes").library_named(request, program)
        if library:
            program = request.kind.program(request.command, options.process, library)
        return replace(request, machine=replace(options, kernel=program))
    if not options.address or options.debug or options.kernel:
        return request
    memory = request.kind.memory(options.address)
    first = next(memory, None)
    if first is None:
        return request
    build = of_host().running_build(_reported(chain([first], memory), report.progress))
    if build is None:
        raise KinstError(
            "kinst cannot tell which kernel runs in the machine: the memory has no VMCOREINFO note"
            " with a build-id",
            "--kernel VMLINUX, or --build DIR",
        )
    path: Path = _module("kernels.vmlinux_search").find_vmlinux(build, report.progress)
    report.say(f"kinst: the machine runs kernel {build.release}; its vmlinux is {path}")
    return replace(request, machine=replace(options, debug=str(path)))


def _reported(
    memory: Iterable[bytes], progress: Callable[[str, float | None], None]
) -> Iterator[bytes]:
    """Yield the pieces of a machine's memory, and report progress once this has taken a second."""
    started, work = time.monotonic(), "looking for the build-id of the kernel there"
    for piece in memory:
        if time.monotonic() - started > _LONG:
            progress(work, None)
        yield piece


def isa_of_file(path: str) -> Isa:
    """Return the ISA of an ELF file.  Raises KinstError if kinst does not know the ISA, or lacks a
    Python package for it."""
    machine = open_file(path).machine
    name = name_of_machine(machine)
    if not name:
        raise KinstError(f"{path}: made for ELF machine {machine}, which kinst does not know")
    return load(name)


def _asked(expr: typed.Expr) -> str:
    """Return the name of the part of D that an expression uses and that an operating system may
    lack, such as ustack or a built-in variable; "" if it uses no such part.
    """
    if isinstance(expr, typed.Builtin | typed.Subroutine):
        return expr.name
    if isinstance(expr, typed.RegisterRead):
        return "uregs" if expr.user else ""
    if isinstance(expr, typed.RecordedStack) and isinstance(expr.type, StackType):
        return "ustack" if expr.type.user else "stack"
    if (
        isinstance(expr, typed.RecordedSymbol)
        and isinstance(expr.type, SymbolType)
        and expr.type.user
    ):
        return "usym"
    return _THREAD_LOCAL if is_thread_local(expr) else ""
