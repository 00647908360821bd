"""The whole path, from a command line understood to the last line printed.

programs -> compiled D -> target (boots meanwhile) -> personality -> probes -> ways
         -> layout -> code and plan -> planted -> trace -> unplanted -> the rest printed
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pprint import pformat

from kinst.codegen.analysis import asks_caller
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.consumer.messages import description_matched, script_matched
from kinst.core.errors import KinstError
from kinst.core.probe import Function, ProbeName
from kinst.core.records import ProgramLayout
from kinst.dlang.syntax.unparse import unparse
from kinst.image.elf import open_elf
from kinst.patch.ways import forced_way
from kinst.providers import load_all
from kinst.session.build import build, fill, split
from kinst.session.counters import place_counters
from kinst.session.enable import (
    check_arguments,
    check_cpu,
    check_system,
    enable,
    naming,
    on_one_cpu,
    wants_kernel,
    with_conditions,
)
from kinst.session.file import of_file, show_in_file
from kinst.session.inline import expanded, wants_expansion
from kinst.session.kernel import RunningKernel
from kinst.session.lines import source_of
from kinst.session.list import list_all, list_enabled, list_planned
from kinst.session.locals import with_locals
from kinst.session.modules import frames_finder
from kinst.session.place import make_memory, means_of, place_all
from kinst.session.program import compile_request
from kinst.session.report import Report
from kinst.session.run import Trace
from kinst.session.sizes import counters_room, scratch_needed, sizes
from kinst.session.stability import (
    check_stability,
    description_reports,
    probe_report_of,
    program_reports,
)
from kinst.session.target import (
    attach,
    find_files,
    isa_of,
    module_folders,
    open_target,
    programs_of,
)
from kinst.session.types import open_types, running_addresses, symbols_in
from kinst.session.values import (
    Compiled,
    EnabledSite,
    Files,
    Placed,
    Placement,
    PlantedImage,
    Request,
    TracedMachine,
)
from kinst.systems import of_image

MOST_LINES = 20_000  # instructions of one listing that are shown with their source lines


def run(request: Request, report: Report) -> int:
    """Do what the command line says; the exit status.  Raises KinstError."""
    if of_file(request):
        return show_in_file(request, report)
    isa = isa_of(request)
    files_found = cache(partial(find_files, request, report.progress))
    types = open_types(
        files_found, lambda: module_folders(files_found(), isa, report.progress), report
    )
    compiled = compile_request(request, isa, 0, types, report.say)
    providers = load_all()
    check_stability(compiled, providers)
    report.stage("compile D")
    if request.show_program and not wants_expansion(compiled):
        report.write(unparse(compiled.tree))
    if request.dump in ("tree", "typed"):
        value = compiled.tree if request.dump == "tree" else compiled.program
        report.write(pformat(value, width=100) + "\n")
        return 0
    if request.list_probes and not compiled.patterns:
        report.write("\n".join(list_all(providers)) + "\n")
        return 0
    if not compiled.patterns:
        raise KinstError("no probes specified", "-n or -s names some; -h is help")
    commanded = bool(request.command) and not request.list_probes
    wanted = commanded or bool(symbols_in(compiled.program))
    fired = not request.list_probes
    if not (wanted or wants_kernel(compiled.patterns, providers, fired=fired)):
        return _with_machine(request, compiled, TracedMachine(isa), report)
    files = files_found()
    elf = open_elf(files.debug)
    system = of_image(elf)
    check_system(compiled.program, providers, lambda name: system.lacks(name, elf))
    room = scratch_needed(
        compiled.options, compiled.program, request.cpus, compiled.trampolines
    ) + counters_room(request.cpus)
    with closing(open_target(request, isa, files, system, room, report.guest_output)) as target:
        report.stage("start")
        personality = attach(target, elf, system, report.say)
        report.stage("boot")
        kernel = RunningKernel(target, personality, isa)
        if commanded and not request.compile_only:
            pid = target.prepare_command(request.command)
            compiled = compile_request(request, isa, pid, types, before=compiled)
        programs = programs_of(request, files)
        traced = TracedMachine(
            isa, target, personality, kernel, personality.text, elf.path, programs
        )
        if wants_expansion(compiled) or asks_caller(compiled.program):
            folders = partial(module_folders, files, isa, report.progress)
            personality.find_frames_with(frames_finder(target, folders, report.say))
        if wants_expansion(compiled):
            compiled = expanded(request, compiled, traced, elf, files, report)
            compiled = with_locals(request, compiled, traced, files, report)
            if request.show_program:
                report.write(unparse(compiled.tree) + "\n")
        return _with_machine(request, compiled, traced, report, files)


def _no_source(function: Function, address: int) -> str:
    return ""


def _with_machine(
    request: Request,
    compiled: Compiled,
    traced: TracedMachine,
    report: Report,
    files: Files | None = None,
) -> int:
    absent = request.zero or compiled.options.zdefs
    zero = absent or request.list_probes
    providers = load_all()
    enabled, _ = enable(compiled.program, providers, traced.kernel, zero=zero, absent=absent)
    check_arguments(compiled.program, enabled)
    matched = enabled
    check_cpu(compiled.options.cpu, traced.cpus)
    enabled = on_one_cpu(enabled, compiled.options.cpu)
    program, enabled = with_conditions(compiled.program, enabled, traced.isa)
    compiled = replace(compiled, program=program)
    if request.list_probes and not enabled:
        first = compiled.patterns[0]
        raise KinstError(
            f"failed to match {first}: No probe matches description",
            naming(first, providers, traced.kernel),
        )
    if request.list_probes and not request.verbose:
        report.write("\n".join(list_enabled(enabled)) + "\n")
        return 0
    memory = make_memory(traced, compiled)
    forced = forced_way(compiled.plant)
    means = means_of(traced, memory, forced)
    parts = split(enabled, means, traced)
    if request.list_probes:
        source = source_of(traced, files, report) if len(enabled) <= MOST_LINES else _no_source
        about = partial(probe_report_of, providers=providers, types=compiled.types)
        rows = list_planned(enabled, parts, traced.kernel, source, about)
        report.write("\n".join(rows) + "\n")
        return 0
    _tell_refused(parts, report)
    if parts.stopped and not forced:
        number = len(parts.stopped)
        report.say(
            f"kinst: {number} probe{' is' if number == 1 else 's are'} stop-planted:"
            " the machine stops at each hit,"
            " for milliseconds" + (" (no scratch memory there)" if not memory.address else "")
        )
    layout = _layout(compiled, parts)
    counters = place_counters(traced, memory, layout.counters_size)
    placed = place_all(traced, memory, compiled, layout, parts.running, counters)
    symbols = running_addresses(compiled.program, compiled.types, traced)
    built = build(compiled.program, parts, placed, traced, symbols, chained=not compiled.plant)
    for site, reason in built.sites.refused:
        report.say(f"kinst: {site.function.name}+{site.offset} is left out: {reason}")
    report.stage("code and plan")
    if _dumped(request, parts, placed, built, report):
        return 0
    if request.compile_only:
        if request.verbose:
            report.write(program_reports(compiled, providers))
            report.write(description_reports(compiled, providers))
        return 0
    fill(memory.view, placed.scratch, built)
    _tell_matched(compiled, parts, matched, report)
    if request.verbose:
        report.write(program_reports(compiled, providers) + "\n")
    trace = Trace(compiled, parts, placed, built, traced, report)
    return trace.run(request.command)


def _layout(compiled: Compiled, parts: Placement) -> ProgramLayout:
    probed: list[tuple[ProbeName, int, tuple[int, ...]]] = [
        (e.probe.name, e.probe.id, e.clauses) for e in parts.running
    ]
    room = sizes(compiled.options, compiled.program).aggs
    options = compiled.options
    return lay_out_program(compiled.program, probed, options.strsize, room, options.dynvarsize)


def _tell_refused(parts: Placement, report: Report) -> None:
    """Refuse when nothing is left; otherwise say how many sites are left out."""
    if not parts.refused:
        return
    first, reason = parts.refused[0]
    if not parts.running:
        raise KinstError(
            f"{_place(first)} cannot be planted: {reason}",
            "kinst -l -v shows what can",
        )
    count = len(parts.refused)
    what = "1 instruction" if count == 1 else f"{count} instructions"
    report.say(f"kinst: {what} cannot be planted and {'is' if count == 1 else 'are'} left out"
               " (kinst -l -v says why)")  # fmt: skip


def _place(enabled: EnabledSite) -> str:
    site = enabled.probe.site
    return f"{site.function.name}+{site.offset}" if site else str(enabled.probe.name)


def _tell_matched(
    compiled: Compiled, parts: Placement, matched: Sequence[EnabledSite], report: Report
) -> None:
    """matched: the probes by the clauses as they were written."""
    if compiled.options.quiet:
        return
    left = {e.probe.id for e in parts.running}
    probes = {e.probe.id: e for e in matched if e.probe.id in left}  # with all their sites
    for text, clauses in compiled.texts:
        own = frozenset(clauses)
        count = sum(clause in own for e in probes.values() for clause in e.clauses)
        if text.letter == "s":
            report.say(script_matched(text.file, count))
        else:
            report.say(description_matched(text.text, count))


def _dumped(
    request: Request, parts: Placement, placed: Placed, built: PlantedImage, report: Report
) -> bool:
    """--dump of a stage behind the typed tree, and -S."""
    if request.show_code:
        report.write((built.code.ir if built.code else built.host.ir) + "\n")
        return True
    values = {
        "probes": parts,
        "layout": (placed.scratch, placed.layout, placed.counters),
        "ir": built.code.ir if built.code else built.host.ir,
        "code": built.code,
        "plan": (built.hooks, built.sites),
    }
    if request.dump not in values:
        return False
    value = values[request.dump]
    report.write((value if isinstance(value, str) else pformat(value, width=100)) + "\n")
    return True
