"""Table of the command line's options: those of all machines, and each machine's own.

The parser, --help, completion, the library's checks and the tests of the man page use it.

Tested by tests/session/test_options.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from kinst.core.errors import KinstError
from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option, Rule
from kinst.core.probe import ProgramText
from kinst.machines import kinds
from kinst.session.request import Request

DUMP_STAGES = ("tree", "typed", "probes", "layout", "ir", "code", "plan")
STRICTNESS = ("a", "c", "s", "t")
WITH_VALUE = ("kernel", "release")  # fields that messages show with their value


def _probe(letter: str, what: str) -> Option:
    def read(text: str) -> ProgramText:
        return ProgramText(letter, text, "<command line>")

    help_text = f"enable or list the probes of {what}"
    return Option(f"-{letter}", "PROBE", help_text, "programs", read, repeats=True)


def _setting(name: str, setting: str, help_text: str) -> Option:
    return Option(name, "", help_text, "settings", constant=(setting, ""), repeats=True)


def _preprocessor(name: str, value: str, help_text: str) -> Option:
    return Option(
        name, value, help_text, "preprocessor", lambda text: name + text, constant=name,
        repeats=True,
    )  # fmt: skip


def _command(text: str) -> str:
    if not text.strip():
        raise KinstError("the command is empty")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise KinstError("the value is not a number of seconds", "1.5 is one")
    return seconds


PROGRAM_OPTIONS = (
    _probe("n", "a name: [[[provider:]module:]function:]name [[predicate] action]"),
    _probe("P", "a provider"),
    _probe("m", "a module: [provider:]module"),
    _probe("f", "a function: [[provider:]module:]function"),
    _probe("i", "a number, as kinst -l shows it"),
    Option("-s", "FILE", 'enable or list probes by a D script ("-" is standard input)', "programs",
           repeats=True),
    Option("-x", "OPT[=VAL]", "set an option (bufsize=16m, plant=trap, ...)", "settings",
           repeats=True),
    Option("-b", "SIZE", "size of each CPU's buffer (option bufsize)", "settings",
           lambda text: ("bufsize", text), repeats=True),
    Option("-L", "FOLDER", "read D libraries from FOLDER as well", "libraries", repeats=True),
    Option("-Z", "", "let descriptions match nothing", "zero"),
    _setting("-w", "destructive", "permit destructive actions"),
    _setting("-C", "cpp", "run scripts through the C preprocessor (option cpp)"),
    _preprocessor("-D", "NAME[=VALUE]", "options of the preprocessor"),
    _preprocessor("-U", "NAME", "options of the preprocessor"),
    _preprocessor("-I", "FOLDER", "options of the preprocessor"),
    _preprocessor("-H", "", "show the files that the preprocessor includes"),
    Option("-X", "CONFORMANCE", "accepted for dtrace(1)'s sake", "", words=STRICTNESS),
)  # fmt: skip
TRACE_OPTIONS = (
    Option(
        "-c", "CMD", "run CMD in the guest; the trace ends with it, and kinst's exit status is that"
        " of CMD; its pid is $target", "command", _command,
    ),
    Option("--shell", "", "have a shell of the guest on this terminal instead; Ctrl-] ends the"
           " trace", "shell"),
    Option("--timeout", "N", "end the trace after N seconds (a command that still runs is killed)",
           "timeout", _seconds),
    Option(
        "-l", "", "list the probes that match; with -v each instruction's bytes, disassembly, and"
        " the way it would be planted or why it is refused", "list_probes",
    ),
    _setting("-q", "quiet", "print only what the program prints"),
    Option("-v", "", "say what is done, with times", "verbose"),
    Option("-o", "FILE", "append the output to FILE", "output"),
    _setting("-F", "flowindent", "show entries and returns as a tree (option flowindent)"),
    Option("-e", "", "exit after compiling, before anything is planted", "compile_only"),
    Option("-S", "", "show the code that the program compiles to", "dump", constant="ir"),
    Option("-d", "", "show the D program after syntactic transformation", "show_program"),
    Option("--dump", "STAGE", "print the value after a stage: " + ", ".join(DUMP_STAGES), "dump",
           words=DUMP_STAGES),
)  # fmt: skip
KERNEL_OPTIONS = (
    Option(
        "--kernel", "FILE|VERSION", "the kernel to boot (--vm), or its vmlinux with symbols"
        " (--attach, --gdb); a version (6.12, 5.10-generic, 6.12.117-16k) is Debian's newest of"
        ' it, fetched on first use; "list" lists what there is', "kernel",
        instead="--debug says which vmlinux is traced",
    ),
    Option(
        "--debug", "FILE|DIR", "the vmlinux with symbols that belongs to --kernel; or a folder with"
        " debug files of modules (repeat it)", "debug",
    ),
    Option("--yes", "", "download a kernel without asking", "yes"),
    Option("--build", "DIR", "a folder in which a kernel was built: boot that one (--vm), or take"
           " its symbols", "build"),
)  # fmt: skip

_64_BITS = "the data model is that of the traced kernel, which has 64 bits"
_ANONYMOUS = "there is no anonymous tracing: no driver of kinst is in the kernel"
# Options of dtrace(1) that kinst does not have.
REFUSED_OPTIONS = (
    Option("-a", refused=_ANONYMOUS),
    Option("-A", refused=_ANONYMOUS),
    Option("-G", refused="it makes object files of a program's own probes, which kinst does not"
           " trace"),
    Option("-k", refused="kernels do not load D of their own"),
    *(Option(f"-{digit}", refused=_64_BITS) for digit in "3264"),
)  # fmt: skip

RULES = (
    Rule(
        ("command",), "{given} and {beside} both run something in the guest",
        "run the command in the shell", ("shell",),
    ),
    Rule(
        ("build",), "{given} and {beside} both say which kernel", "leave out {beside}",
        ("kernel", "release", "debug"),
    ),
)  # fmt: skip


NameOf = Callable[[str, Request], str]


def option_of(field: str) -> Option | None:
    """Return the option that sets a field of Request or MachineOptions; None if no option does."""
    field = {"debug_folders": "debug", "release": "kernel"}.get(field, field)
    every = (
        *PROGRAM_OPTIONS,
        *TRACE_OPTIONS,
        *KERNEL_OPTIONS,
        *(option for kind in kinds() for option in kind.options),
    )
    return next((option for option in every if option.field == field), None)


def spelled(field: str, request: Request) -> str:
    """Return the option by which the user sets a field of a request, for a message."""
    if field == "machine":
        return request.kind.option.name
    option = option_of(field)
    name = option.name if option is not None else field
    return f"{name} {value}" if field in WITH_VALUE and (value := _given(request, field)) else name


def disagreement(request: Request, name_of: NameOf = spelled) -> KinstError | None:
    """Return an error for the first conflict between a request's options; None if there is no
    conflict.

    Args:
        name_of: returns how the user has set a field of the request, or would set it.
    """
    for message, hint in _disagreements(request, name_of):
        return KinstError(message, hint)
    return None


def _disagreements(request: Request, name_of: NameOf) -> Iterator[tuple[str, str]]:
    yield from _not_taken(request, name_of)
    for rule in RULES if request.of_file else (*RULES, *request.kind.rules):
        given = next((field for field in rule.given if _given(request, field)), "")
        beside = next((field for field in rule.beside if _given(request, field)), "")
        others = any(_given(request, field) for field in rule.without)
        if given and (beside or not rule.beside) and not others and rule.when(request.machine):
            names = _OptionNames(request, name_of, {"given": given, "beside": beside})
            yield rule.message.format_map(names), rule.hint.format_map(names)


def _not_taken(request: Request, name_of: NameOf) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for each option of the request that its kind of machine does
    not have.
    """
    taken = {kind.option.name: _fields(kind) for kind in kinds()}
    asked, own = request.kind.option.name, _fields(request.kind)
    for field in sorted({field for fields in taken.values() for field in fields}):
        if field not in own and _given(request, field):
            option = option_of(field)
            having = " and ".join(name for name, fields in taken.items() if field in fields)
            message = f"{name_of(field, request)} is an option of {having}, not of {asked}"
            yield message, option.instead if option is not None else ""


def _fields(kind: MachineKind) -> frozenset[str]:
    return kind.takes | {option.field for option in kind.options}


def _given(request: Request, field: str) -> object:
    machine = request.machine
    return getattr(machine if hasattr(machine, field) else request, field)


class _OptionNames(dict[str, str]):
    """Values for the placeholders in the template of a message.

    A placeholder is the name of a field of the request. Its value is the option that sets the
    field.
    """

    def __init__(self, request: Request, name_of: NameOf, fields: dict[str, str]) -> None:
        super().__init__()
        self._request, self._name_of, self._fields = request, name_of, fields

    def __missing__(self, field: str) -> str:
        return self._name_of(self._fields.get(field, field), self._request)
