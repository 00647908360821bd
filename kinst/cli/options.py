"""The command line: dtrace(1)'s options where they make sense here, and kinst's own long ones.

Tested by tests/session/test_cli_options.py and tests/cli/test_help.py.
"""

from __future__ import annotations

import getopt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kinst.api import (
    DUMP_STAGES,
    ProgramText,
    Request,
    names_release,
    parse_cpus,
    parse_memory,
)
from kinst.cli.guard import UsageError
from kinst.errors import KinstError
from kinst.render import DEFAULT, formats

SHORT = "n:s:f:m:P:i:lqvVo:c:x:ZwheSD:U:I:CHX:dFb:p:aAGkL:3264"
LONG = [
    "vm=", "gdb=", "attach=", "live", "build=", "kernel=", "debug=", "initrd=", "append=", "cpus=",
    "memory=", "cold", "qemu-arg=", "copy=", "root=", "rw=", "module=", "dump=", "timeout=",
    "shell", "yes", "help", "version", "completion=",
    *(name for name in formats() if name != DEFAULT),
]  # fmt: skip
STRICTNESS = ("a", "c", "s", "t")
SHELLS = ("bash", "zsh")

# Options of dtrace(1) that mean nothing here.
_64_BITS = "the data model is that of the traced kernel, which has 64 bits"
_ANONYMOUS = "there is no anonymous tracing: no driver of kinst's is in the kernel"
REFUSED = {
    "-a": _ANONYMOUS,
    "-A": _ANONYMOUS,
    "-G": "it makes object files of a program's own probes, which kinst does not trace",
    "-k": "kernels do not load D of their own",
    "-L": "D libraries are not searched for: what they define is built in; -s takes a file",
    "-3": _64_BITS,
    "-2": _64_BITS,
    "-6": _64_BITS,
    "-4": _64_BITS,
}

USAGE = """\
usage: kinst [-CdeFHlqSvVwZh] [-b bufsz] [-c command] [-p pid] [-D name[=value]] [-U name]
             [-I path] [-o file] [-x opt[=val]] [-X a|c|s|t] [--vm[=ISA] | --live
             | --attach MACHINE | --gdb ADDRESS] [--build DIR]
             [--kernel FILE|VERSION] [--debug FILE] [--initrd FILE] [--append TEXT]
             [--cpus N] [--memory SIZE] [--cold] [--qemu-arg ARG] [--copy FILE]
             [--root DIR] [--rw DIR] [--module NAME] [--dump STAGE] [--json]
             [--perfetto] [--timeout SECONDS] [--shell] [--yes]
             [--completion bash|zsh]
             [-P provider [[predicate] action]]
             [-m [provider:]module [[predicate] action]]
             [-f [[provider:]module:]function [[predicate] action]]
             [-n [[[provider:]module:]function:]name [[predicate] action]]
             [-i probe-id [[predicate] action]] [-s script] [args ...]
"""

HELP = (
    USAGE
    + """
Which instructions vfs_read() has, and how each would be planted:
  kinst -l -v -n 'kinst::vfs_read:'
How many bytes each program asks for, at the instruction 19 bytes into vfs_read():
  kinst -n 'kinst::vfs_read:19 { @[execname] = quantize(regs[R_RDX]); }' -c 'wc -l /etc/passwd'
Which functions of the file system run, and how often:
  kinst -n 'fbt::vfs_*:entry { @[probefunc] = count(); }' -c 'ls -lR /proc/sys >/dev/null'

  -n, -P, -m, -f, -i  enable or list probes by name, provider, module, function, id
  -s FILE    enable or list probes by a D script ("-" is standard input)
  -c CMD     run CMD in the guest; the trace ends with it, and kinst's exit status is that of
             CMD; its pid is $target
  -p PID     with --live: that process is $target, and the trace ends with it
  --shell    have a shell of the guest on this terminal instead; Ctrl-] ends the trace
  -l         list the probes that match; with -v each instruction's bytes, disassembly, and
             the way it would be planted or why it is refused
  -q         print only what the program prints
  -v         say what is done, with times
  -o FILE    write output to FILE (appended)
  -e         exit after compiling, before anything is planted
  -S         show the code that the program compiles to
  -d         show the D program after syntactic transformation
  -Z         let descriptions match nothing
  -F         show entries and returns as a tree (option flowindent)
  -b SIZE    size of each CPU's buffer (option bufsize)
  -w         permit destructive actions
  -x OPT[=VAL]  set an option (bufsize=16m, plant=trap, ...)
  -X a|c|s|t    accepted for dtrace(1)'s sake
  -C         run scripts through the C preprocessor (option cpp), with
  -D NAME[=VALUE], -U NAME, -I FOLDER   its options, and -H: show the files included
  -V, --version    version
  --vm[=ISA]       trace a kernel that kinst boots in QEMU (the default); ISA: amd64 (as
                   without it), arm64, riscv64
  --live           trace the machine that kinst runs on, as root
  --attach MACHINE  trace a QEMU of this host's, as it runs: its process id, its QMP socket, or
                   auto, the only one there is; --gdb ADDRESS says where its stub is
  --gdb ADDRESS    trace the kernel behind a GDB stub: host:port or a unix socket's path
  --build DIR      a folder in which a kernel was built: boot that one (--vm), or take its symbols
  --kernel FILE    kernel to boot (--vm), or its vmlinux with symbols (--attach, --gdb)
  --kernel VERSION  Debian's newest kernel of that version, fetched on first use: 6.12, 5.10,
                   6.12-generic, 6.12.117-16k, ...; "--kernel list" lists what there is
  --debug FILE     the vmlinux with symbols that belongs to --kernel
  --debug DIR      a folder with debug files of modules (repeat it)
  --initrd FILE    initial ram disk to boot with, instead of kinst's own
  --append TEXT    more kernel command line, e.g. nokaslr
  --cpus N         how many CPUs the guest has (2)
  --memory SIZE    how much memory it has (1g)
  --cold           boot the guest, whatever is kept of the boot of one like it
  --qemu-arg ARG   one more argument for QEMU (repeat it)
  --copy FILE      put FILE into the guest's /bin (repeat it)
  --root DIR       the guest's commands run on DIR (such as /), and change nothing there
  --rw DIR         a folder that they write to (repeat it)
  --module NAME    load a module of the kernel's into the guest at boot (repeat it)
  --yes            download a kernel without asking
  --timeout N      end the trace after N seconds (a command that still runs is killed)
  --json           print what is traced as one JSON object a line
  --completion SHELL  print what makes bash or zsh complete kinst's command lines
  --perfetto       write a timeline for Perfetto (ui.perfetto.dev), with -o FILE
  --dump STAGE     print the value after a stage: """
    + ", ".join(DUMP_STAGES)
    + """

kinst annotate F   source and instructions of a function with their counts; kinst annotate --help
kinst flame ...    a flame graph of stacks; kinst flame --help
kinst cover ...    coverage of the kernel's code, as LCOV's format; kinst cover --help
kinst diff A B     what differs between two results of --json; kinst diff --help
kinst top ...      an aggregation as a live table; kinst top --help
kinst plot ...     histograms and heat maps of distributions; kinst plot --help
kinst test FILE... programs with assertions, as TAP and JUnit's XML; kinst test --help
kinst cache        what is kept on the disk, by kind, and deleting it; kinst cache --help
"""
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """request: what to do; help, version and kernels: print that and end.  format: of the
    output.  completion: the shell whose completion of kinst is to be printed, or ""."""

    request: Request
    help: bool = False
    version: bool = False
    kernels: bool = False
    format: str = DEFAULT
    completion: str = ""


def _expand_vm(argv: Sequence[str]) -> list[str]:
    """--vm alone means --vm=amd64: getopt knows no optional arguments."""
    out: list[str] = []
    for k, word in enumerate(argv):
        if word == "--":
            return out + list(argv[k:])
        out.append("--vm=amd64" if word == "--vm" else word)
    return out


def _script(path: str, stdin: Callable[[], str]) -> ProgramText:
    if path == "-":
        return ProgramText("s", stdin(), "<stdin>")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return ProgramText("s", file.read(), path)
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error


def parse(argv: Sequence[str], stdin: Callable[[], str] = str) -> CommandLine:
    """The command line (without the program's name); stdin: reads what -s - takes.

    Raises UsageError and KinstError."""
    try:
        options, rest = getopt.gnu_getopt(_expand_vm(argv), SHORT, LONG)
    except getopt.GetoptError as error:
        raise UsageError(error.msg) from error
    request = Request(arguments=tuple(rest))
    shown = CommandLine(request)
    for option, value in options:
        if option in ("-h", "--help"):
            shown = replace(shown, help=True)
        elif option in ("-V", "--version"):
            shown = replace(shown, version=True)
        elif option == "--completion":
            if value not in SHELLS:
                raise UsageError(f"--completion {value}: no such shell", " or ".join(SHELLS))
            shown = replace(shown, completion=value)
        elif (option, value) == ("--kernel", "list"):
            shown = replace(shown, kernels=True)
        elif option.removeprefix("--") in formats():
            shown = replace(shown, format=option.removeprefix("--"))
        elif option == "-x" and value.partition("=")[0] == "format":
            shown = replace(shown, format=_format(value.partition("=")[2]))
        else:
            request = _apply(request, option, value, stdin)
    if not (shown.help or shown.version or shown.kernels or shown.completion):
        _conflicts(request)
    return replace(shown, request=request)


_FLAGS = {
    "-l": "list_probes", "-v": "verbose", "-Z": "zero", "-e": "compile_only",
    "-S": "show_code", "-d": "show_program", "--cold": "cold",
    "--shell": "shell", "--live": "live", "--yes": "yes",
}  # fmt: skip
_VALUES = {
    "-c": "command", "-o": "output", "--vm": "vm", "--gdb": "gdb", "--attach": "attach",
    "--kernel": "kernel", "--debug": "debug", "--initrd": "initrd",
    "--append": "append", "--root": "root", "--build": "build",
}  # fmt: skip
_MANY = {
    "--qemu-arg": "qemu_args", "--copy": "copies", "--module": "modules", "--rw": "writable",
}  # fmt: skip


# Options of -x that are the preprocessor's.
_PREPROCESSOR = {"define": "-D", "undef": "-U", "incdir": "-I", "cpphdrs": "-H"}


def _with_option(request: Request, name: str, equals: str, value: str) -> Request:
    """-x name, -x name=value."""
    if name in _PREPROCESSOR:
        if bool(value) == (name == "cpphdrs"):
            needs = "takes no value" if value else "needs a value"
            raise KinstError(f"option {name!r} {needs}")
        return replace(request, preprocessor=(*request.preprocessor, _PREPROCESSOR[name] + value))
    if name == "cpppath":
        if not value:
            raise KinstError(f"option {name!r} needs a value", "the preprocessor's path")
        return replace(request, preprocessor_path=value)
    if name == "stdc":
        return _apply(request, "-X", value, str)
    return replace(request, settings=(*request.settings, (name, value)))


def _format(name: str) -> str:
    """Of -x format=NAME.  Raises KinstError."""
    if name not in formats():
        raise KinstError(f"-x format={name}: no such format", ", ".join(formats()))
    return name


def _seconds(text: str) -> float:
    """Of --timeout.  Raises UsageError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"--timeout {text}: not a number of seconds", "--timeout 10")
    return seconds


def _process(text: str) -> int:
    """Of -p.  Raises UsageError."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise UsageError(f"-p {text}: not the id of a process", "-p 1")
    return int(text)


def _conflicts(request: Request) -> None:
    """Raises UsageError for options that exclude one another."""
    given = {
        "--initrd": request.initrd, "--append": request.append, "--qemu-arg": request.qemu_args,
        "--copy": request.copies, "--module": request.modules, "--cpus": request.cpu_count,
        "--memory": request.memory, "--root": request.root, "--rw": request.writable,
        "--cold": request.cold, "--build": request.build,
    }  # fmt: skip
    booted = [name for name, value in given.items() if value]
    if request.gdb or request.attach:
        own = "--attach" if request.attach else "--gdb"
        if request.vm:
            raise UsageError(f"{own} and --vm: one target at a time")
        if request.command or request.shell:
            raise UsageError(f"-c needs the VM: kinst runs no commands behind {own}")
        given_file = request.debug or request.kernel or request.release or request.build
        if not (given_file or request.attach):
            raise UsageError(
                f"{own} needs the kernel's symbols", "--kernel VMLINUX, or --build DIR"
            )
        if request.release:
            message = f"--kernel {request.release} is one to boot, and {own} boots nothing"
            raise UsageError(message, "--kernel VMLINUX")
        booted = [name for name in booted if name != "--build"]
        if booted:
            raise UsageError(f"{booted[0]} is about what kinst boots, and {own} boots nothing")
    if request.live:
        _live_conflicts(request, booted)
    elif request.process:
        raise UsageError(
            "-p is about a process of the machine that kinst runs on, which --live traces",
            "use a predicate: /pid == N/",
        )
    if request.cpu_count and {"-smp", "--smp"} & {*request.qemu_args}:
        raise UsageError("--cpus and --qemu-arg -smp both say how many CPUs there are")
    if request.shell and request.command:
        raise UsageError("-c and --shell: one of them", "run the command in the shell")
    own_files = (("--kernel", request.kernel or request.release), ("--debug", request.debug))
    for one, other in own_files:
        if request.build and other:
            raise UsageError(f"--build and {one}: the folder has both files")
    if request.root and request.copies:
        raise UsageError("--copy and --root: what is to be run must be in the root")
    of_file = request.show_program and request.compile_only
    if request.kernel and not (request.gdb or request.attach or request.debug or of_file):
        message = f"--kernel {request.kernel} needs its vmlinux with symbols"
        raise UsageError(message, "--debug VMLINUX")
    if request.kernel and request.modules:
        raise UsageError(
            "--module needs a kernel that kinst fetched", "leave out --kernel, or --kernel VERSION"
        )
    if request.release and request.debug:
        raise UsageError(f"--debug is about a --kernel FILE; {request.release} brings its own")
    for one in ("--copy", "--module", "--root", "--rw") if request.initrd else ():
        if one in booted:
            raise UsageError(f"{one} puts files into kinst's own initrd, which --initrd replaces")


def _live_conflicts(request: Request, booted: Sequence[str]) -> None:
    """Raises UsageError for options that --live excludes."""
    others = (("--vm", request.vm), ("--attach", request.attach), ("--gdb", request.gdb))
    for option, value in others:
        if value:
            raise UsageError(f"--live and {option}: one target at a time")
    if request.kernel or request.release:
        raise UsageError("--kernel is one to boot, and --live boots nothing", "--debug VMLINUX")
    if request.shell:
        raise UsageError("--shell is of the VM", "with --live, use another terminal")
    if request.command and request.process:
        raise UsageError("-c and -p: one of them", "$target is one process")
    if booted:
        raise UsageError(f"{booted[0]} is about what kinst boots, and --live boots nothing")


def _apply(request: Request, option: str, value: str, stdin: Callable[[], str]) -> Request:
    if option in REFUSED:
        raise UsageError(f"option {option} is not available: {REFUSED[option]}")
    if option in _FLAGS:
        return replace(request, **{_FLAGS[option]: True})  # type: ignore[arg-type]
    if option == "-b":
        return replace(request, settings=(*request.settings, ("bufsize", value)))
    if option == "-c" and not value.strip():
        raise UsageError("-c: no command")
    if option == "--debug" and Path(value).is_dir():
        return replace(request, debug_folders=(*request.debug_folders, value))
    if option == "--kernel" and names_release(value):
        return replace(request, kernel="", release=value)
    if option in _VALUES:
        return replace(request, **{_VALUES[option]: value})  # type: ignore[arg-type]
    if option == "--cpus":
        return replace(request, cpu_count=parse_cpus(value))
    if option == "--memory":
        return replace(request, memory=parse_memory(value))
    if option in _MANY:
        more = {_MANY[option]: (*getattr(request, _MANY[option]), value)}
        return replace(request, **more)  # type: ignore[arg-type]
    if option == "-s":
        return replace(request, programs=(*request.programs, _script(value, stdin)))
    if option == "-q":
        return replace(request, settings=(*request.settings, ("quiet", "")))
    if option == "-C":
        return replace(request, settings=(*request.settings, ("cpp", "")))
    if option in ("-D", "-U", "-I", "-H"):
        return replace(request, preprocessor=(*request.preprocessor, option + value))
    if option == "-F":
        return replace(request, settings=(*request.settings, ("flowindent", "")))
    if option == "-w":
        return replace(request, settings=(*request.settings, ("destructive", "")))
    if option == "-x":
        return _with_option(request, *value.partition("="))
    if option == "-X":
        if value not in STRICTNESS:
            raise UsageError(f"-X {value}: no such conformance", "a, c, s or t")
        return request
    if option == "-p":
        if request.process:
            raise UsageError("-p: one process at a time", "$target is one process")
        return replace(request, process=_process(value))
    if option == "--timeout":
        return replace(request, timeout=_seconds(value))
    if option == "--dump":
        if value not in DUMP_STAGES:
            raise UsageError(f"--dump {value}: no such stage", ", ".join(DUMP_STAGES))
        return replace(request, dump=value)
    return replace(
        request,
        programs=(*request.programs, ProgramText(option[1], value, "<command line>")),
    )
