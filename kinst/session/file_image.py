"""Expansion of a program for an ELF file that is not running (kinst -d -e).

Functions, instructions, inlined copies and source lines come from the file's own symbols, bytes and
DWARF, decoded for the file's own ISA. Nothing is booted, and no instruction is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kinst.core.dialect import Dialect, with_libraries
from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.core.probe import Function
from kinst.core.system import SystemCall, Tracepoint, TracepointSite
from kinst.dlang.syntax.unparse import unparse
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.debuglink import find_debug, mismatch
from kinst.image.elf import Elf, open_elf
from kinst.image.elf_file import ElfFile, open_file
from kinst.image.loaded_images import LoadedImages, moved_by
from kinst.image.relocations import placed
from kinst.image.type_files import FileTypes, ImagePaths
from kinst.session.check import with_programs
from kinst.session.compile import compile_request
from kinst.session.expand import expanded
from kinst.session.kernel import RunningKernel
from kinst.session.kernel_files import isa_of_file
from kinst.session.report import Report
from kinst.session.request import Request
from kinst.systems import of_image


class FileImage:
    """ELF file that RunningKernel reads in place of a running kernel; implements Data and
    KernelSystem (session/kernel.py).
    """

    def __init__(self, elf: Elf) -> None:
        self._elf = elf
        self._rules = of_image(elf).of_file(elf)

    def read(self, address: int, size: int) -> bytes:
        return self._elf.read(address, size)

    code = read

    def functions(self) -> Sequence[Function]:
        return self._rules.functions.all

    def lookup(self, name: str) -> Sequence[Function]:
        return self._rules.functions.lookup(name)

    def glob(self, pattern: str) -> Sequence[Function]:
        return self._rules.functions.glob(pattern)

    def function_at(self, address: int) -> Function | None:
        return self._rules.functions.at(address)

    def counterpart(self, name: str) -> str:
        return self._rules.counterpart(name)

    def refusals(self, function: Function) -> str:
        """Return "": only a running kernel has reasons to refuse a function."""
        return ""

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """Return "" for each site: only a running kernel has reasons to refuse sites."""
        return [""] * len(sites)

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return [False] * len(sites)

    def is_fatal(self, address: int) -> bool:
        return self._rules.is_fatal(address)

    def fixup(self, address: int) -> int | None:
        return self._rules.fixup(address)

    def system_calls(self) -> Sequence[SystemCall]:
        """Return an empty tuple: a kernel's system calls are known only while it runs."""
        return ()

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        """Return an empty tuple: a kernel's tracepoints are known only while it runs."""
        return ()

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        return ()

    def dead_ends(self) -> Sequence[str]:
        return self._rules.dead_ends()


def _debug_of(request: Request, file: ElfFile, report: Report) -> ElfFile:
    """Return the ELF file that has the debug information of a request's file.

    If the request has both --kernel and --debug, that is the file of --debug. Otherwise it is the
    request's file itself, or its separate debug file. Raises KinstError if no file has debug
    information, or if the two files do not belong together.
    """
    options = request.machine
    if options.kernel and options.debug:
        debug = open_file(options.debug)
        wrong = "" if debug.path.samefile(file.path) else mismatch(file, debug)
        if wrong:
            raise KinstError(wrong)
        return debug
    found = find_debug(file)
    for warning in found.warnings:
        report.say(f"kinst: {warning}")
    if found.file is None:
        raise KinstError(
            f"{file.path}: no debug information", "install its debug package, or build with -g"
        )
    return found.file


def expand_request_in_file(request: Request, report: Report) -> str:
    """Expand the request's program by the debug information of its file, and return it as D text.

    Raises DError or KinstError.
    """
    path = request.machine.kernel or request.machine.debug
    isa = isa_of_file(path)
    files = DebugFiles(cache_folder(), report.progress)

    @cache
    def debug() -> DebugInfo:
        return files.open(_debug_of(request, open_file(path), report).path)

    paths = ImagePaths(lambda: debug().path, dict, files)
    types = FileTypes(paths, lambda: dialect().tracepoint_prototypes)
    elf = cache(lambda: open_elf(path))

    @cache
    def dialect() -> Dialect:
        return with_libraries(of_image(elf()).dialect(), request.libraries)

    compiled = compile_request(request, isa, target_pid=0, types=types, dialect=dialect)
    if compiled.wants_expansion:
        image = FileImage(placed(elf()))
        kernel = RunningKernel(image, image, isa)
        zero = request.zero or compiled.options.zdefs

        def frame_address(address: int) -> tuple[str, int] | None:
            return debug().frame_address(address, isa.dwarf_registers)

        images = LoadedImages(moved_by(debug(), 0))
        programs = expanded(
            compiled.programs, compiled.types, kernel, images, frame_address, report, zero=zero
        )
        compiled = with_programs(request, compiled, programs, isa)
    return unparse(compiled.tree)
