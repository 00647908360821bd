"""Bytes of scratch that a program needs, computed before its probes are known.

Tested by tests/session/test_place.py.
"""

from __future__ import annotations

from dataclasses import replace

from kinst.codegen.layout.variable_places import dynamic_size, place_variables
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.layout import ARENA, LEAF
from kinst.core.records import SLOTS
from kinst.core.words import PAGE
from kinst.dlang import typed
from kinst.dlang.vocabulary.d_options import Options

MOST_DATA = 512 << 20  # for the buffers and variables of all CPUs
TEMP = 16384
LEAST_RING = 64
KEPT_RING = 4 << 20
LEAST_BUFFER = 8  # bytes; DTrace refuses a program that needs a smaller buffer (dtrace_state_go())
SITE_CODE = 256  # bytes of a trampoline and its share of tables, on average, at most
TRAMPOLINES = 32 << 20  # bytes of code that are set aside; -x scratch=SIZE asks for more
LEAST_CODE = 4 << 20  # if each piece of scratch costs time: for all code that belongs to no site


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of scratch that a program needs independently of its probes.

    Attributes:
        ring: bytes of each CPU's ring of records.
        aggs: bytes of each of a CPU's two areas of aggregations.
        temp: bytes of a CPU's strings and clause-local variables.
        dynamic: bytes of dynamic variables.
        variables: bytes of global variables.
        tables: bytes of slot tables, by which trampolines find the counters of a key.
    """

    ring: int
    aggs: int
    temp: int
    dynamic: int
    variables: int
    tables: int

    def data(self, cpus: int) -> int:
        """Return a lower bound for the bytes of data at the start of scratch: the rings,
        aggregations and variables, without what depends on the number of probes.
        """
        each = self.ring + 2 * self.aggs + self.temp + PAGE
        return (cpus + 1) * each + self.dynamic + self.variables + self.tables

    def scratch(self, cpus: int, trampolines: int, probes: int = 0) -> int:
        """Return the size in bytes of all scratch, data and code, a multiple of 2 MB.

        Args:
            trampolines: bytes of code; for scratch in kinst's own process (own_memory()), bytes of
                code, descriptors and tables.
            probes: number of probes, 0 if not known. If `trampolines` is too little for so many
                probes, the result has more bytes for code.
        """
        code = max(trampolines, SITE_CODE * probes)
        return (self.data(cpus) + code + LEAF - 1) & -LEAF


def sizes_of(options: Options, program: typed.TypedProgram) -> Sizes:
    """Return the sizes of a program's areas of scratch.

    The size of a ring is bufsize, but at least LEAST_RING, rounded up to a power of two so that
    positions wrap by a mask. With bufpolicy `fill` or `ring`, the consumer keeps bufsize bytes of
    records in memory of its own. Then a ring has at least KEPT_RING bytes, so that no record is
    lost before the consumer reads it.
    """
    wanted = options.bufsize if options.bufpolicy == "switch" else max(options.bufsize, KEPT_RING)
    ring = 1 << (max(wanted, LEAST_RING) - 1).bit_length()
    aggs = (options.aggsize + PAGE - 1) & -PAGE if program.aggregations else PAGE
    variables = place_variables(program, options.strsize)
    strings = max(TEMP, 16 * options.strsize) + variables.clause_size
    temp = (strings + ARENA + options.strsize + PAGE - 1) & -PAGE
    dynamic = dynamic_size(program, options.strsize, options.dynvarsize)
    tables = 8 * SLOTS * len(program.aggregations)
    return Sizes(ring, aggs, temp, dynamic, variables.globals_size, tables)


def check_buffers(options: Options, program: typed.TypedProgram) -> None:
    """Raise KinstError if a buffer that a program needs has less than LEAST_BUFFER bytes."""
    actions = [action for clause in program.clauses for action in clause.actions]
    needed = {
        "bufsize": any(not isinstance(one, typed.EvaluateAction) for one in actions),
        "aggsize": bool(program.aggregations),
        "specsize": speculates(program),
    }
    for name, is_needed in needed.items():
        size = getattr(options, name)
        if is_needed and size < LEAST_BUFFER:
            message = "could not enable tracing: Enabling exceeds size of buffer"
            raise KinstError(f"{message} ({name}={size})", f"a larger {name}")


def speculates(program: typed.TypedProgram) -> bool:
    """Return whether a clause of a program has a speculate()."""
    actions = (action for clause in program.clauses for action in clause.actions)
    return any(isinstance(a, typed.PerformAction) and a.name == "speculate" for a in actions)


def fitted(options: Options, program: typed.TypedProgram, cpus: int) -> Options:
    """Return the options with sizes for which all buffers fit in MOST_DATA bytes.

    If they do not fit, bufsize, aggsize, dynvarsize and specsize are halved until they do, as in
    DTrace.

    Args:
        cpus: number of CPUs.

    Raises KinstError with bufresize=manual, and if other options take all of MOST_DATA.
    """
    share = MOST_DATA
    speculations = options.nspec * (cpus + 1) if speculates(program) else 0
    while True:
        wanted = sizes_of(options, program).data(cpus) + speculations * options.specsize
        if wanted <= MOST_DATA:
            return options
        if options.bufresize == "manual" or share <= PAGE:
            raise KinstError(
                f"the buffers of {cpus} CPUs need {wanted} bytes, at most {MOST_DATA} can be had",
                "a smaller bufsize, aggsize, dynvarsize, specsize or strsize, or -x bufresize=auto",
            )
        share //= 2
        options = replace(
            options,
            bufsize=_halved(options.bufsize, share),
            aggsize=_halved(options.aggsize, share),
            dynvarsize=_halved(options.dynvarsize, share),
            specsize=_halved(options.specsize, share // max(speculations, 1)),
        )


def _halved(size: int, most: int) -> int:
    """Halve a size until it is at most `most` bytes, and return it."""
    while size > max(most, 1):
        size //= 2
    return size


def code_to_allocate(trampolines: int, probes: int) -> int:
    """Return how many bytes to allocate for code, if the kernel must be stopped for each
    allocation.

    The result is twice what the probes need, so that later traces seldom need another allocation.
    If the user has set -x scratch=, it is that size.

    Args:
        trampolines: bytes of code that the program asks for.
        probes: number of probes.
    """
    if trampolines != TRAMPOLINES:
        return trampolines
    return min(TRAMPOLINES, LEAST_CODE + 2 * SITE_CODE * probes)


def counters_room(cpus: int) -> int:
    """Return how many bytes to keep free at the end of scratch for the counter blocks of `cpus`
    CPUs."""
    return (cpus + 1) * LEAF
