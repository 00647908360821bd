"""D programs for a machine: the forms in which a client gives them, and the compiled program.

Tested by tests/test_api_docs.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.probe import ProbePattern, ProgramText
from kinst.dlang import typed
from kinst.dlang.syntax.unparse import unparse
from kinst.dlang.vocabulary.d_options import Options
from kinst.dlang.walk import expressions
from kinst.session.compiled import Compiled
from kinst.session.request import Request

PathLike = str | os.PathLike[str]
# A D program: its text, the path of a script, or texts as the command line's options give them.
Source = str | os.PathLike[str] | ProgramText | Sequence[ProgramText]
Setting = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Program:
    """A D program, parsed and checked for one machine. Machine.compile() makes it.

    Attributes:
        request: options of the machine and of the program.
        compiled: the checked program.
        expanded: whether Machine.expand() has replaced inline functions, source lines and local
            variables.
        command: command of the guest whose process id is $target; "" if there is no command.
    """

    request: Request
    compiled: Compiled
    expanded: bool = False
    command: str = ""

    @property
    def text(self) -> str:
        """D text of the program's syntax tree: macros are replaced by their values, and clauses
        with an if are split."""
        return unparse(self.compiled.tree)

    @property
    def options(self) -> Options:
        """Options of the program: from the machine, from the program's pragmas and from
        compile()."""
        return self.compiled.options

    @property
    def descriptions(self) -> Sequence[ProbePattern]:
        """Probe descriptions of the program's clauses."""
        return self.compiled.patterns

    @property
    def wants_expansion(self) -> bool:
        """Whether the program has probe descriptions or variables that expand() must replace with
        the help of the kernel's files."""
        return not self.expanded and self.compiled.wants_expansion

    @property
    def has_stacks(self) -> bool:
        """Whether the program records stacks or uses stacks as keys."""
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
    """Return a request with a program, options and arguments added.

    Args:
        request: options of the machine.
        source: the program.
        options: values of -x options by name; True or None for an option without a value, False to
            leave the option out.
        arguments: values of $1, $2, ...

    Raises:
        KinstError: a script cannot be opened.
    """
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
    """Return the value of an option as text for -x; "" for an option without a value."""
    return "" if value is None or value is True else str(value)
