"""What actions do in kinst's own process: system(), freopen(), ftruncate(), setopt()."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TextIO

from kinst.consumer.aggprint import AggOptions
from kinst.consumer.printer import Display, Effects
from kinst.consumer.stacks import Names
from kinst.core.errors import KinstError
from kinst.dlang.vocabulary.d_options import COMPILE_TIME, DYNAMIC, NAMES, Options
from kinst.session.report import Report


def display_of(options: Options, names: Callable[[int], Names]) -> Display:
    """How these options show things.  names: by the indentation of stacks."""
    return Display(
        quiet=options.quiet,
        flow=options.flowindent,
        aggregations=AggOptions(
            agghist=options.agghist,
            aggpack=options.aggpack,
            aggsortkey=options.aggsortkey,
            aggsortrev=options.aggsortrev,
            aggzoom=options.aggzoom,
            aggsortkeypos=options.aggsortkeypos,
            aggsortpos=options.aggsortpos,
            encoding=options.encoding,
            rawbytes=options.rawbytes,
            names=names(options.stackindent),
        ),
    )


class Outlet:
    """Where the program's output goes, and what its actions do.  options: as they are now."""

    def __init__(self, report: Report, options: Options, names: Callable[[int], Names]) -> None:
        self._report = report
        self._names = names
        self._file: TextIO | None = None
        self.options = options

    def write(self, text: str) -> None:
        if self._file is None:
            self._report.write(text)
            return
        self._file.write(text)
        self._file.flush()

    def effects(self) -> Effects:
        return Effects(self._system, self._reopen, self._truncate, self._set)

    def display(self) -> Display:
        return display_of(self.options, self._names)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _system(self, command: str) -> None:
        """By the host's shell, to its end; what it prints goes where kinst's output goes."""
        text = command.encode("utf-8", "surrogateescape")
        subprocess.run(["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, check=False)

    def _reopen(self, path: str) -> None:
        self.close()
        if path:
            try:
                self._file = open(  # noqa: SIM115
                    path, "a", encoding="utf-8", errors="surrogateescape"
                )
            except OSError as error:
                self._report.say(f"dtrace: failed to freopen {path}: {error.strerror}")

    def _truncate(self) -> None:
        if self._file is not None:
            self._file.truncate(0)
        elif self._report.truncate is not None:
            self._report.truncate()

    def _set(self, name: str, value: str) -> Display:
        wrong = ""
        if name not in NAMES:
            wrong = "Invalid option name"
        elif name not in DYNAMIC | COMPILE_TIME:
            wrong = "Operation illegal when tracing is active"
        else:
            try:
                changed = self.options.with_option(name, value)
                self.options = changed if name in DYNAMIC else self.options
            except KinstError:
                wrong = "Invalid value for specified option"
        if wrong:
            self._report.say(f'dtrace: couldn\'t set option "{name}" to "{value}": {wrong}')
        return self.display()
