"""kinst::F:entry and kinst::F:return in a session: the index is opened, the program expanded."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.errors import KinstError
from kinst.core.inline import DebugIndex, FunctionDie, InlineCopy
from kinst.image.btf import cache_folder
from kinst.image.dwarf import open_index
from kinst.image.elf import Elf
from kinst.session_machine import Traced
from kinst.session_program import Compiled, with_programs
from kinst.session_report import Report
from kinst.session_request import Request
from kinst.sugar.expand import Sources, expand, has_sugar


def wants_expansion(compiled: Compiled) -> bool:
    """Whether the program has descriptions that mean inline functions."""
    return has_sugar(compiled.tree)


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


def _index(elf: Elf, report: Report) -> DebugIndex:
    def progress(part: float) -> None:
        report.progress("indexing debug information", part)

    try:
        return open_index(elf, cache_folder(), progress)
    except KinstError as error:
        report.say(f"kinst: inline functions cannot be found: {error}")
        return NoIndex()


def expanded(
    request: Request,
    compiled: Compiled,
    traced: Traced,
    elf: Elf,
    report: Report,
) -> Compiled:
    """The request compiled anew with every such description replaced (kinst.sugar.expand).

    elf: the kernel's, with debug information; without it every function is a plain one.
    Raises DError at a description that means nothing.
    """
    if not wants_expansion(compiled):
        return compiled
    if traced.kernel is None or traced.facts is None:
        raise KinstError("a function's entry and return can be traced only in a kernel")
    sources = Sources(traced.kernel, _index(elf, report), traced.facts.slide)
    programs, notes = [], list[str]()
    for program in compiled.programs:
        one = expand(program, sources)
        programs.append(one.program)
        notes += one.notes
    for note in dict.fromkeys(notes):
        report.detail(f"kinst: {note}")
    report.stage("inline functions")
    return with_programs(request, tuple(programs), traced.isa)
