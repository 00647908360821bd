"""Macro arguments $0 $1 ... and macro variables $pid $target ... (Dynamic Tracing Guide,
"Scripting")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst.core.errors import DError, Span

_REFERENCE = re.compile(r"\$\$?([0-9]+|[a-zA-Z_][0-9a-zA-Z_]*)")
NUMBER_OR_NAME = re.compile(
    r"(?:[-+]?(?:0[xX][0-9A-Fa-f]+|[0-9]+)[uU]?[lL]?[lL]?|[a-zA-Z_`][0-9a-zA-Z_`]*)\Z"
)


@dataclass(frozen=True, slots=True)
class Macros:
    """What $... stands for.

    arguments: $0 (the script's name) and the operands of the command, $1, $2, ...
    variables: pid, target, uid, euid, gid, egid, ppid, pgid, sid, tid, ... by name.
    defaultargs: undefined arguments are 0 or "", and unused ones are no error.
    argref: unused ones are no error.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, int] = field(default_factory=dict)
    defaultargs: bool = False
    argref: bool = False


class MacroUse:
    """Looks macros up and remembers which arguments a program used."""

    def __init__(self, macros: Macros) -> None:
        self.macros = macros
        self.defaultargs = macros.defaultargs
        self.argref = macros.argref
        self._used: set[int] = set()

    def argument(self, reference: str, span: Span, default: str) -> str:
        """The text of $N (reference as written).  Raises DError D_MACRO_UNDEF."""
        digits = reference.lstrip("$").lstrip("0") or "0"
        index = int(digits) if len(digits) < 10 else 10**9
        if index < len(self.macros.arguments):
            self._used.add(index)
            return self.macros.arguments[index]
        if self.defaultargs:
            return default
        raise DError(
            f"macro argument {reference[:24]} is not defined",
            span,
            "D_MACRO_UNDEF",
            f"{max(0, len(self.macros.arguments) - 1)} given; -x defaultargs makes it 0",
        )

    def variable(self, reference: str, span: Span) -> int:
        """The value of $name.  Raises DError D_MACRO_UNDEF."""
        name = reference.lstrip("$")
        if name not in self.macros.variables:
            known = " ".join(f"${v}" for v in sorted(self.macros.variables))
            raise DError(
                f"macro variable {reference[:40]} is not defined",
                span,
                "D_MACRO_UNDEF",
                f"defined: {known}" if known else "",
            )
        return self.macros.variables[name]

    def expand(self, text: str, span: Span) -> str:
        """A probe description with every macro replaced by its text."""

        def replace(match: re.Match[str]) -> str:
            if match.group(1)[0].isdigit():
                return self.argument(match.group(), span, "")
            return str(self.variable(match.group(), span))

        return _REFERENCE.sub(replace, text)

    def check_used(self, span: Span) -> None:
        """As dtrace(1), only the last argument has to be referenced: it shows a wrong count.

        Raises DError D_MACRO_UNUSED.
        """
        last = len(self.macros.arguments) - 1
        if last >= 1 and last not in self._used and not (self.defaultargs or self.argref):
            raise DError(
                f"extraneous argument '{self.macros.arguments[last]}' (${last} is not referenced)",
                span,
                "D_MACRO_UNUSED",
            )
