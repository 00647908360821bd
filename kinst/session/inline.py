"""kinst::F:entry and kinst::F:return in a session: the index is opened, the program expanded."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.errors import KinstError
from kinst.core.inline import DebugIndex, FunctionDie, InlineCopy
from kinst.core.paths import cache_folder
from kinst.image.dwarf.index import open_index
from kinst.image.elf import Elf
from kinst.session.lines import SourceLines, module_files
from kinst.session.modules import JoinedIndex, module_indexes
from kinst.session.program import with_programs
from kinst.session.report import Report
from kinst.session.target import module_folders
from kinst.session.values import Compiled, Files, Request, TracedMachine
from kinst.sugar.expand import Sources, expand, has_sugar
from kinst.sugar.lines import expand_lines, has_lines
from kinst.sugar.locals import has_locals


def wants_expansion(compiled: Compiled) -> bool:
    """Whether the program has descriptions that mean inline functions or source lines."""
    tree = compiled.tree
    return has_sugar(tree) or has_lines(tree) or has_locals(tree)


class NoIndex:
    """The index of a file without debug information."""

    def functions(self, name: str) -> Sequence[FunctionDie]:
        return ()

    def copies(self, name: str) -> Sequence[InlineCopy]:
        return ()

    def inline_names(self) -> Sequence[str]:
        return ()

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        return ()


def _index(elf: Elf, files: Files, traced: TracedMachine, report: Report) -> DebugIndex:
    """The kernel's index, joined with those of the loaded modules whose debug files are found."""

    def progress(part: float) -> None:
        report.progress("indexing debug information", part)

    def open_one(file: Elf) -> DebugIndex:
        return open_index(file.path, cache_folder(), progress)

    try:
        own = open_one(elf)
    except KinstError as error:
        report.say(f"kinst: inline functions cannot be found: {error}")
        own = NoIndex()
    if traced.target is None or traced.personality is None:
        return own
    modules = traced.personality.modules()
    if not modules:
        return own
    try:
        folders = module_folders(files, traced.isa, report.progress)
    except KinstError as error:
        report.say(f"kinst: debug files of modules: {error}")
        folders = list(files.folders)
    slide = traced.personality.facts.slide
    more = module_indexes(traced.target, modules, folders, slide, open_one, report.say)
    return JoinedIndex([own, *more])


def expanded(
    request: Request,
    compiled: Compiled,
    traced: TracedMachine,
    elf: Elf,
    files: Files,
    report: Report,
) -> Compiled:
    """The request compiled anew with every such description replaced (kinst.sugar.expand).

    elf: the kernel's, with debug information; without it every function is a plain one.
    files: where debug files of modules are.
    Raises DError at a description that means nothing.
    """
    if not (has_sugar(compiled.tree) or has_lines(compiled.tree)):
        return compiled
    if traced.kernel is None or traced.facts is None:
        raise KinstError("a function's entry and return can be traced only in a kernel")
    modules = module_files(traced, files, report)
    lines = SourceLines(elf.path, traced.facts.slide, traced.kernel, report, modules)
    lined = [expand_lines(program, lines.find) for program in compiled.programs]
    if not any(has_sugar(program) for program in lined):
        report.stage("source lines")
        return with_programs(request, tuple(lined), traced.isa, compiled.types)
    sources = Sources(traced.kernel, _index(elf, files, traced, report), traced.facts.slide)
    programs, notes = [], list[str]()
    zero = request.zero or compiled.options.zdefs
    for program in lined:
        one = expand(program, sources, zero=zero)
        programs.append(one.program)
        notes += one.notes
    for note in dict.fromkeys(notes):
        report.detail(f"kinst: {note}")
    report.stage("inline functions")
    return with_programs(request, tuple(programs), traced.isa, compiled.types)
