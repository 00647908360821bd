"""The inlinecall command: it prints where an inline function is declared, and where its inlined
copies are.

The output has the format of Christos Margiolis' inlinecall(1). The command needs no target. Once
the index of the file's debug information exists, it needs only the standard library, and answers in
a tenth of a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kinst.cli.guard import UsageError, guarded, say, standard_files, write
from kinst.cli.progress import Progress
from kinst.inlines import CopyOfInline, InlineFunction, inline_functions
from kinst.version import __version__

USAGE = "usage: inlinecall [--json] FUNCTION FILE\n"
HELP = f"""{USAGE}
Print where the inline function FUNCTION is declared in the ELF file FILE, and for each copy of
it the addresses of its code, where it was called, and the function that it is in.

  --json     one JSON list instead, with addresses as numbers
  --help     this text
  --version  the version of kinst
"""


@dataclass(frozen=True, slots=True)
class InlinecallOptions:
    """Options of inlinecall's command line."""

    function: str
    file: str
    json: bool


def parse(words: Sequence[str]) -> InlinecallOptions:
    """Return the options of a command line without the program's name. Raises UsageError."""
    names, as_json, options = [], False, True
    for word in words:
        if options and word == "--":
            options = False
        elif options and word == "--json":
            as_json = True
        elif options and word.startswith("-") and len(word) > 1:
            raise UsageError(f"unknown option {word}", "inlinecall --help")
        else:
            names.append(word)
    if len(names) != 2 or not names[0]:
        raise UsageError("a function and a file are needed", "inlinecall FUNCTION FILE")
    return InlinecallOptions(names[0], names[1], as_json)


def location(file: str, line: int) -> str:
    """Return "file:line"; "" if the file or the line is not known."""
    return f"{file}:{line}" if file else ""


def _columns(bounds: str, called: str, caller: str) -> str:
    return "".join(
        f"\t{text}" for text in (bounds, called, f"{caller}()" if caller else "") if text
    )


def as_text(functions: Sequence[InlineFunction]) -> str:
    """Return inline functions as text in inlinecall(1)'s format: a line for each declaration, and a
    line for each address range of a copy."""
    lines = []
    for function in functions:
        lines.append(location(function.decl_file, function.decl_line) or function.name)
        for copy in function.copies:
            called = location(copy.call_file, copy.call_line)
            for part in copy.ranges:
                lines.append(_columns(f"[{part.low:#x} - {part.high:#x}]", called, part.caller))
            if not copy.ranges:
                lines.append(_columns("[no code]", called, copy.caller))
    return "".join(f"{line}\n" for line in lines)


def copy_as_json(copy: CopyOfInline) -> dict[str, object]:
    """Return an inlined copy as an object for --json; a fact that the file does not have is
    None."""
    return {
        "entry": copy.entry,
        "ranges": [[part.low, part.high] for part in copy.ranges],
        "caller": copy.caller or None,
        "caller_offset": copy.caller_offset if copy.caller else None,
        "call_file": copy.call_file or None,
        "call_line": copy.call_line or None,
    }


def as_json(functions: Sequence[InlineFunction]) -> str:
    """Return inline functions with their copies as one JSON list."""
    rows = [
        {
            "function": function.name,
            "decl_file": function.decl_file or None,
            "decl_line": function.decl_line or None,
            "copies": [copy_as_json(copy) for copy in function.copies],
        }
        for function in functions
    ]
    return json.dumps(rows, indent=1) + "\n"


def run(options: InlinecallOptions) -> str:
    """Return the text that the command prints. Messages and progress go to stderr. Raises
    KinstError."""
    functions = inline_functions(
        options.file,
        options.function,
        on_message=lambda text: say(f"inlinecall: {text}"),
        on_progress=Progress("inlinecall", log=False),
    )
    return as_json(functions) if options.json else as_text(functions)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the inlinecall command and return its exit status: 0 for success, 1 for an error (one
    line on stderr), 2 for a wrong command line.

    Args:
        argv: the words without the program's name; None for those of sys.argv.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    standard_files()

    def work() -> int:
        if "--help" in words:
            text = HELP
        elif "--version" in words:
            text = f"inlinecall: kinst {__version__}\n"
        else:
            text = run(parse(words))
        write(sys.stdout, text)
        return 0

    return guarded(work, "inlinecall", lambda error: say(f"inlinecall: {error}"))


if __name__ == "__main__":
    sys.exit(main())
