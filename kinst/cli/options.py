"""Reader of kinst's command line, and writer of --help.

Tables in session/options.py, and in the package of each kind of machine, describe the options:
those of dtrace(1) that make sense for kinst, and kinst's own, which have long names.

Tested by tests/session/test_cli_options.py and tests/cli/test_help.py.
"""

from __future__ import annotations

import getopt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

from kinst.api import (
    KERNEL_OPTIONS,
    PROGRAM_OPTIONS,
    REFUSED_OPTIONS,
    TRACE_OPTIONS,
    MachineOptions,
    Option,
    ProgramText,
    Request,
    disagreement,
    machine_kinds,
    names_release,
)
from kinst.cli.guard import UsageError
from kinst.errors import KinstError
from kinst.render import DEFAULT, formats

SHELLS = ("bash", "zsh")
# Options that several commands have.
SHOW_PROGRAM = Option("-d", "", "show the D program, and end")
TITLE = Option("--title", "TEXT", "the picture's title; without it the command or the program")
# Options of -x that are other options of the command line.
_OTHERS = {"define": "-D", "undef": "-U", "incdir": "-I", "cpphdrs": "-H", "libdir": "-L"}
_HARD = "\0"  # a space at which no line ends
_WIDTH, _INDENT = 96, 20  # columns of a line of --help; column where an option's meaning starts

COMMANDS = """\
kinst annotate F   source and instructions of a function with their counts; kinst annotate --help
kinst boot         which parts of a kernel's boot take how long; kinst boot --help
kinst flow F       one call of a function, with all that is called in it; kinst flow --help
kinst flame ...    a flame graph of stacks; kinst flame --help
kinst count ...    how often each instruction of a user program runs; kinst count --help
kinst cover ...    coverage of the kernel's code, as LCOV's format; kinst cover --help
kinst diff A B     what differs between two results of --json; kinst diff --help
kinst top ...      an aggregation as a live table; kinst top --help
kinst plot ...     histograms and heat maps of distributions; kinst plot --help
kinst inject ...   which failing calls a kernel does not survive; kinst inject --help
kinst race F       delays that widen the windows of races; kinst race --help
kinst test FILE... programs with assertions, as TAP and JUnit's XML; kinst test --help
kinst cache        what is kept on the disk, by kind, and deleting it; kinst cache --help
"""
EXAMPLES = """\
Which instructions vfs_read() has, and how each would be planted:
  kinst -l -v -n 'kinst::vfs_read:'
How many bytes each program asks for, at the instruction 19 bytes into vfs_read():
  kinst -n 'kinst::vfs_read:19 { @[execname] = quantize(regs[R_RDX]); }' -c 'wc -l /etc/passwd'
Which functions of the file system run, and how often:
  kinst -n 'fbt::vfs_*:entry { @[probefunc] = count(); }' -c 'ls -lR /proc/sys >/dev/null'
"""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line without a named command asks for.

    Attributes:
        request: options of the machine and of the trace.
        format: name of the output format.
        shows: what is printed instead of tracing: "help", "version", "kernels", or the name of a
            shell whose completion script is printed; "" for a trace.
    """

    request: Request
    format: str = DEFAULT
    shows: str = ""


def _format(name: str) -> Option:
    texts = {
        f"--{DEFAULT}": "",
        "--json": "print what is traced as one JSON object a line",
        "--perfetto": "write a timeline for Perfetto (ui.perfetto.dev), with -o FILE",
    }
    option = f"--{name}"
    return Option(option, "", texts.get(option, f"format the output as {name}"), "format",
                  constant=name)  # fmt: skip


@cache
def sections() -> dict[str, tuple[Option, ...]]:
    """Return the options that kinst accepts, by the headings of --help."""
    kinds = machine_kinds()
    made = {
        "What is traced": PROGRAM_OPTIONS,
        "How": TRACE_OPTIONS,
        "In what format": (
            *(_format(name) for name in formats() if name != DEFAULT),
        ),
        "Which machine (one of these), and its kernel": (
            *(kind.option for kind in kinds), *KERNEL_OPTIONS,
        ),
        **{f"With {kind.option.name}": tuple(kind.options) for kind in kinds if kind.options},
        "Help": (
            Option("--completion", "SHELL", "print what makes bash or zsh complete kinst's command"
                   " lines", "shows", words=SHELLS),
            Option("-h", "", "print this", "shows", constant="help"),
            Option("--help", "", "print this", "shows", constant="help"),
            Option("-V", "", "print the version", "shows", constant="version"),
            Option("--version", "", "print the version", "shows", constant="version"),
        ),
    }  # fmt: skip
    return made


@cache
def options() -> dict[str, Option]:
    """Return every option by its name, including options of dtrace(1) that kinst refuses."""
    rows = (option for rows in sections().values() for option in rows)
    return {option.name: option for option in (*rows, *REFUSED_OPTIONS)}


def usage() -> str:
    """Return the usage lines at the start of --help."""
    rows = [option for rows in sections().values() for option in rows]
    flags = {option.name[1] for option in rows if len(option.name) == 2 and not option.value}
    words = [f"[-{''.join(sorted(flags, key=lambda letter: (letter.lower(), letter)))}]"]
    words += [f"[{_spelled(o)}]" for o in rows if o.value or len(o.name) > 2]
    joined = " ".join(word.replace(" ", _HARD) for word in (*words, "[args ...]"))
    lines = wrap(joined, _WIDTH, initial_indent="usage: kinst ", subsequent_indent=" " * 13)
    return "\n".join(lines).replace(_HARD, " ") + "\n"


def help_text() -> str:
    """Return the text that --help prints."""
    text = usage() + "\n" + EXAMPLES
    for title, rows in sections().items():
        text += f"\n{title}:\n"
        text += option_rows(rows)
    return f"{text}\n{COMMANDS}"


def option_rows(rows: Sequence[Option]) -> str:
    """Return lines of help that say what each option does."""
    lines: list[str] = []
    for names, meaning in _joined(rows):
        start = f"  {names}".ljust(_INDENT - 2) + "  "
        lines += wrap(meaning, _WIDTH, initial_indent=start, subsequent_indent=" " * _INDENT)
    return "\n".join(lines) + "\n"


def _joined(rows: Sequence[Option]) -> Iterator[tuple[str, str]]:
    """Yield (names, meaning) for each line of help. Neighbouring options with the same meaning
    share a line."""
    names: list[str] = []
    for option, following in zip(rows, (*rows[1:], None), strict=True):
        names.append(_spelled(option))
        if following is None or following.help != option.help:
            again = " (repeat it)" if option.repeats and option.name.startswith("--") else ""
            yield ", ".join(names), option.help + again
            names = []


def _spelled(option: Option) -> str:
    if option.optional:
        return f"{option.name}[={option.value}]"
    return f"{option.name} {option.value}".rstrip()


def own_options(
    words: Sequence[str], rows: Sequence[Option], *, alone: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Take a command's own options out of its command line.

    Return the remaining words, and the values of the command's own options by name ("" for an
    option without a value).

    Args:
        words: the command line after the command's name.
        rows: the command's options.
        alone: whether the command accepts only the options of `rows`. If it accepts kinst's options
            too, an option that both have (such as -o) stays in the remaining words, which kinst's
            own parser reads.

    Raises:
        UsageError: an option has no value or a wrong one.
    """
    own = {option.name: option for option in rows if alone or option.name not in options()}
    rest: list[str] = []
    values: dict[str, str] = {}
    following = iter(words)
    for word in following:
        name, equals, value = word.partition("=")
        if word == "--":
            return [*rest, word, *following], values
        option = own.get(name)
        if option is None or (equals and not option.value):
            rest.append(word)
            continue
        if option.value and not equals:
            given = next(following, None)
            if given is None:
                raise UsageError(f"{name} needs a value")
            value = given
        try:
            values[name] = str(option.parse(value, f"{name} {value}"))
        except KinstError as error:
            raise UsageError(error.message, error.hint) from error
    return rest, values


def check_traces(request: Request) -> None:
    """Raise UsageError if the request asks for something else than a trace."""
    if request.list_probes or request.compile_only or request.dump:
        raise UsageError(
            "this command traces: it has no -l, -e, -S and --dump",
            "kinst without a command has them",
        )


def check(request: Request) -> None:
    """Raise UsageError if options of the request contradict each other."""
    if (error := disagreement(request)) is not None:
        raise UsageError(error.message, error.hint)


def parse(argv: Sequence[str], stdin: Callable[[], str] = str) -> CommandLine:
    """Return what a command line asks for.

    Args:
        argv: the words without the program's name.
        stdin: returns the program for `-s -`.

    Raises:
        UsageError: the command line is wrong.
        KinstError: a script cannot be opened.
    """
    known = options()
    short = "".join(o.name[1] + ":" * bool(o.value) for o in known.values() if len(o.name) == 2)
    long = [o.name[2:] + "=" * bool(o.value) for o in known.values() if len(o.name) > 2]
    try:
        given, rest = getopt.gnu_getopt(_with_values(argv, known), short, long)
    except getopt.GetoptError as error:
        raise UsageError(error.msg) from error
    words = _Words(stdin)
    for name, text in given:
        words.take(known[name], text)
    return words.command_line(rest)


def _with_values(argv: Sequence[str], options: Mapping[str, Option]) -> list[str]:
    """Return the words with "=" after each option whose value is optional, because getopt does not
    know optional values. The next word is the option's value if it is one of the words that the
    option takes (--vm arm64)."""
    end = argv.index("--") if "--" in argv else len(argv)
    optional = {option.name: option for option in options.values() if option.optional}
    words: list[str] = []
    for word, before in zip(argv[:end], ("", *argv), strict=False):
        if before in optional and word in optional[before].words:
            words[-1] += word
        else:
            words.append(f"{word}=" if word in optional else word)
    return [*words, *argv[end:]]


class _Words:
    """Collector of a command line's options. It makes the CommandLine, with its Request and
    MachineOptions, from their values."""

    def __init__(self, stdin: Callable[[], str]) -> None:
        self._stdin = stdin
        self._values: dict[str, Any] = {}  # by the name of the field
        self._machines: dict[str, str] = {}  # values of options that choose a machine, by name

    def take(self, option: Option, text: str) -> None:
        """Add an option with the text of its value. Raises UsageError or KinstError if the option
        cannot be used or its value is wrong."""
        name = option.name
        if option.refused:
            raise UsageError(f"option {name} is not available: {option.refused}")
        if any(option is kind.option for kind in machine_kinds()):
            self._machines[name] = text
            return
        if name == "-p" and option.field in self._values:
            raise UsageError("-p: one process at a time", "$target is one process")
        if name == "-x":
            return self._set(text)
        field, value = self._read(option, text)
        if option.repeats or field == "debug_folders":
            value = (*self._values.get(field, ()), value)
        if field:
            self._values[field] = value
        if field in ("kernel", "release"):  # the last one counts
            self._values.pop("release" if field == "kernel" else "kernel", None)

    def _read(self, option: Option, text: str) -> tuple[str, object]:
        """Return the name of the field that an option sets, and the field's value."""
        name = option.name
        if name == "-s":
            return option.field, _script(text, self._stdin)
        if name == "--debug" and Path(text).is_dir():
            return "debug_folders", text
        if name == "--kernel" and text == "list":
            return "shows", "kernels"
        if name == "--kernel" and names_release(text):
            return "release", text
        if not option.value:
            return option.field, option.constant
        try:
            return option.field, option.parse(text, f"{name} {text}".rstrip())
        except KinstError as error:
            raise UsageError(error.message, error.hint) from error

    def _set(self, text: str) -> None:
        """Add an option of -x, given as NAME or NAME=VALUE."""
        name, _, value = text.partition("=")
        if name == "format":
            if value not in formats():
                raise KinstError(f"-x format={value}: no such format", ", ".join(formats()))
            self._values["format"] = value
        elif name == "stdc":
            self.take(options()["-X"], value)
        elif name in _OTHERS:
            option = options()[_OTHERS[name]]
            if bool(value) != bool(option.value):
                raise KinstError(f"-x {text}: {'needs a' if option.value else 'takes no'} value")
            self.take(option, value)
        elif name == "cpppath":
            if not value:
                raise KinstError("-x cpppath: needs a value", "the preprocessor's path")
            self._values["preprocessor_path"] = value
        else:
            settings = self._values.get("settings", ())
            self._values["settings"] = (*settings, (name, value))

    def command_line(self, rest: Sequence[str]) -> CommandLine:
        """Return the command line for all options that were added.

        Args:
            rest: words that are not options.

        Raises:
            UsageError: options contradict each other.
        """
        values = self._values
        _check_quotes(values.get("programs", ()), rest)
        machine = MachineOptions(**self._machine(), **_of(MachineOptions, values))
        request = Request(machine, arguments=tuple(rest), **_of(Request, values))
        line = CommandLine(request, **_of(CommandLine, values))
        if not line.shows:
            check(request)
        return line

    def _machine(self) -> dict[str, Any]:
        """Return the fields of MachineOptions that choose the machine.

        Raises UsageError if more than one option chooses a machine. One combination is allowed:
        --attach together with an option that gives the address of a GDB stub.
        """
        given = self._machines
        asked = [kind for kind in machine_kinds() if kind.option.name in given]
        if not asked:
            return {}
        chosen = next((kind for kind in asked if "stub_address" in kind.takes), asked[0])
        others = [kind for kind in asked if kind is not chosen]
        value = given[chosen.option.name]
        fields: dict[str, Any] = {"kind": chosen.name}
        if chosen.option.value:
            fields[chosen.option.field] = value
        for other in others:
            if "stub_address" not in chosen.takes or other.option.field != "address":
                names = f"{chosen.option.name} and {other.option.name}"
                raise UsageError(f"{names}: one machine at a time", "leave out one of them")
            fields["stub_address"] = given[other.option.name]
        return fields


def _check_quotes(programs: Sequence[ProgramText], arguments: Sequence[str]) -> None:
    """Raise UsageError if a clause's { is an argument of its own, because the shell has split a
    program without quotes into words."""
    for one in programs:
        if one.letter != "s" and "{" not in one.text and any(w.startswith("{") for w in arguments):
            raise UsageError(
                f"the shell has split the program after {one.text}",
                f"quote it: -{one.letter} '{one.text} {{ ... }}'",
            )


def _of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of `values` whose names are names of fields of a dataclass.

    Args:
        kind: the dataclass.
        values: values by name.
    """
    return {name: value for name, value in values.items() if name in kind.__slots__}  # type: ignore[attr-defined]


def _script(path: str, stdin: Callable[[], str]) -> ProgramText:
    if path == "-":
        return ProgramText("s", stdin(), "<stdin>")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return ProgramText("s", file.read(), path)
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error
