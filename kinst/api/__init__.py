"""The library: open a machine, list its probes, compile a program for it, trace, get events.

    with kinst.boot() as machine, machine.trace(program, command="ls") as trace:
        for event in trace:
            ...

A Machine stays open for as many traces as there are, one at a time; several machines may be open
at once.  A trace plants its probes when its first event is asked for, and unplants them when it is
over, closed, or left by an exception.  Nothing here prints, sets a signal handler or ends the
process: what people should be told goes to on_message.
"""

from __future__ import annotations

from kinst.api.machine import Machine
from kinst.api.opening import (
    attach,
    boot,
    expand_in_file,
    expand_request,
    host,
    kernel_files,
    list_kernels,
)
from kinst.api.program import Program
from kinst.api.trace import Trace
from kinst.kernels.fetch import Offered
from kinst.kernels.releases import names_release
from kinst.session.report import Report
from kinst.session.sizes import parse_cpus, parse_memory
from kinst.session.values import (
    DUMP_STAGES,
    Files,
    ListedProbe,
    ProbeStability,
    ProgramStability,
    ProgramText,
    Request,
)

__all__ = [
    "DUMP_STAGES", "Files", "ListedProbe", "Machine", "Offered", "ProbeStability", "Program",
    "ProgramStability", "ProgramText", "Report", "Request", "Trace", "attach", "boot",
    "expand_in_file", "expand_request", "host", "kernel_files", "list_kernels", "names_release",
    "parse_cpus", "parse_memory",
]  # fmt: skip
