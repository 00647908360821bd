"""The library: open a machine, list its probes, compile a D program for it, trace, and get events.

    with kinst.boot() as machine, machine.trace(program, command="ls") as trace:
        for event in trace:
            ...

A Machine stays open for many traces, one at a time. Several machines may be open at once. A trace
plants its probes when its first event is asked for. It unplants them when the trace ends, is
closed, or is left by an exception. The library does not print, set signal handlers or end the
process: on_message gets messages for people.

Tested by tests/test_api_docs.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kinst.core.options import MachineOptions, Option
from kinst.core.probe import ProgramText
from kinst.kernels.releases import names_release
from kinst.machines import kinds as machine_kinds
from kinst.session.options import (
    DUMP_STAGES,
    KERNEL_OPTIONS,
    PROGRAM_OPTIONS,
    REFUSED_OPTIONS,
    TRACE_OPTIONS,
    disagreement,
)
from kinst.session.report import Report
from kinst.session.request import Request

if TYPE_CHECKING:
    from kinst.api.compiling import Compiler
    from kinst.api.machine import Machine
    from kinst.api.names import KernelNames, Vocabulary, kernel_names, vocabulary
    from kinst.api.opening import (
        attach,
        boot,
        describe_host,
        expand_in_file,
        expand_request,
        host,
        kernel_files,
        list_kernels,
        live,
        process,
    )
    from kinst.api.program import Program
    from kinst.api.trace import Trace
    from kinst.core.machine import EarlyStart
    from kinst.dlang.vocabulary.translation import translate
    from kinst.kernels.fetch import Offered
    from kinst.kernels.source_text import find_source, package_of, paths_within, read_sources
    from kinst.session.compiled import ProbeStability, ProgramStability
    from kinst.session.request_machine import Files, start_early
    from kinst.session.values import ListedProbe

__all__ = [
    "DUMP_STAGES",
    "KERNEL_OPTIONS",
    "PROGRAM_OPTIONS",
    "REFUSED_OPTIONS",
    "TRACE_OPTIONS",
    "Compiler",
    "EarlyStart",
    "Files",
    "KernelNames",
    "ListedProbe",
    "Machine",
    "MachineOptions",
    "Offered",
    "Option",
    "ProbeStability",
    "Program",
    "ProgramStability",
    "ProgramText",
    "Report",
    "Request",
    "Trace",
    "Vocabulary",
    "attach",
    "boot",
    "describe_host",
    "disagreement",
    "expand_in_file",
    "expand_request",
    "find_source",
    "host",
    "kernel_files",
    "kernel_names",
    "list_kernels",
    "live",
    "machine_kinds",
    "names_release",
    "package_of",
    "paths_within",
    "process",
    "read_sources",
    "start_early",
    "translate",
    "vocabulary",
]  # fmt: skip

_PLACES = {
    "Compiler": "kinst.api.compiling",
    "Machine": "kinst.api.machine",
    "Program": "kinst.api.program",
    "Trace": "kinst.api.trace",
    "Offered": "kinst.kernels.fetch",
    "translate": "kinst.dlang.vocabulary.translation",
    "EarlyStart": "kinst.core.machine",
    **dict.fromkeys(("Files", "start_early"), "kinst.session.request_machine"),
    **dict.fromkeys(
        ("find_source", "package_of", "paths_within", "read_sources"), "kinst.kernels.source_text"
    ),
    **dict.fromkeys(("KernelNames", "Vocabulary", "kernel_names", "vocabulary"), "kinst.api.names"),
    **dict.fromkeys(("ProbeStability", "ProgramStability"), "kinst.session.compiled"),
    "ListedProbe": "kinst.session.values",
}


def __getattr__(name: str) -> Any:
    """Return a name of this package from its module, which is imported at the first use of the name
    (PEP 562), because the module loads all of kinst."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "kinst.api.opening")), name)
