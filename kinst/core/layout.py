"""The layout of scratch: offsets of what code in the target writes and the consumer reads.

Scratch is one range of bytes that the target sees at `address` and that kinst maps. Offsets here
are from its start. All integers are little-endian.

0              header page: activity, active aggregation half (HEADER_*)
per CPU        one state page each (STATE_*), then ring, then aggregation halves, temp
globals, strings, site descriptors, trap table, dynamic variables, text

CPU slot n_cpus (one past the target's last CPU) belongs to clauses that kinst runs on the host.

Tested by tests/codegen/layout/test_layout.py."""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.words import PAGE

LEAF = 2 << 20  # bytes that one entry of the last level but one of page tables maps

# Header page.
HEADER_ACTIVE = 0  # u64: 0 not started or ended: probes return at once; 1 running
HEADER_HALF = 8  # u64: 0 or 1: which aggregation half producers write
HEADER_RAISE = 16  # u64: address of the function that sends the signals of raise(); 0 without one

# u64 x 3: the kernel's clock (Clock of core/system.py): base_cycles, mult, base_ns. Clauses load
# them: they differ from trace to trace, and the code of clauses is kept in the cache.
HEADER_CLOCK = 24

# Speculations.  A slot's word is even while it is free and odd while it is in use: every use adds
# two.  Records carry word << 8 | (slot number, from 1), which is different for every use.
HEADER_NSPEC = 1008  # u64: slots in use (option nspec), at most MOST_SPECULATIONS
HEADER_SPECSIZE = 1016  # u64: bytes that one speculation may record on one CPU (specsize)
HEADER_SPECULATIONS = 1024  # u64 for each slot
MOST_SPECULATIONS = 255

# Per-CPU state page.
STATE_NESTED = 8  # u64: probes that fired while this CPU was in a clause, and were dropped
STATE_HEAD = 16  # u64: bytes ever produced into the ring
STATE_TAIL = 24  # u64: bytes ever consumed; only the consumer writes this word
STATE_DROPS = 32  # u64: records lost for want of ring space
STATE_AGG_DROPS = 40  # u64: aggregation updates lost for want of table space
STATE_ERRORS = 48  # u64: faults (each also fires dtrace:::ERROR)
STATE_RANDOM = 512  # u64: state of this CPU's rand(); 0 before the first call
STATE_FAULT = 56  # u64 x 4: last fault, for dtrace:::ERROR: epid, action, kind, value
STATE_DYNAMIC_DROPS = 128  # u64: assignments lost for want of dynamic variable space
STATE_DYNAMIC_DIRTY = 136  # u64: lost assignments while freed space was dirty
STATE_DYNAMIC_RINSING = 144  # u64: lost assignments while freed space was being cleaned

STATE_SPEC_DROPS = 528  # u64: records lost for want of room in a speculation
STATE_SPEC_FAILED = 536  # u64: speculation() without a free slot
STATE_DOUBLE_ERRORS = 544  # u64: faults in dtrace:::ERROR itself (counted in STATE_ERRORS, too)
STATE_TOLD = 552  # u64: entries ever written to STATE_FAULTS
# u64: STATE_HEAD and the bytes of records that are being written; kept by programs that write
# records without a call (core/bodies.py RecordBody), and 0 in others
STATE_RESERVED = 560
# Code that writes records without a call reads both words in one load of 8 bytes.
STATE_CLOSED = 572  # u32: 1 once kinst has ended the trace (HEADER_ACTIVE)
STATE_SEQUENCE = 576  # u64: odd while this CPU is in a clause; +1 on entry, +1 on exit
STATE_RAISE = 640  # raise(): the kernel's structure for work in an interrupt of its own
RAISE_SIZE = 64  # bytes for this structure
STATE_RAISE_THREAD = 704  # u64: thread that the signal is for
STATE_RAISE_SIGNAL = 712  # u64: number of the signal
# The last FAULTS_KEPT faults, u64 x 4 each, entry n at n modulo FAULTS_KEPT: epid | kind << 32 |
# action << 40; the value; the time; STATE_HEAD then.
STATE_FAULTS = 1024
FAULTS_KEPT = 32
STATE_SPECULATIONS = 2048  # u64 for each slot: word << 32 | bytes recorded for this use

# End of the working memory of clauses: memory for alloca() and copyin(), then the string that
# strtok() keeps (strsize bytes).
ARENA = 16384

# Ring record header; records are padded to 8 bytes and never wrap (a PAD record fills).
RECORD_SIZE = 0  # u32: bytes with header and padding
RECORD_CLAUSE = 4  # u32: clause index, or RECORD_PAD
RECORD_PROBE = 8  # u32: Probe.id
RECORD_CPU = 12  # u32: CPU number (D's cpu)
RECORD_TIME = 16  # u64: timestamp, ns
RECORD_HEADER = 24
RECORD_PAD = 0xFFFFFFFF

# Fault kinds (dtrace:::ERROR arg4; DTrace's DTRACEFLT_*).
FAULT_BADADDR = 1
FAULT_BADALIGN = 2
FAULT_ILLOP = 3
FAULT_DIVZERO = 4
FAULT_NOSCRATCH = 5

# Site descriptor: what a clause reads about the probe that fired.
SITE_PROBE = 0  # u32 Probe.id
SITE_EPID = 4  # u32 epid of this (probe, first clause); clause k of the site has epid + k
SITE_PC = 8  # u64 address of the instruction
SITE_PROVIDER = 16  # u64 address of a NUL-terminated string, as seen by the machine that runs it
SITE_MODULE = 24
SITE_FUNCTION = 32
SITE_NAME = 40
SITE_CFA_SLOT = 48  # u32 frame slot of the CFA's base register; 0xffffffff: caller unknown
SITE_CFA_OFFSET = 52  # i32 CFA = frame[slot] + offset
SITE_RA_OFFSET = 56  # i32 return address is at CFA + this, or, with RA_IN_SLOT, frame[slot]
SITE_PAD = 60
SITE_ARGUMENTS = 64  # arg0 to arg9: u32 ARGUMENT_*, i32 value each
SITE_KEYS = 144  # u64[]: index of this site's own entry in each constant-key aggregation
SITE_HEADER = 144

RA_IN_SLOT = -(1 << 31)

# Kinds of argN at a site.
ARGUMENTS = 10
ARGUMENT_HOST = 0  # in the context of host-run clauses (CONTEXT_ARGS); none in the target
ARGUMENT_SLOT = 1  # frame[value]
ARGUMENT_CONSTANT = 2  # value
ARGUMENT_STACK = 3  # the u64 at the stack pointer + value
ARGUMENT_NONE = 4  # no argument: reading it is an illegal operation
ARGUMENT_POINTED = 5  # the u64 at frame[slot] + offset; value: offset << 8 | slot
POINTED_SLOT = 0xFF  # the slot's bits
POINTED_SHIFT = 8

# Context of host-run clauses: the frame (Isa.frame_slots u64) is followed by these u64.
CONTEXT_CPU = 0
CONTEXT_PID = 1
CONTEXT_TID = 2
CONTEXT_PPID = 3
CONTEXT_UID = 4
CONTEXT_GID = 5
CONTEXT_CURTHREAD = 6
CONTEXT_TIMESTAMP = 7
CONTEXT_VTIMESTAMP = 8
CONTEXT_WALLTIMESTAMP = 9
CONTEXT_CALLER = 10
CONTEXT_ARGS = 11  # ten u64
CONTEXT_EXECNAME = 21  # 32 bytes, NUL-terminated
CONTEXT_INTERRUPT = 25  # builtins["interrupt"] of Facts
# Addresses of strings of kinst's own process, for BEGIN, END and timers; 0 for stopped CPUs.
CONTEXT_EXECARGS = 26
CONTEXT_CWD = 27
CONTEXT_ROOT = 28
CONTEXT_SLOTS = 29
# At the end: the number of frames that the host found on the stack, then the frames, then zeros up
# to the length of the program's longest stack().
CONTEXT_STACK = CONTEXT_SLOTS


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where each area of scratch is.

    Offsets are from the start of scratch; sizes are in bytes. There are cpus + 1 CPU slots: one for
    each CPU of the target, and a last one for the host."""

    address: int  # target virtual address of offset 0
    size: int
    cpus: int
    state: int  # state pages, one after another
    ring: int  # rings, one after another
    ring_size: int
    aggs: int  # aggregation areas: slot * 2 * agg_size + half * agg_size
    agg_size: int
    temp: int  # working memory of clauses, temp_size for each slot
    temp_size: int
    globals: int
    globals_size: int
    strings: int
    strings_size: int
    sites: int
    sites_size: int
    traps: int
    traps_size: int
    text: int  # code: clauses, hooks, trampolines, up to size
    dynamic: int = 0  # dynamic variables
    dynamic_size: int = 0

    def state_of(self, slot: int) -> int:
        return self.state + slot * PAGE

    def ring_of(self, slot: int) -> int:
        return self.ring + slot * self.ring_size

    def agg_of(self, slot: int, half: int) -> int:
        return self.aggs + (slot * 2 + half) * self.agg_size


def lay_out(
    address: int,
    size: int,
    cpus: int,
    *,
    ring_size: int,
    agg_size: int,
    globals_size: int,
    strings_size: int,
    sites_size: int,
    traps_size: int,
    temp_size: int = 16384 + ARENA,
    dynamic_size: int = 0,
    text_from: int = 0,
) -> Scratch:
    """Lay out the areas of scratch one after another, each from a page boundary. The text area
    takes the rest.

    Raises ValueError if `size` leaves no text area.

    Args:
        address: address of scratch in the target.
        size: bytes of scratch.
        cpus: number of CPUs of the target.
        text_from: lowest offset of the text area, a multiple of a page.
    """

    def pages(n: int) -> int:
        return (n + PAGE - 1) & -PAGE

    slots = cpus + 1
    at = PAGE
    places = []
    for need in (
        slots * PAGE,
        slots * ring_size,
        slots * 2 * agg_size,
        slots * temp_size,
        globals_size,
        strings_size,
        sites_size,
        traps_size,
        dynamic_size,
    ):
        places.append(at)
        at += pages(need)
    at = max(at, text_from)
    if at >= size:
        raise ValueError(f"scratch of {size} bytes is too small: {at} are needed before text")
    return Scratch(
        address, size, cpus,
        places[0], places[1], ring_size, places[2], agg_size, places[3], temp_size,
        places[4], globals_size, places[5], strings_size, places[6], sites_size,
        places[7], traps_size, at, places[8], dynamic_size,
    )  # fmt: skip
