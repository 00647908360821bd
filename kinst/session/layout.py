"""Where everything lies in scratch for one program, and the bytes that are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kinst.codegen.layout.place_variables import dynamic_size, place_variables
from kinst.codegen.layout.records import literal_keys
from kinst.codegen.walk import string_table
from kinst.core.errors import KinstError
from kinst.core.layout import ARENA, PAGE, Scratch, lay_out
from kinst.core.probe import Probe
from kinst.core.records import ProgramLayout
from kinst.dlang import typed
from kinst.dlang.vocabulary.options import Options
from kinst.patch.descriptors import FrameRule, Strings, descriptor, descriptor_size
from kinst.session.probes import Enabled

LEAF = 2 << 20
MOST_DATA = 512 << 20  # for the buffers and variables of all CPUs
TABLE_ROOM = 128  # trap and fault tables: bytes for each site, both at their emptiest
TEMP = 16384
KEPT_RING = 4 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the areas that do not depend on the probes."""

    ring: int
    aggs: int
    temp: int
    dynamic: int


def sizes(options: Options, program: typed.Program) -> Sizes:
    """ring: bufsize up to a power of two, so that positions wrap by a mask.  With the policies
    fill and ring it is the consumer that keeps bufsize bytes, and nothing may be lost before."""
    wanted = options.bufsize if options.bufpolicy == "switch" else max(options.bufsize, KEPT_RING)
    ring = 1 << max(12, (wanted - 1).bit_length())
    aggs = (options.aggsize + PAGE - 1) & -PAGE if program.aggregations else PAGE
    clause_local = place_variables(program, options.strsize).clause_size
    strings = max(TEMP, 16 * options.strsize) + clause_local
    temp = (strings + ARENA + options.strsize + PAGE - 1) & -PAGE
    dynamic = dynamic_size(program, options.strsize, options.dynvarsize)
    return Sizes(ring, aggs, temp, dynamic)


def fitted(options: Options, program: typed.Program, cpus: int) -> Options:
    """The options with buffers that fit in MOST_DATA bytes: as DTrace does without
    bufresize=manual, the sizes that are too big are halved until all fit.

    Raises KinstError with bufresize=manual, and where other options take all of it."""
    share = MOST_DATA
    while (wanted := data_needed(options, program, cpus)) > MOST_DATA:
        if options.bufresize == "manual" or share <= PAGE:
            raise KinstError(
                f"the buffers of {cpus} CPUs need {wanted} bytes, at most {MOST_DATA} can be had",
                "a smaller bufsize, aggsize, dynvarsize or strsize, or -x bufresize=auto",
            )
        share //= 2
        options = replace(
            options,
            bufsize=_halved(options.bufsize, share),
            aggsize=_halved(options.aggsize, share),
            dynvarsize=_halved(options.dynvarsize, share),
        )
    return options


def _halved(size: int, most: int) -> int:
    """A size halved until it is at most `most` bytes."""
    while size > max(most, 1):
        size //= 2
    return size


def scratch_needed(options: Options, program: typed.Program, cpus: int, trampolines: int) -> int:
    """Bytes to set aside in a VM before its probes are known; a multiple of a 2 MB leaf.

    trampolines: bytes for code, descriptors and tables."""
    return (data_needed(options, program, cpus) + trampolines + LEAF - 1) & -LEAF


def data_needed(options: Options, program: typed.Program, cpus: int) -> int:
    """Bytes at the start of scratch, at least, that hold no code (see lay_out())."""
    need = sizes(options, program)
    fixed = (cpus + 1) * (need.ring + 2 * need.aggs + need.temp + PAGE)
    return fixed + need.dynamic + place_variables(program, options.strsize).globals_size


def place(
    address: int,
    size: int,
    cpus: int,
    options: Options,
    program: typed.Program,
    layout: ProgramLayout,
    enabled: Sequence[Enabled],
) -> Scratch:
    """The areas of scratch for these probes.  Raises ValueError when it is too small."""
    need = sizes(options, program)
    names = {part for e in enabled for part in parts(e.probe)}
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


def parts(probe: Probe) -> tuple[str, str, str, str]:
    """The four parts of a probe's name."""
    name = probe.name
    return name.provider, name.module, name.function, name.name


@dataclass(frozen=True, slots=True)
class Descriptors:
    """data: of the sites area.  strings: of the strings area.  offsets: of each probe's
    descriptor in scratch, by Enabled.key.  error_target, error_host: of dtrace:::ERROR's."""

    data: bytes
    strings: bytes
    offsets: Mapping[tuple[int, int], int]
    error_target: int
    error_host: int


def describe(
    scratch: Scratch,
    host_base: int,
    program: typed.Program,
    layout: ProgramLayout,
    enabled: Sequence[Enabled],
    error: Enabled,
    in_target: frozenset[tuple[int, int]],
    rules: Mapping[tuple[int, int], FrameRule],
) -> Descriptors:
    """Site descriptors of all enabled probes.

    host_base: native address of scratch.  error: dtrace:::ERROR, enabled or not.  in_target:
    keys of those whose clauses run in the target: their pointers are target addresses.
    rules: by key, too.
    """
    strings = Strings(string_table(program)[1])
    wanted = [(e, e.key in in_target) for e in enabled] + [(error, True), (error, False)]
    size = descriptor_size(len(layout.constant_aggregations))
    data: list[bytes] = []
    offsets: list[int] = []
    for enable, inside in wanted:
        base = (scratch.address if inside else host_base) + scratch.strings
        addresses = {part: base + strings.add(part) for part in parts(enable.probe)}
        keys = tuple(
            layout.site_keys.get((enable.probe.id, index), 0)
            for index in layout.constant_aggregations
        )
        rule = rules.get(enable.key)
        offsets.append(scratch.sites + len(data) * size)
        data.append(descriptor(enable.probe, enable.epid, addresses, rule, keys, enable.arguments))
    return Descriptors(
        b"".join(data),
        strings.data,
        {e.key: at for (e, _), at in zip(wanted[:-2], offsets, strict=False)},
        offsets[-2],
        offsets[-1],
    )


def counted_entries(
    program: typed.Program, layout: ProgramLayout, enabled: Enabled
) -> tuple[int, ...] | None:
    """Offsets in the counter block that one hit adds one to, when counting with keys known
    beforehand is all that the probe's clauses do; otherwise None."""
    offsets = []
    for index in enabled.clauses:
        clause = program.clauses[index]
        if clause.predicate is not None or not clause.actions:
            return None
        for action in clause.actions:
            if not isinstance(action, typed.Aggregate):
                return None
            table = layout.aggregations[action.aggregation.index]
            if table.counters < 0 or table.constant_keys is None:
                return None
            keys = literal_keys(action.keys)
            entry = (
                table.constant_keys.index(keys)
                if keys is not None
                else layout.site_keys[enabled.probe.id, table.index]
            )
            offsets.append(table.counters + 8 * entry)
    return tuple(offsets)


def exits_in(program: typed.Program, clauses: frozenset[int]) -> bool:
    """Whether any of these clauses has an exit()."""
    return any(
        isinstance(action, typed.Exit) for c in clauses for action in program.clauses[c].actions
    )
