"""Text of the stability reports that dtrace(1) prints with -v, for programs and for probes."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.stability import CLASSES, LEVELS, Attributes


def _block(title: str, found: Attributes) -> str:
    return (
        f"\n\t{title}\n"
        f"\t\tIdentifier Names: {LEVELS[found.name]}\n"
        f"\t\tData Semantics:   {LEVELS[found.data]}\n"
        f"\t\tDependency Class: {CLASSES[found.dependency]}\n"
    )


def program_report(what: str, description: Attributes, statements: Attributes) -> str:
    """Return the stability report of one program option (-n, -s, ...).

    Args:
        what: the option's name in the report, such as "description BEGIN" or "script FILE", from
            messages.described().
        description: the lowest stability of its probe descriptions.
        statements: the lowest stability of its statements.
    """
    return (
        f"\nStability attributes for {what}:\n"
        + _block("Minimum Probe Description Attributes", description)
        + _block("Minimum Statement Attributes", statements)
    )


def probe_report(probe: Attributes, args: Attributes, types: Sequence[str]) -> str:
    """Return the stability report of one probe.

    Args:
        probe: stability of the probe's description.
        args: stability of its arguments.
        types: types of args[0], args[1], ..., as C writes them.
    """
    shown = [f"\t\targs[{n}]: {name}\n" for n, name in enumerate(types)] or ["\t\tNone\n"]
    return (
        _block("Probe Description Attributes", probe)
        + _block("Argument Attributes", args)
        + "\n\tArgument Types\n"
        + "".join(shown)
        + "\n"
    )
