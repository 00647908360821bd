"""kinst flow: one call of a function, with all that was called in it.

Tested by tests/vm/views/test_call_flow.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinst.api import Option, Request
from kinst.cli.guard import UsageError, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import check_traces, option_rows, own_options, parse

if TYPE_CHECKING:
    from kinst.cli import call_flow, outcome
    from kinst.views import call_tracing
else:
    call_flow, outcome = LaterModule("kinst.cli.call_flow"), LaterModule("kinst.cli.outcome")
    call_tracing = LaterModule("kinst.views.call_tracing")

OPTIONS = (
    Option("-o", "FILE", "write there"),
    Option("--if", "PREDICATE", "the first call for which this D expression is true at its entry;"
           " without it and with -c, the command's first"),
    Option("-d", "", "show the D program that finds the functions, and end"),
)  # fmt: skip
HELP = f"""\
usage: kinst flow FUNCTION [-o FILE] [--if PREDICATE] [kinst's options]

Show one call of a function as a tree: the functions that were called in it, each with its
arguments, its result and how long it took, in the manner of -F.  Inlined functions are shown if
something was called from them.  FUNCTION is a name or MODULE:NAME.

The command (-c) runs twice or more.  The first run has the entries of all functions planted, and
finds the functions that run in calls of FUNCTION.  The second run has only these functions planted;
its first call of FUNCTION is shown.  If this call reaches functions that the first run has not
found, they are planted as well and the command runs once more.  A line above the tree says which
thread made the call, on which CPU, and how many calls of FUNCTION there were.  Functions that
interrupts call are left out of the tree, but the times include interrupts.  Functions that cannot
be planted are left out: the last lines say which, why, and how often they were called.

With --boot, the first call of FUNCTION in the boot is shown, without times and without --if and -c:
QEMU logs what the guest executes, and nothing is planted.

{option_rows(OPTIONS)}
What does open(2) do?
  kinst flow do_sys_openat2 --if 'execname == "cat"' -c 'cat /etc/passwd'
And a page fault?
  kinst flow handle_mm_fault -c 'cat /etc/passwd'
And an init function?
  kinst flow --boot cgroup_init_early
"""
# Predicate for calls by the command. Before it runs, its process is kinst's init, which waits in
# a read(2) that must not be traced.
OF_COMMAND = 'progenyof($target) && execname != "init"'


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst flow` and return the exit status of the trace."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    if request.programs:
        raise UsageError("flow makes its own programs and takes none", "--if says which call")
    if len(request.arguments) != 1:
        raise UsageError("kinst flow needs one function", "kinst flow FUNCTION -c CMD")
    if request.kind.program(request.command, request.machine.process):
        raise UsageError(
            "kinst flow follows calls in a kernel; in user programs, kinst only counts",
            "kinst count FUNCTION -c CMD",
        )
    if request.machine.trace_boot:
        return _in_boot(request, own)
    condition = own.get("--if", OF_COMMAND if request.command else "")
    (pattern,) = request.arguments
    if request.show_program:
        module, _, name = pattern.rpartition(":")
        whole = bool(request.command)
        program = call_tracing.finding_program((module, name), condition, whole=whole)
        write(sys.stdout, program)
        return 0
    text, status = call_flow.traced_call(request, pattern, condition, interrupts)
    outcome.put(text, request.output)
    return status


def _in_boot(request: Request, own: Mapping[str, str]) -> int:
    """Show the first call of a function in a kernel's boot, and return the exit status."""
    if request.command:
        raise UsageError("flow --boot shows a call of the boot, before a command runs",
                         "leave out -c, or --boot")  # fmt: skip
    if "--if" in own or request.show_program:
        raise UsageError("flow --boot uses no D program: it shows the first call of the boot",
                         "leave out --if and -d")  # fmt: skip
    if request.machine.cpus > 1:
        raise UsageError("flow --boot gives the guest one CPU", "leave out --cpus")
    machine = replace(request.machine, cpus=1, steady_time=True)
    text, status = call_flow.executed_call(replace(request, machine=machine), request.arguments[0])
    outcome.put(text, request.output)
    return status
