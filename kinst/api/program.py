"""D programs for a machine: the forms in which they are given, and compiled ones.

Tested by tests/test_api_docs.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.probe import ProbePattern, ProgramText
from kinst.dlang import typed
from kinst.dlang.syntax.unparse import unparse
from kinst.dlang.vocabulary.d_options import Options
from kinst.dlang.walk import expressions
from kinst.session.compiled import Compiled
from kinst.session.request import Request

PathLike = str | os.PathLike[str]
# D text (a script), a script's file, or the options of the command line that name probes.
Source = str | os.PathLike[str] | ProgramText | Sequence[ProgramText]
Setting = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Program:
    """A D program, parsed and checked for one machine; Machine.compile() makes it."""

    request: Request
    compiled: Compiled
    # Inline functions, source lines and local variables have become plain clauses.
    expanded: bool = False
    # The command whose process $target is, "" for none.
    command: str = ""

    @property
    def text(self) -> str:
        """The D text, after syntactic transformation."""
        return unparse(self.compiled.tree)

    @property
    def options(self) -> Options:
        """The options: of the machine, of the program's pragmas and of compile()."""
        return self.compiled.options

    @property
    def descriptions(self) -> Sequence[ProbePattern]:
        """The probe descriptions of its clauses."""
        return self.compiled.patterns

    @property
    def wants_expansion(self) -> bool:
        """Whether it has descriptions or variables that need the kernel's files."""
        return not self.expanded and self.compiled.wants_expansion

    @property
    def has_stacks(self) -> bool:
        """Whether it records stacks or uses them as keys."""
        return any(
            isinstance(expr, typed.RecordedStack) for expr in expressions(self.compiled.program)
        )

    def __str__(self) -> str:
        return self.text


def with_program(
    request: Request,
    source: Source,
    options: Mapping[str, Setting] | None,
    arguments: Iterable[str],
) -> Request:
    """Return the request with a program, options of -x, and $1, $2, ..."""
    texts: tuple[ProgramText, ...]
    if isinstance(source, str):
        texts = (ProgramText("s", source, "<string>"),)
    elif isinstance(source, ProgramText):
        texts = (source,)
    elif isinstance(source, os.PathLike):
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise KinstError(f"failed to open {path}: {error.strerror}") from error
        texts = (ProgramText("s", text, str(path)),)
    else:
        texts = tuple(source)
    settings = [(k, _setting(v)) for k, v in (options or {}).items() if v is not False]
    return replace(
        request,
        programs=texts,
        settings=(*request.settings, *settings),
        arguments=(*request.arguments, *arguments),
    )


def _setting(value: Setting) -> str:
    """Return a setting as -x has it: "" for an option without a value."""
    return "" if value is None or value is True else str(value)
