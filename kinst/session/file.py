"""kinst -d -e with a file and no target: what a program means in the file as it is.

Functions, instructions, inlined copies and source lines come from the ELF file's own symbols,
bytes and DWARF, in the file's own instruction set; nothing is booted and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.paths import cache_folder
from kinst.core.probe import Function
from kinst.dlang.syntax.unparse import unparse
from kinst.image.debuglink import find_debug, mismatch
from kinst.image.dwarf.cfi import open_cfi
from kinst.image.dwarf.file import DebugFile, open_file
from kinst.image.dwarf.index import Index, open_index
from kinst.image.elf import Elf
from kinst.image.orc import open_orc
from kinst.image.placed import open_placed
from kinst.image.type_files import FileTypes, Places
from kinst.session.kernel import RunningKernel
from kinst.session.lines import SourceLines
from kinst.session.locals import FrameAddress, ImageLocals, expand_all
from kinst.session.program import compile_request, with_programs
from kinst.session.report import Report
from kinst.session.target import isa_of_file
from kinst.session.values import Compiled, Request
from kinst.sugar.expand import Sources, expand, has_sugar
from kinst.sugar.lines import expand_lines, has_lines
from kinst.sugar.locals import has_locals
from kinst.systems import of_image


class FileImage:
    """A file in the place of a machine and its system (session.kernel's Data and Names)."""

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

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        """Nothing is refused: what a kernel forbids is known when it runs."""
        return [""] * len(sites)

    def is_fatal(self, address: int) -> bool:
        return self._rules.is_fatal(address)

    def fixup(self, address: int) -> int | None:
        return self._rules.fixup(address)

    def dead_ends(self) -> Sequence[str]:
        return self._rules.dead_ends()


def _debug_of(request: Request, file: DebugFile, report: Report) -> DebugFile:
    """The file with the debug information: --debug beside --kernel, or the file's own."""
    if request.kernel and request.debug:
        debug = open_file(request.debug)
        wrong = "" if debug.path.samefile(file.path) else mismatch(file, debug)
        if wrong:
            raise KinstError(wrong)
        return debug
    found = find_debug(file)
    for warning in found.warnings:
        report.say(f"kinst: warning: {warning}")
    if found.file is None:
        raise KinstError(
            f"{file.path}: no debug information", "install its debug package, or build with -g"
        )
    return found.file


def expand_request_in_file(request: Request, report: Report) -> str:
    """The request's program as it is in its file, as D.  Raises DError, KinstError."""
    path = request.kernel or request.debug
    isa = isa_of_file(path)

    def progress(part: float) -> None:
        report.progress("indexing debug information", part)

    @cache
    def debug() -> DebugFile:
        return _debug_of(request, open_file(path), report)

    types = FileTypes(Places(lambda: debug().path, dict, cache_folder(), progress))
    compiled = compile_request(request, isa, target_pid=0, types=types)
    if has_sugar(compiled.tree) or has_lines(compiled.tree) or has_locals(compiled.tree):
        image = FileImage(open_placed(path))
        kernel = RunningKernel(image, image, isa)
        compiled = _expanded(request, compiled, kernel, debug(), report)
        if has_locals(compiled.tree):
            frames = _frames(debug().path, isa)
            known = ImageLocals(kernel, frames, 0, types, lambda module: None)
            compiled = expand_all(request, compiled, known, isa, report)
    return unparse(compiled.tree)


def _frames(path: Path, isa: Isa) -> FrameAddress:
    """Where the canonical frame is: by ORC, else by call frame information."""
    elf = open_placed(str(path))
    orc, cfi = open_orc(elf), open_cfi(elf)
    names = isa.dwarf_registers

    def frame_address(address: int) -> tuple[str, int] | None:
        if orc is not None:
            known = orc.rule(address)
            return None if known is None else (known.register, known.offset)
        rule = cfi.rule(address) if cfi is not None else None
        if rule is None or rule.register >= len(names) or not names[rule.register]:
            return None
        return names[rule.register], rule.offset

    return frame_address


def _expanded(
    request: Request, compiled: Compiled, kernel: RunningKernel, debug: DebugFile, report: Report
) -> Compiled:
    def progress(part: float) -> None:
        report.progress("indexing debug information", part)

    lines = SourceLines(debug.path, 0, kernel, report)
    index: Index = open_index(debug, cache_folder(), progress)
    zero = request.zero or compiled.options.zdefs
    programs, notes = [], list[str]()
    for program in compiled.programs:
        one = expand(
            expand_lines(program, lines.find), Sources(kernel, index, 0), zero=zero
        )  # fmt: skip
        programs.append(one.program)
        notes += one.notes
    for note in dict.fromkeys(notes):
        report.detail(f"kinst: {note}")
    return with_programs(request, tuple(programs), kernel.isa, compiled.types)
