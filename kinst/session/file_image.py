"""Expansion in a file without a target (kinst -d -e): what a program means in the file as it is.

Functions, instructions, inlined copies and source lines come from the ELF file's own symbols, bytes
and DWARF, in the file's own instruction set; nothing is booted and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from kinst.core.dialect import Dialect
from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.core.probe import Function
from kinst.core.system import SystemCall
from kinst.dlang.syntax.unparse import unparse
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.debuglink import find_debug, mismatch
from kinst.image.elf import Elf, open_elf
from kinst.image.elf_file import ElfFile, open_file
from kinst.image.loaded_images import LoadedImages, moved_by
from kinst.image.relocations import placed
from kinst.image.type_files import FileTypes, ImagePaths
from kinst.session.compile import compile_request, with_programs
from kinst.session.expand import expanded
from kinst.session.kernel import RunningKernel
from kinst.session.kernel_files import isa_of_file
from kinst.session.report import Report
from kinst.session.request import Request
from kinst.systems import of_image


class FileImage:
    """File that replaces a machine and its system (session.kernel's Data and KernelSystem)."""

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
        """Return nothing: the file's system is not asked for names."""
        return ""

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """Refuse nothing: a running kernel's refusals are not known."""
        return [""] * len(sites)

    def left(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return [False] * len(sites)

    def is_fatal(self, address: int) -> bool:
        return self._rules.is_fatal(address)

    def fixup(self, address: int) -> int | None:
        return self._rules.fixup(address)

    def system_calls(self) -> Sequence[SystemCall]:
        """Return none: a kernel's system calls are known when it runs."""
        return ()

    def dead_ends(self) -> Sequence[str]:
        return self._rules.dead_ends()


def _debug_of(request: Request, file: ElfFile, report: Report) -> ElfFile:
    """Return the file with the debug information: --debug next to --kernel, or the file itself."""
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
    """Return the request's program as expanded in its file, as D.  Raises DError, KinstError."""
    path = request.machine.kernel or request.machine.debug
    isa = isa_of_file(path)
    files = DebugFiles(cache_folder(), partial(report.progress, "indexing debug information"))

    @cache
    def debug() -> DebugInfo:
        return files.open(_debug_of(request, open_file(path), report).path)

    types = FileTypes(ImagePaths(lambda: debug().path, dict, files))
    elf = cache(lambda: open_elf(path))

    def dialect() -> Dialect:
        return of_image(elf()).dialect()

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
