"""Clauses that a command such as `kinst top` adds to the user's program, to print its aggregations
at intervals.

Tested by tests/cli/test_commands.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kinst.api import ProgramText, Request
from kinst.cli.guard import UsageError
from kinst.errors import KinstError

_TIME = re.compile(r"[1-9][0-9]*(ns|us|ms|s|m|hz)")
_NAMED = re.compile(r"@([a-zA-Z_][0-9a-zA-Z_]*)?")


def tick_of(time: str) -> str:
    """Return the D probe that fires at an interval: "tick-1s".

    Args:
        time: the interval, from --every.

    Raises:
        UsageError: `time` is not an interval.
    """
    if not _TIME.fullmatch(time):
        raise UsageError(f"--every {time}: not an interval", "100ms, 1s, 10hz")
    return f"tick-{time}"


def made_by(programs: Sequence[ProgramText], functions: Sequence[str]) -> list[str]:
    """Return the names of the aggregations that use one of these aggregating functions, in the
    order of the text, each once.

    The programs are searched, not parsed: an aggregation's name follows the last @ before the
    function.

    Args:
        programs: the D programs of the user's command line.
        functions: names of aggregating functions, such as "quantize".

    Raises:
        KinstError: no @ is before the function.
    """
    names: dict[str, None] = {}
    for one in programs:
        for made in re.finditer(rf"=\s*({'|'.join(functions)})\s*\(", one.text):
            before = list(_NAMED.finditer(one.text, 0, made.start()))
            if not before:
                raise KinstError(
                    f"the aggregation of `{made[0]}` is not known: no @NAME stands before it",
                    "--by NAME names the aggregation",
                )
            names[before[-1][1] or ""] = None
    return list(names)


def with_clauses(request: Request, text: str, option: str) -> Request:
    """Return a request with D clauses added to its program.

    Args:
        request: options of the machine and of the program.
        text: the clauses.
        option: the option that adds them, for error messages.
    """
    added = ProgramText("n", text, f"<{option}>")
    return replace(request, programs=(*request.programs, added))
