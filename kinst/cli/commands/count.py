"""kinst count: how often each function, or each instruction, of a user program runs.

Tested by tests/machines/process/test_count_command.py.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kinst import api
from kinst.api import Option
from kinst.cli.guard import UsageError, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, check_traces, option_rows, own_options, parse
from kinst.errors import KinstError

if TYPE_CHECKING:
    from kinst.cli import outcome
    from kinst.core.code import CodeInstruction
    from kinst.events import Aggregation
    from kinst.views import counting
else:
    outcome, counting = LaterModule("kinst.cli.outcome"), LaterModule("kinst.views.counting")

OPTIONS = (
    Option("-o", "FILE", "write the table there, in place of standard output"),
    Option("--if", "PREDICATE", "count only if this D expression is true: 'regs[R_RDI] == 0'"),
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst count [FUNCTION...] -c 'PROGRAM ARGUMENTS' | -p PID [-o FILE] [--if PREDICATE]

Run a user program of this machine, which need not be rebuilt, and count every instruction of its
executable file while it runs at almost full speed.  Shows the functions with the instructions that
each has executed, most first; with FUNCTION (a name or a glob), each instruction of the function.
The program's input and output are those of kinst.  Functions of a stripped program are named after
their address.  Libraries are not counted.

{option_rows(OPTIONS)}
Where does gzip spend its instructions?
  kinst count -o table -c 'gzip -k file'
And in its busiest function?
  kinst count f_4290 -o table -c 'gzip -k file'
What does a process do that runs already?  Count until Ctrl-C.
  kinst count -p 4242
With the source and the flow of control, for a program that has debug information:
  kinst annotate main --process -c './program'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst count` and return the exit status of the program."""
    rest, own = own_options(words, OPTIONS)
    try:
        request = parse(["--process", *rest], sys.stdin.read).request
    except UsageError as error:  # about an option that the user has not typed
        raise UsageError(error.message.replace("--process", "kinst count"), error.hint) from error
    check_traces(request)
    if request.programs:
        raise UsageError(
            "count makes its own program and takes none", "kinst --process -n PROGRAM -c CMD"
        )
    names = request.arguments
    condition = own.get("--if", "")
    where = ",\n".join(f"kinst::{name}:" for name in names or ("*",))
    text = counting.clause(where, condition, f"@{counting.COUNT}[{counting.SITE}] = count();")
    if request.show_program:
        write(sys.stdout, f"{text}\n")
        return 0
    settings = (("quiet", ""), *request.settings)
    request = replace(request, arguments=(), settings=settings)
    with outcome.open_machine(request) as machine:
        instructions = _instructions(machine, names)
        trace = machine.trace(f"{text}\n", request.command)
        aggregations, status = outcome.finished(
            trace, request, interrupts, partial(write, sys.stdout)
        )  # fmt: skip
    counts = _counts(aggregations)
    rows = _of_instructions(instructions, counts, trace.left_out) if names else _of(counts)
    outcome.put("".join(f"{row}\n" for row in rows), own.get("-o", request.output))
    return status


def _instructions(machine: api.Machine, names: Sequence[str]) -> Sequence[CodeInstruction]:
    """Return the instructions of functions of the program, in address order."""
    if not names:
        return ()
    try:
        return [one for code in machine.code(*names) for one in code.instructions]
    except KinstError as error:
        kernel = f"kinst annotate {' '.join(names)} -c CMD counts in the kernel"
        hint = f"{error.hint}; {kernel}" if error.hint else kernel
        raise KinstError(error.message, hint) from error


def _counts(aggregations: Sequence[Aggregation]) -> Mapping[tuple[str, int], int]:
    """Return the hits of each instruction, by function and offset."""
    rows: dict[tuple[str, int], int] = {}
    for table in aggregations:
        for (_, function, offset), value in counting.site_rows(table).items():
            if isinstance(value, int):
                rows[function, offset] = value
    return rows


def _of(counts: Mapping[tuple[str, int], int]) -> Iterator[str]:
    """Yield the lines of the table of functions: instructions executed, their share, calls, and the
    name of each function.
    """
    total: dict[str, int] = {}
    for (function, _), value in counts.items():
        total[function] = total.get(function, 0) + value
    whole = sum(total.values()) or 1
    yield f"{'INSTRUCTIONS':>16} {'SHARE':>7} {'ENTERED':>14}  FUNCTION"
    for function, value in sorted(total.items(), key=lambda one: (-one[1], one[0])):
        entered = counts.get((function, 0), 0)
        yield f"{value:>16,} {value / whole:>7.1%} {entered:>14,}  {function}"
    yield f"{sum(total.values()):>16,}                         all, without libraries"


def _of_instructions(
    instructions: Sequence[CodeInstruction],
    counts: Mapping[tuple[str, int], int],
    left_out: Collection[int],
) -> Iterator[str]:
    """Yield the lines of the table of instructions: hits ("-" for an instruction that cannot be
    planted), function and offset, and disassembly.
    """
    function = ""
    for one in instructions:
        if one.function.name != function:
            function = one.function.name
            yield f"{function}:"
        hits = counts.get((function, one.offset), 0)
        unknown = one.address in left_out or one.refused
        yield f"{'-' if unknown else f'{hits:,}':>16}  +{one.offset:<6} {one.text}"
