"""Source lines of the running kernel's instructions, from its debug file's line tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie
from kinst.core.paths import cache_folder
from kinst.core.probe import Function, ProbePattern
from kinst.image.dwarf import Index, open_index
from kinst.image.dwarf_file import open_file
from kinst.image.lines import Lines, LineSpan
from kinst.session_kernel import RunningKernel
from kinst.session_machine import Traced
from kinst.session_report import Report
from kinst.sugar.lines import Line

MASK = (1 << 64) - 1
NEAR = 3  # lines with code that are named when the wanted one has none


class SourceLines:
    """Lines of functions of the kernel proper; modules have none here."""

    def __init__(self, debug: Path, slide: int, kernel: RunningKernel, report: Report) -> None:
        self._debug = debug
        self._slide = slide
        self._kernel = kernel
        self._report = report
        self._dies: dict[int, FunctionDie | None] = {}

    @cached_property
    def _index(self) -> Index:
        def progress(part: float) -> None:
            self._report.progress("indexing debug information", part)

        return open_index(self._debug, cache_folder(), progress)

    @cached_property
    def _lines(self) -> Lines:
        return Lines(open_file(self._debug), self._index)

    def _die(self, function: Function) -> FunctionDie | None:
        """The debug information of a function: the one whose code starts where it does."""
        if function.address not in self._dies:
            linked = function.address - self._slide & MASK
            # name@2 and name.isra.0 are name in the debug information.
            stem = function.name.partition("@")[0].partition(".")[0]
            self._dies[function.address] = next(
                (
                    die
                    for die in self._index.functions(stem)
                    if any(low <= linked < high for low, high in die.ranges)
                ),
                None,
            )
        return self._dies[function.address]

    def at(self, function: Function, address: int) -> str:
        """file:line of an instruction, or "" where that is not known."""
        die = self._die(function)
        span = self._lines.at(die.unit, address - self._slide & MASK) if die else None
        return f"{span.file}:{span.line}" if span else ""

    def _spans(self, function: Function, line: Line) -> Sequence[LineSpan]:
        die = self._die(function)
        if die is None:
            raise KinstError(f"no debug information tells the lines of {function.name}")
        file = line.file or Path(die.decl_file).name
        found = self._lines.of_line(die.unit, file, line.number, die.ranges)
        if found:
            return found
        tail = "/" + file.lstrip("/")
        has = {
            span.line
            for span in self._lines.spans(die.unit)
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
            raise KinstError(
                f'no function named "{line.function}"', self._kernel.suggest(line.function)
            )
        found = []
        for function in functions:
            spans = [
                (s.low + self._slide & MASK, s.high - s.low) for s in self._spans(function, line)
            ]
            for instruction in self._kernel.instructions(function):
                if any(0 <= instruction.address - low < size for low, size in spans):
                    offset = str(instruction.address - function.address)
                    found.append(ProbePattern("kinst", function.module, function.name, offset))
        return found


def source_of(traced: Traced, report: Report) -> Callable[[Function, int], str]:
    """(function, address) to file:line, or "" where the kernel's debug file does not tell."""
    if traced.kernel is None or traced.facts is None or traced.debug is None:
        return lambda function, address: ""
    lines = SourceLines(traced.debug, traced.facts.slide, traced.kernel, report)
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
