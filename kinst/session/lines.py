"""Source lines of the running kernel's instructions, from its debug file's line tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie
from kinst.core.kernel import Kernel, no_function
from kinst.core.paths import cache_folder
from kinst.core.probe import Function, ProbePattern
from kinst.image.dwarf.file import open_file
from kinst.image.dwarf.index import Index, open_index
from kinst.image.dwarf.lines import Lines, LineSpan
from kinst.session.modules import Move, mover, own_file
from kinst.session.report import Report
from kinst.session.target import module_folders
from kinst.session.values import Files, TracedMachine
from kinst.sugar.lines import Line

MASK = (1 << 64) - 1
KERNEL = "vmlinux"  # the module of the kernel proper's functions
NEAR = 3  # lines with code that are named when the wanted one has none


class _Lined:
    """One image's debug file.  move: its index's addresses to running ones; back: from them."""

    def __init__(self, debug: Path, move: Move, back: Move, report: Report) -> None:
        self.debug = debug
        self.move = move
        self.back = back
        self._report = report

    @cached_property
    def index(self) -> Index:
        def progress(part: float) -> None:
            self._report.progress("indexing debug information", part)

        return open_index(self.debug, cache_folder(), progress)

    @cached_property
    def lines(self) -> Lines:
        return Lines(open_file(self.debug), self.index)


# A module's name to its debug file; None for one that has none.
ModuleFiles = Callable[[str], tuple[Path, Move, Move] | None]


def no_modules(name: str) -> None:
    """For files and kernels whose modules are not looked at."""
    return None


def stem_of(function: Function) -> str:
    """The name in the debug information: name@2 and name.isra.0 are name there."""
    return function.name.partition("@")[0].partition(".")[0]


# Room for ftrace (-fpatchable-function-entry) that a function's symbol counts to it, and its
# debug information does not.
AHEAD = 16


def _holding(dies: Sequence[FunctionDie], address: int) -> FunctionDie | None:
    """The first of them whose code holds an address of the index, or begins just behind it."""
    for room in (0, AHEAD):
        for die in dies:
            if any(low - room <= address < high for low, high in die.ranges):
                return die
    return None


class SourceLines:
    """Lines of functions of the kernel proper, and of its modules by their debug files."""

    def __init__(
        self,
        debug: Path,
        slide: int,
        kernel: Kernel,
        report: Report,
        modules: ModuleFiles = no_modules,
    ) -> None:
        self._kernel = kernel
        self._report = report
        self._modules = modules
        self._own = _Lined(debug, lambda a: a + slide & MASK, lambda a: a - slide & MASK, report)
        self._files: dict[str, _Lined] = {}
        self._dies: dict[int, FunctionDie | None] = {}

    def _file(self, function: Function) -> _Lined:
        name = function.module
        if name not in self._files:
            found = self._modules(name) if name != KERNEL else None
            self._files[name] = _Lined(*found, self._report) if found else self._own
        return self._files[name]

    def _die(self, function: Function) -> FunctionDie | None:
        """The debug information of a function: the one whose code starts where it does."""
        if function.address not in self._dies:
            file = self._file(function)
            linked = file.back(function.address)
            self._dies[function.address] = (
                None
                if linked is None
                else _holding(file.index.functions(stem_of(function)), linked)
            )
        return self._dies[function.address]

    def at(self, function: Function, address: int) -> str:
        """file:line of an instruction, or "" where that is not known."""
        die = self._die(function)
        file = self._file(function)
        linked = file.back(address) if die else None
        span = file.lines.at(die.unit, linked) if die and linked is not None else None
        return f"{span.file}:{span.line}" if span else ""

    def _spans(self, function: Function, line: Line) -> Sequence[LineSpan]:
        die = self._die(function)
        if die is None:
            raise KinstError(f"no debug information tells the lines of {function.name}")
        lines = self._file(function).lines
        file = line.file or Path(die.decl_file).name
        found = lines.of_line(die.unit, file, line.number, die.ranges)
        if found:
            return found
        tail = "/" + file.lstrip("/")
        has = {
            span.line
            for span in lines.spans(die.unit)
            if ("/" + span.file).endswith(tail)
            and any(low <= span.low < high for low, high in die.ranges)
        }
        near = sorted(sorted(has, key=lambda n: abs(n - line.number))[:NEAR])
        raise KinstError(
            f"{function.name} has no instruction of {file}:{line.number}",
            f"lines near it that have: {', '.join(map(str, near))}" if near else "",
        )

    def find(self, line: Line) -> Sequence[ProbePattern]:
        """The instructions of a line, as descriptions.  Raises KinstError where there is none."""
        functions = self._kernel.find(line.module, line.function)
        if not functions:
            raise no_function(self._kernel, line.module, line.function)
        found = []
        for function in functions:
            move = self._file(function).move
            spans = [(move(s.low), s.high - s.low) for s in self._spans(function, line)]
            for instruction in self._kernel.instructions(function):
                at = instruction.address
                if any(low is not None and 0 <= at - low < size for low, size in spans):
                    offset = str(instruction.address - function.address)
                    found.append(ProbePattern("kinst", function.module, function.name, offset))
        return found


def module_files(traced: TracedMachine, files: Files | None, report: Report) -> ModuleFiles:
    """Debug files of the loaded modules, each looked for when it is first asked for."""

    def find(name: str) -> tuple[Path, Move, Move] | None:
        if traced.target is None or traced.personality is None or files is None:
            return None
        module = next((m for m in traced.personality.modules() if m.name == name), None)
        if module is None:
            return None
        try:
            folders = module_folders(files, traced.isa, report.progress)
            elf = own_file(traced.target, module, folders, report.say)
            return (elf.path, *mover(open_file(elf.path), module, 0)) if elf else None
        except KinstError as error:
            report.say(f"kinst: no source lines of module {name}: {error}")
            return None

    return find


def source_of(
    traced: TracedMachine, files: Files | None, report: Report
) -> Callable[[Function, int], str]:
    """(function, address) to file:line, or "" where debug files do not tell."""
    if traced.kernel is None or traced.facts is None or traced.debug is None:
        return lambda function, address: ""
    modules = module_files(traced, files, report)
    lines = SourceLines(traced.debug, traced.facts.slide, traced.kernel, report, modules)
    told: list[KinstError] = []

    def source(function: Function, address: int) -> str:
        if told:
            return ""
        try:
            return lines.at(function, address)
        except KinstError as error:
            told.append(error)
            report.say(f"kinst: no source lines: {error}")
            return ""

    return source
