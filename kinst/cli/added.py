"""Clauses that a command adds to a program: those that print its aggregations every so often.

Tested by tests/cli/test_commands.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kinst.api import ProgramText
from kinst.cli.guard import UsageError
from kinst.cli.options import CommandLine
from kinst.errors import KinstError

_TIME = re.compile(r"[1-9][0-9]*(ns|us|ms|s|m|hz)")
_NAMED = re.compile(r"@([a-zA-Z_][0-9a-zA-Z_]*)?")


def tick_of(time: str) -> str:
    """The probe that fires every so often.  Raises UsageError."""
    if not _TIME.fullmatch(time):
        raise UsageError(f"--every {time}: not a time", "100ms, 1s, 10hz")
    return f"tick-{time}"


def made_by(programs: Sequence[ProgramText], functions: Sequence[str]) -> list[str]:
    """The names of the aggregations that these functions are assigned to, in the order of the
    text: of the last @ before each.  Raises KinstError."""
    found: dict[str, None] = {}
    for one in programs:
        for made in re.finditer(rf"=\s*({'|'.join(functions)})\s*\(", one.text):
            before = list(_NAMED.finditer(one.text, 0, made.start()))
            if not before:
                raise KinstError(f"{made[0]}: which aggregation?", "--by names it")
            found[before[-1][1] or ""] = None
    return list(found)


def with_clauses(line: CommandLine, text: str, option: str) -> CommandLine:
    """The command line with one more program text.  option: for whose sake."""
    added = ProgramText("n", text, f"<{option}>")
    return replace(line, request=replace(line.request, programs=(*line.request.programs, added)))
