"""Where everything lies in scratch for one program."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

from kinst.codegen.analysis import string_table
from kinst.core.errors import KinstError, TargetError
from kinst.core.layout import PAGE, Scratch, lay_out
from kinst.core.records import ProgramLayout
from kinst.core.target import Target
from kinst.dlang import typed
from kinst.dlang.vocabulary.d_options import Options
from kinst.patch.descriptors import descriptor_size
from kinst.patch.ways import Means
from kinst.session.sizes import counters_room, data_needed, scratch_needed, sizes
from kinst.session.values import (
    Compiled,
    Counters,
    EnabledSite,
    Placed,
    ScratchMemory,
    TracedMachine,
)
from kinst.wire import native

TABLE_ROOM = 128  # trap and fault tables: bytes for each site, both at their emptiest


def make_memory(traced: TracedMachine, compiled: Compiled) -> ScratchMemory:
    """Map scratch into the target, or take memory of this process where it has none.

    Raises TargetError when the target should have scratch and no place for it is found.
    """
    size = scratch_needed(compiled.options, compiled.program, traced.cpus, compiled.trampolines)
    if traced.target is not None:
        room = counters_room(traced.cpus)
        data = data_needed(compiled.options, compiled.program, traced.cpus)
        address = _map(traced, traced.target, size + room, data)
        if address is not None:
            view = traced.target.scratch_view()
            return ScratchMemory(view, address, native.address_of(view), size)
    own = memoryview(mmap.mmap(-1, size))
    return ScratchMemory(own, 0, native.address_of(own), size)


def _map(traced: TracedMachine, target: Target, size: int, data: int) -> int | None:
    """Where scratch is mapped: in reach of the loaded modules too, where that can be.
    data: bytes at its start that need not be in reach of code."""
    low, high = traced.text
    modules = traced.personality.modules() if traced.personality else ()
    low = min((low, *(m.text[0] for m in modules)))
    high = max((high, *(m.text[1] for m in modules)))
    if (low, high) != traced.text:
        with suppress(TargetError):
            return target.map_scratch(size, traced.text, (low, high), data)
    return target.map_scratch(size, traced.text, data=data)


def means_of(traced: TracedMachine, memory: ScratchMemory, forced: str) -> Means:
    """What planting in this machine can rely on."""
    facts = traced.facts
    inside = facts is not None and bool(facts.nofault_read) and "cpu" in facts.builtins
    code = memory.address + memory.size - PAGE  # behind the data: near the end of scratch
    return Means(
        code if inside and memory.address else 0,
        facts is not None and bool(facts.trap_hook),
        facts is not None and bool(facts.fault_hook),
        forced,
    )


def place_all(
    traced: TracedMachine,
    memory: ScratchMemory,
    compiled: Compiled,
    layout: ProgramLayout,
    enabled: tuple[EnabledSite, ...],
    counters: Counters | None,
) -> Placed:
    """Lay out scratch for these probes.  Raises KinstError when it is too small."""
    try:
        scratch = place(
            memory.address, memory.size, traced.cpus, compiled.options, compiled.program, layout,
            enabled,
        )  # fmt: skip
    except ValueError as error:
        raise KinstError(str(error), "use a smaller bufsize or aggsize") from error
    return Placed(memory, scratch, layout, counters)


def place(
    address: int,
    size: int,
    cpus: int,
    options: Options,
    program: typed.Program,
    layout: ProgramLayout,
    enabled: Sequence[EnabledSite],
) -> Scratch:
    """The areas of scratch for these probes.  Raises ValueError when it is too small."""
    need = sizes(options, program)
    names = {part for e in enabled for part in e.probe.name.parts}
    strings = len(string_table(program)[1]) + sum(len(n.encode()) + 1 for n in names) + 64
    descriptors = (len(enabled) + 2) * descriptor_size(len(layout.constant_aggregations))
    return lay_out(
        address,
        size,
        cpus,
        ring_size=need.ring,
        agg_size=need.aggs,
        globals_size=max(layout.globals_size, 8),
        strings_size=strings,
        sites_size=descriptors,
        traps_size=PAGE + TABLE_ROOM * len(enabled),
        temp_size=need.temp,
        dynamic_size=need.dynamic,
    )
