"""Clauses that a command adds to a program: they print its aggregations at intervals.

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
    """Return the probe that fires at this interval.  Raises UsageError."""
    if not _TIME.fullmatch(time):
        raise UsageError(f"--every {time}: not an interval", "100ms, 1s, 10hz")
    return f"tick-{time}"


def made_by(programs: Sequence[ProgramText], functions: Sequence[str]) -> list[str]:
    """Return the names of the aggregations that these functions are assigned to, in the order of
    the text: that of the last @ before each.  Raises KinstError."""
    names: dict[str, None] = {}
    for one in programs:
        for made in re.finditer(rf"=\s*({'|'.join(functions)})\s*\(", one.text):
            before = list(_NAMED.finditer(one.text, 0, made.start()))
            if not before:
                raise KinstError(f"{made[0]}: no aggregation before it", "--by NAME says which")
            names[before[-1][1] or ""] = None
    return list(names)


def with_clauses(request: Request, text: str, option: str) -> Request:
    """Return the request with one more program text, which this option adds."""
    added = ProgramText("n", text, f"<{option}>")
    return replace(request, programs=(*request.programs, added))
