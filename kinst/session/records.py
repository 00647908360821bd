"""Events from a trace's scratch memory: records of the rings, faults, aggregations, lost data.

Tested by tests/session/test_place.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from kinst.consumer.aggregations import AggregationStore, CounterSums
from kinst.consumer.dynvars import Cleaner
from kinst.consumer.faults import PlacedFault
from kinst.consumer.interpreter import Interpreter
from kinst.consumer.messages import fault_event, lost_events, lost_faults
from kinst.consumer.rings import Chunk, FaultEntry, RingReader, Rings
from kinst.consumer.schema import Schema
from kinst.consumer.symbols import Names
from kinst.core.layout import (
    ARGUMENT_NONE,
    FAULT_BADADDR,
    FAULT_ILLOP,
    HEADER_ACTIVE,
    HEADER_NSPEC,
    HEADER_SPECSIZE,
    STATE_CLOSED,
    Scratch,
)
from kinst.core.probe import Probe, Site
from kinst.core.words import MASK
from kinst.dlang import typed
from kinst.dlang.vocabulary.d_options import Options
from kinst.dlang.walk import find
from kinst.events import Arrived, Closing, Event, Lost
from kinst.providers import interfaces
from kinst.session.report import Report
from kinst.session.values import EnabledSite, PlacedProgram, TracePlan

NO_RESULT = "arg1 is not known where the function ends in a jump to another function"
USER_ADDRESS = "a user program's address: copyin() and copyinstr() read its memory"
_MOST_SITES = 3  # sites that a message lists
_NULL_END = 1 << 16  # a lower address is rather that of a member of a structure at NULL
SLOW_SECONDS = 0.5  # a client that takes longer for one event is slow
PRINT_SECONDS = 0.1  # how long records wait, unless switchrate says otherwise
FIRST_SECONDS = 0.005  # until the first record, which a user waits for


def set_speculations(view: memoryview, count: int, size: int) -> None:
    """Write into scratch how many speculations there are, and how many bytes each has on one CPU.

    Args:
        view: the trace's scratch.
    """
    view[HEADER_NSPEC : HEADER_NSPEC + 8] = count.to_bytes(8, "little")
    view[HEADER_SPECSIZE : HEADER_SPECSIZE + 8] = size.to_bytes(8, "little")


def set_active(view: memoryview, scratch: Scratch, active: bool) -> None:
    """Turn the clauses that run in the target on or off.

    Args:
        view: the trace's scratch.
    """
    for slot in range(scratch.cpus + 1):
        at = scratch.state_of(slot) + STATE_CLOSED
        view[at : at + 4] = int(not active).to_bytes(4, "little")
    view[HEADER_ACTIVE : HEADER_ACTIVE + 8] = int(active).to_bytes(8, "little")


def is_active(view: memoryview) -> bool:
    """Return whether clauses run: not before the trace starts, nor after an exit().

    Args:
        view: the trace's scratch.
    """
    return view[HEADER_ACTIVE] == 1


class TraceRecords:
    """Records, faults and aggregations of one trace, read from its scratch and turned into events.

    Attributes:
        schema: the layout and meaning of records, for renderers.
        first: whether no record has arrived yet.
        has_fired: whether a record or a fault of a probe in the kernel has arrived or been lost.
        ring_reader: reads the rings in a thread of its own.
        interpreter: does what records ask for: exit(), setopt(), printa(), ...
        store: all aggregations.
    """

    def __init__(
        self,
        plan: TracePlan,
        names: Names,
        report: Report,
        before: TraceRecords | None,
        gather: Callable[[], None] | None,
        besides: Callable[[], None],
        user_end: int = 0,
    ) -> None:
        """Prepare to read what a plan's clauses will write.

        Args:
            names: lookup of names for recorded addresses.
            before: the records of the preceding batch, which has the same program; None for the
                first batch.
            gather: copies the counters to scratch; None if CPUs count in scratch.
            besides: called by the thread that reads the rings, each time that it has read them;
                restores the kernel's text if the trace must end.
            user_end: end of the addresses that user programs have; 0 if it is not known.
        """
        placed, parts, compiled = plan.placed, plan.placement, plan.compiled
        options = compiled.options
        self.first = True
        self.has_fired = False
        self._next_report = 0.0  # time of the next report of lost data
        self._report = report
        self._view, self._scratch = placed.memory.view, placed.scratch
        self._epids = {e.epid + k: e.probe for e in parts.running for k in range(len(e.clauses))}
        unknown = without_result(parts.running, compiled.program)
        self._without_result = frozenset(epid for epid, _ in unknown)
        if unknown and before is None:
            report.leave_out(no_result_told(site for _, site in unknown))
        self._copying = epids_that_copy(parts.running, compiled.program)
        self._user_end = user_end
        self._error = parts.error.probe
        self._rings = Rings(self._view, self._scratch)
        cleaner = Cleaner(self._view, self._scratch, placed.layout.dynamic, options.cleanrate)
        self.ring_reader = RingReader(
            self._rings, options.queuesize, besides=(cleaner.clean, besides)
        )
        self.store: AggregationStore = AggregationStore(
            self._view,
            self._scratch,
            compiled.program,
            placed.layout,
            _counters(placed),
            names,
            _sums(plan),
            before.store if before is not None else None,
            gather,
        )
        # The first batch's schema serves all batches: only the host's probes make records.
        shown = parts.running if before is None else parts.host
        self._probes: dict[int, Probe] = {} if before is None else before._probes
        self._probes |= {e.probe.id: e.probe for e in (*shown, parts.error)}
        self.schema = Schema(
            compiled.program, placed.layout, self._probes, self.store.tables, options, names
        )
        self.interpreter = Interpreter(self.schema, self.store)
        if before is not None:
            self.interpreter.options = before.interpreter.options
        set_speculations(self._view, options.nspec, options.specsize)

    def use_counters(self, plan: TracePlan) -> None:
        """From now on, add up the counts of another plan's counters in the aggregations.

        Args:
            plan: the plan by which the trace goes on, in place of the plan that __init__() got.
        """
        self.store.use_counters(_counters(plan.placed), _sums(plan))

    # Whether clauses run.

    def activate(self, active: bool) -> None:
        """Turn the clauses that run in the target on or off."""
        set_active(self._view, self._scratch, active)

    @property
    def active(self) -> bool:
        """Whether clauses run: not before the trace starts, nor after an exit()."""
        return is_active(self._view)

    @property
    def wait(self) -> float:
        """Seconds for which records may wait before they are shown."""
        if self.ring_reader.behind:
            return 0.0
        if self.first:
            return FIRST_SECONDS
        rate = self.interpreter.options.switchrate
        return PRINT_SECONDS if rate == Options().switchrate else rate / 1e9

    # From records to events.

    def arrived(self) -> Iterator[Event]:
        """Yield the events of the records that have arrived since the last call."""
        yield from self._take(self.ring_reader.batch())

    def rest(self) -> Iterator[Event]:
        """Yield the events of the remaining records, when no clause runs any more."""
        for chunks in self.ring_reader.stop():
            yield from self._take(chunks)
        yield from self._lost(last=True)

    @property
    def has_counted(self) -> bool:
        """Whether any aggregation had a value when aggregations were last read."""
        tables = self.store.tables.values()
        return any(entry.data.any() for one in tables for entry in one.entries.values())

    def finish(self) -> Iterator[Event]:
        """Yield the last events of a trace: of the records that bufpolicy `fill` or `ring` has held
        back until now, of faults, and of the aggregations that no printa() has printed.
        """
        yield from self._noted(self.interpreter.finish())

    def _take(self, chunks: list[Chunk]) -> Iterator[Event]:
        """Yield the events of some records: first lost data, then records and faults. This is the
        order of libdtrace's dtrace_work().

        Data that are lost while a slow client handles an event are reported before the next event.

        Args:
            chunks: bytes of records, as they were read from the rings.
        """
        faults = [item for slot in range(self._rings.slots) for item in self._faults(slot)]
        self._note_slots(item.slot for some in (chunks, faults) for item in some)
        yield from self._lost()
        for event in self._noted(self.interpreter.take(chunks, faults)):
            given = time.monotonic()
            yield event
            if time.monotonic() - given > SLOW_SECONDS:
                yield from self._lost()

    def _note_slots(self, slots: Iterable[int]) -> None:
        """Note whether probes have fired in the kernel, by the CPU slots of records, faults or
        losses."""
        self.has_fired = self.has_fired or any(slot < self._scratch.cpus for slot in slots)

    def _lost(self, last: bool = False) -> list[Lost]:
        """Return the events of the data that were lost since the last report. There are at most as
        many reports as statusrate says.

        Args:
            last: whether to report now in any case.
        """
        now = time.monotonic()
        if now < self._next_report and not last:
            return []
        losses, options = self._rings.lost(), self.interpreter.options
        if losses:
            self._next_report = now + options.statusrate / 1e9
        self._note_slots(item.slot for item in losses)
        return lost_events(losses, self._scratch.cpus, options.droptags)

    def _noted(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events unchanged. Once the client has handled the first records, report how
        long each stage took.
        """
        arrived = False
        for event in events:
            if isinstance(event, Closing) and self.first:
                self._tell_first(arrived)
            arrived = arrived or isinstance(event, Arrived)
            yield event
        if arrived and self.first:
            self._tell_first(arrived)

    def _tell_first(self, arrived: bool) -> None:
        self.first = False
        if arrived:
            self._report.stage("first record")
        self._report.tell_stages()

    def _faults(self, slot: int) -> list[PlacedFault]:
        """Return the faults of a CPU's clauses since the last call. Overwritten faults are reported
        as lost.

        Args:
            slot: the CPU's index in scratch; the number of CPUs, for clauses that the host runs.
        """
        entries, more = self._rings.faults(slot)
        cpus, faults = self._scratch.cpus, []
        for one in entries:
            probe = self._epids.get(one.epid, self._error)
            event = fault_event(one, probe, slot, cpus, self._reason(one, probe))
            faults.append(PlacedFault(slot, one.head, one.time, event))
        if more:
            lost = lost_faults(more, slot, cpus)
            # All faults may have been overwritten: the loss is told before the remaining records.
            head, when = (faults[0].head, faults[0].time) if faults else (0, 0)
            faults.insert(0, PlacedFault(slot, head, when, lost))
        return faults

    def _reason(self, fault: FaultEntry, probe: Probe) -> str:
        """Return what made a clause of a probe fail, in words for the user; "" if that is not
        known.
        """
        if fault.kind == FAULT_ILLOP and fault.epid in self._without_result:
            return NO_RESULT
        if fault.kind != FAULT_BADADDR or probe.site is None or fault.epid in self._copying:
            return ""
        return USER_ADDRESS if _NULL_END <= fault.value < self._user_end else ""


def epids_that_copy(enabled: Iterable[EnabledSite], program: typed.TypedProgram) -> frozenset[int]:
    """Return the epids of clauses that read or write user memory: by copyin() or the like."""
    copying = {
        clause.index
        for clause in program.clauses
        if any(one.name.startswith("copy") for one in find(clause, typed.Subroutine))
    }
    return frozenset(
        e.epid + k for e in enabled for k, clause in enumerate(e.clauses) if clause in copying
    )


def without_result(
    enabled: Iterable[EnabledSite], program: typed.TypedProgram
) -> list[tuple[int, Site]]:
    """Return (epid, site) for each clause that reads a function's result (arg1) at a return probe,
    and for each of the probe's sites at which control leaves the function by a jump to another
    function. The result is not known there.
    """
    returns = {name: one.returns for name, one in interfaces().items() if not one.system_calls}
    reading = {
        clause.index
        for clause in program.clauses
        if any(one.name == "arg1" for one in find(clause, typed.Builtin))
    }
    return [
        (e.epid + k, e.probe.site)
        for e in enabled
        if reading
        and e.probe.site is not None
        and e.probe.name.name in returns.get(e.probe.name.provider, ())
        and e.arguments[1:]
        and e.arguments[1].kind == ARGUMENT_NONE
        for k, clause in enumerate(e.clauses)
        if clause in reading
    ]


def no_result_told(sites: Iterable[Site]) -> str:
    """Return a message that says at which sites a function's result is not known."""
    places = list(dict.fromkeys(f"{site.function.name}+{site.offset}" for site in sites))
    more = f" and {len(places) - _MOST_SITES} more" if len(places) > _MOST_SITES else ""
    return f"kinst: at {', '.join(places[:_MOST_SITES])}{more}: {NO_RESULT}"


def _sums(plan: TracePlan) -> CounterSums:
    """Return how to compute the counts of sites from block counters.

    A block counter counts for all sites of a basic block. Counters are given by their index in a
    CPU's counter block.
    """
    counters, sums = plan.placed.counters, plan.sites.sums
    base = counters.displacement if counters is not None else 0
    first = np.uint64(base & MASK)
    source, target = (
        (place.view(np.uint64) - first).view(np.int64) >> 3 for place in (sums.source, sums.target)
    )
    return CounterSums(source, target, sums.weight)


def _counters(placed: PlacedProgram) -> list[npt.NDArray[np.uint64]]:
    """Return each CPU's counter block as an array of 64-bit words; empty without counters."""
    if placed.counters is None:
        return []
    view = placed.memory.view
    words = np.frombuffer(view, np.uint64, len(view) // 8)
    size = placed.counters.size // 8
    return [words[at // 8 : at // 8 + size] for at in placed.counters.offsets]
