"""The reports of dtrace(1)'s -v: the stability of programs and of probes."""

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
    """Return the report of one -n, -s, ...; `what` is description 'BEGIN' or script 'file'."""
    return (
        f"\nStability attributes for {what}:\n"
        + _block("Minimum Probe Description Attributes", description)
        + _block("Minimum Statement Attributes", statements)
    )


def probe_report(probe: Attributes, args: Attributes, types: Sequence[str]) -> str:
    """Return the report of one probe; `types` are those of its args[], as C spells them."""
    shown = [f"\t\targs[{n}]: {name}\n" for n, name in enumerate(types)] or ["\t\tNone\n"]
    return (
        _block("Probe Description Attributes", probe)
        + _block("Argument Attributes", args)
        + "\n\tArgument Types\n"
        + "".join(shown)
        + "\n"
    )
