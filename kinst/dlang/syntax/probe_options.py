"""The command line's probe options: -P -m -f -n -i, each with an optional predicate and
actions behind the description."""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.errors import KinstError
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.macros import Macros
from kinst.dlang.syntax.program import Level, parse

LEVELS = {
    "P": Level.PROVIDER,
    "m": Level.MODULE,
    "f": Level.FUNCTION,
    "n": Level.NAME,
    "i": Level.NAME,
}


def parse_option(
    option: str,
    value: str,
    macros: Macros | None = None,
    *,
    ordinal: int = 1,
    part: bool = False,
    knows_type: Callable[[str], bool] | None = None,
) -> tree.Program:
    """The program of one option, such as ("f", "vfs_read /pid == 1/ { trace(arg0); }").

    option: the letter without its dash.  ordinal: which of several such options it is, from
    1; errors name it as "-n argument" or "-n argument 2", with line and column in the value.
    part: as in parse().
    Raises DError (any value gives a program or a DError); KinstError for -i without a number.
    """
    level = LEVELS[option]
    name = f"-{option} argument" + (f" {ordinal}" if ordinal > 1 else "")
    program = parse(value, name, macros, level=level, part=part, knows_type=knows_type)
    if option == "i":
        for clause in program.clauses:
            for description in clause.descriptions:
                if not description.pattern.id:
                    written = str(description.pattern).lstrip(":")[:80]
                    message = f"{name}: {written!r} is not a probe id"
                    raise KinstError(message, "-n takes probe names")
    return program
