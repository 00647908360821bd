"""The command of a traced program: one program with its arguments, which kinst executes without a
shell.

Tested by tests/machines/process/test_command.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from dataclasses import dataclass

from kinst.core.errors import TargetError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# Characters that a shell would act on outside of quotes, except those of words and quotes.
_OF_SHELLS = frozenset("|&;<>()$`*?[]~#{}!\n")
_ONE = "one program and its arguments; kinst's own input and output are the program's"


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A command without any work for a shell.

    Attributes:
        words: name and arguments of the program.
        path: path of the program's file.
        variables: environment variables that the command sets.
    """

    words: tuple[str, ...]
    path: str
    variables: dict[str, str]


def simple_command(command: str) -> SimpleCommand:
    """Return the program that a command executes, and its arguments. Quotes have the meaning that
    they have in sh(1), and the program is searched for in PATH.

    Raises:
        TargetError: there is no such program, the command needs a shell, or the program may not be
            traced.
    """
    for_shell = sorted(_OF_SHELLS & {*_unquoted(command)})
    if for_shell:
        raise TargetError(f"-c {command}: {for_shell[0]!r} needs a shell", _ONE)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise TargetError(f"-c {command}: {error}", _ONE) from error
    variables = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if not words:
        raise TargetError(f"-c {command}: no program", _ONE)
    path = shutil.which(words[0], path=variables.get("PATH"))
    if path is None:
        raise TargetError(f"-c {command}: no program {words[0]}")
    _check_file(path)
    return SimpleCommand(tuple(words), path, variables)


def _unquoted(command: str) -> str:
    """Return a command without its quoted parts and without characters after a backslash."""
    return re.sub(r"\\.|'[^']*'|\"(?:\\.|[^\"\\$`])*\"", "", command, flags=re.DOTALL)


def _check_file(path: str) -> None:
    """Raise TargetError if a file is a script, or gets more rights than its user has."""
    if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid():
        raise TargetError(
            f"{path} is set-user-ID or set-group-ID, and would lose that under kinst",
            "run kinst as that user",
        )
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror}") from error
    if first.startswith(b"#!"):
        interpreter = first[2:].decode(errors="replace").strip()
        raise TargetError(f"{path} is a script", f"-c '{interpreter} {path} ...'")
