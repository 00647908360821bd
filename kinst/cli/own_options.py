"""Options of a command that has a name, taken out of what kinst itself knows.

Tested by tests/cli/test_commands.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kinst.cli.guard import UsageError


def own_options(
    words: Sequence[str], *, values: Collection[str] = (), flags: Collection[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """(the other words, the options that were given and their values, "" for flags).

    values, flags: long options that take a value (--name VALUE, --name=VALUE), and that do not.
    Raises UsageError."""
    rest: list[str] = []
    found: dict[str, str] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            return [*rest, word, *left], found
        if name in values:
            given = value if equals else next(left, None)
            if given is None:
                raise UsageError(f"{name} needs a value")
            found[name] = given
        elif word in flags:
            found[word] = ""
        else:
            rest.append(word)
    return rest, found
