"""kinst inject: systematic failures of calls in a guest's kernel.

Tested by tests/cli/commands/test_inject.py and tests/vm/inject/test_inject.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinst.api import Option, Request
from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, check_traces, option_rows, own_options, parse

if TYPE_CHECKING:
    from kinst.cli import trying
else:
    trying = LaterModule("kinst.cli.trying")

RESULTS = Option(
    "--results", "FILE",
    "keep the results there, one JSON object a line, and go on with a sweep whose results it has",
)  # fmt: skip
ONLY = Option("--only", "NUMBERS", "try only these: 17, or 3,17-20")
JOBS = Option("--jobs", "N", "use so many guests at the same time (1)")
OUTPUT = Option("-o", "FILE", "write the summary there: FILE.html, FILE.json, or else text")
OPTIONS = (
    Option("--in", "FUNCTIONS", "fail only calls below these functions: globs, FUNCTION or"
           " MODULE:FUNCTION, with commas between them"),
    Option("--first", "", "fail only the first call from each stack"),
    ONLY,
    JOBS,
    RESULTS,
    OUTPUT,
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst inject 'FUNCTION[ return VALUE]'... --in FUNCTIONS -c CMD [kinst's options]

Fail the first call of FUNCTION (a glob) that CMD makes below the functions of --in, and only that
one; then only the second one, and so on, in a guest that kinst boots.  After each failure, run CMD
again without one.  Show, by call site and stack, after which failures the kernel panicked, hung,
oopsed or warned, leaked memory, could not run CMD any more, or returned another error.  Each of
them is tried again.

VALUE is NULL, -ENOMEM (or another error), ERR_PTR(-ENOMEM), false, true or a number; without it,
NULL, -ENOMEM or false by the function's type.  Functions of other types are left out.  CMD must
leave the guest as it was.  The guest has one CPU (--cpus).  CMD hangs if it takes four times as
long as usual (--timeout SECONDS: as long as that).

{option_rows(OPTIONS)}
Is there a call below ext4's functions whose failure the kernel does not survive?
  kinst inject '*kmalloc*' --in 'ext4:*' --module ext4 --copy fs.img -c CMD -o ext4.html
Which calls of kmalloc are not checked in a module?
  kinst inject 'kmalloc_trace return NULL' --in 'mine_*' --module ./mine.ko -c 'cat /dev/mine'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst inject` and return the exit status: 1 if a fault was found, otherwise 0."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    check_sweep(request, "inject", "kinst -w -n 'fbt::F:entry { return(0); }'")
    if not request.arguments:
        raise UsageError("nothing to fail", "kinst inject 'kmalloc* return NULL' --in F -c CMD")
    within = [one for one in own.get("--in", "").replace(",", " ").split() if one]
    if not within:
        raise UsageError("no functions below which calls fail", "--in 'ext4:*'")
    asked = asked_for(words, request, own, 1)
    return trying.inject(asked, within, first="--first" in own)


def check_sweep(request: Request, name: str, instead: str) -> None:
    """Raise UsageError if `kinst inject` or `kinst race` cannot use a request: for example, if the
    request has a D program or no command, or its machine is not a guest that kinst boots.

    Args:
        request: the request.
        name: name of the kinst command, "inject" or "race".
        instead: hint for a request with a D program: an example of a kinst command line whose D
            program makes a call fail or delays a CPU.
    """
    check_traces(request)
    if request.programs:
        raise UsageError(f"{name} makes its own program and takes none", instead)
    if request.shell or not request.command:
        raise UsageError("no command to run in the guest", f"kinst {name} ... -c CMD")
    if not any(option.field == "cpus" for option in request.kind.options):
        raise UsageError(
            f"{name} makes kernels fail: it boots its own guests",
            f"leave out {request.kind.option.name}",
        )
    if request.machine.trace_boot:
        raise UsageError(f"{name} runs after the boot", "leave out --boot")


def asked_for(
    words: Sequence[str], request: Request, own: Mapping[str, str], cpus: int
) -> trying.Asked:
    """Return what a command line of `kinst inject` or `kinst race` asks for. Raises UsageError.

    Args:
        words: all words after the command's name.
        request: the request that the words mean, without the command's own options.
        own: values of the command's own options, by option.
        cpus: how many CPUs the guests have, unless the user has said how many.
    """
    return trying.Asked(
        words=words,
        request=guest_request(request, cpus),
        arguments=request.arguments,
        limit=math.ceil(request.timeout or 0),
        only=numbers(own["--only"]) if "--only" in own else None,
        jobs=count(own.get("--jobs", "1")),
        results=own.get("--results", ""),
        output=request.output,
    )


def guest_request(request: Request, cpus: int) -> Request:
    """Return the request with which `kinst inject` or `kinst race` opens its guests.

    Args:
        request: the request of the command line.
        cpus: how many CPUs the guests have, unless the user has said how many.
    """
    machine = request.machine
    if not machine.cpus and "-smp" not in machine.qemu_args:
        machine = replace(machine, cpus=cpus)
    return replace(request, machine=machine, arguments=(), timeout=None, output="")


def numbers(text: str) -> list[int]:
    """Return the numbers of --only, such as "3,17-20". Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--only {text}: not numbers", "17, or 3,17-20")
        found += range(int(first), int(last or first) + 1)
    if not found or 0 in found:
        raise UsageError(f"--only {text}: tries have numbers from 1", "17, or 3,17-20")
    return found


def count(text: str) -> int:
    """Return the value of --jobs. Raises UsageError."""
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise UsageError(f"--jobs {text}: not a number from 1 to 64")
    return int(text)
