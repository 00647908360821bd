"""From the records of a batch to the text that dtrace(1) prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from kinst.consumer import flow
from kinst.consumer.aggprint import AggOptions, AggPrinter
from kinst.consumer.aggregations import AggregationStore
from kinst.consumer.clauses import Act, Step, Text, TraceStyle, compile_clause, value_of
from kinst.consumer.convert import Symbolise, Value, text
from kinst.consumer.decode import Records, merge
from kinst.consumer.faults import FaultOrder, Told
from kinst.consumer.flow import Flow, crossings_of
from kinst.consumer.rings import Bytes, Chunk
from kinst.consumer.speculations import Speculations
from kinst.core.errors import TargetError
from kinst.core.probe import Probe
from kinst.core.records import ProgramLayout
from kinst.dlang.typed import Clear, Exit, Normalize, Perform, Printa, Program, Trunc

HEADER = f"{'CPU':>3} {'ID':>6} {'FUNCTION:NAME':>32}\n"
BLOCK = 8192  # records formatted at once: bounds memory, and lets the drainer have its turn


@dataclass(frozen=True, slots=True)
class Display:
    """How things are shown: quiet (-q), flow (-F), and dtrace's options."""

    quiet: bool = False
    aggregations: AggOptions = field(default_factory=AggOptions)
    flow: bool = False


def hexadecimal(address: int) -> str:
    """The symboliser of who has no symbols."""
    return f"{address:#x}"


@dataclass(frozen=True, slots=True)
class Effects:
    """What is done for actions of the program.  system: run a command.  reopen: write to another
    file, "" for the first.  truncate: empty it.  set: an option's name and value; how things are
    shown from now on."""

    system: Callable[[str], None]
    reopen: Callable[[str], None]
    truncate: Callable[[], None]
    set: Callable[[str, str], Display]


class Printer:
    """Prints records in the order in which they happened.

    exit_status: of the last exit() record printed, None before one.
    """

    def __init__(
        self,
        program: Program,
        layout: ProgramLayout,
        probes: Mapping[int, Probe],
        write: Callable[[str], None],
        *,
        store: AggregationStore,
        display: Display | None = None,
        symbolise: Symbolise = hexadecimal,
        effects: Effects | None = None,
        tell: Callable[[str], None] = lambda message: None,
    ) -> None:
        """probes: by id.  write: takes text.  symbolise: address to module`function+0x13.
        tell: takes a message of a fault."""
        self.exit_status: int | None = None
        self._display = display or Display()
        self._write = write
        self._probes = probes
        self._store = store
        self._aggs = AggPrinter(store, self._display.aggregations, symbolise, write)
        self._headed = False
        self._prefixes: dict[int, str] = {}
        self._sizes = {one.clause: one.size for one in layout.clauses}
        self._symbolise = symbolise
        self._effects = effects
        self._clauses = {one.index: one for one in program.clauses}
        self._layouts = layout.clauses
        self._speculations = Speculations()
        self._flow = Flow(crossings_of(program.clauses))
        self._following: tuple[int, int] | None = None
        self._tell = tell
        self._faults = FaultOrder()
        self._clause = 0
        self._compile()

    def _compile(self) -> None:
        """Make the steps of every clause, for the display of now."""
        display = self._display
        style = TraceStyle(
            display.quiet, display.aggregations.rawbytes, self._symbolise,
            display.aggregations.names, display.flow,
        )  # fmt: skip
        self._steps: dict[int, tuple[Step, ...]] = {
            one.clause: compile_clause(self._clauses[one.clause], one, style, self._prefix)
            for one in self._layouts
            if one.size
        }
        self._acting = np.array(
            [
                c
                for c, steps in self._steps.items()
                if display.flow or any(isinstance(s, Act) for s in steps)
            ],
            dtype=np.uint32,
        )
        self._aggs.options = display.aggregations

    def _prefix(self, probe_and_cpu: int) -> str:
        if self._display.flow:
            identifier, cpu = probe_and_cpu & 0xFFFFFFFF, probe_and_cpu >> 32
            return self._flow.prefix(cpu, self._probes[identifier], self._clause, self._following)
        made = self._prefixes.get(probe_and_cpu)
        if made is None:
            identifier, cpu = probe_and_cpu & 0xFFFFFFFF, probe_and_cpu >> 32
            probe = self._probes.get(identifier)
            name = f"{probe.name.function}:{probe.name.name}" if probe else ":"
            made = self._prefixes[probe_and_cpu] = f"{cpu:3d} {identifier:6d} {name:>32} "
        return made

    def print(self, chunks: Sequence[Chunk], faults: Sequence[Told] = ()) -> int:
        """Print a batch of chunks, merged by time; returns how many records it had.

        faults: those since the last batch; their messages are told where they belong, at the
        latest with the next batch.  Raises TargetError when the bytes are not records of this
        program.
        """
        records = merge(chunks)
        told = self._faults.among(records, faults)
        if not len(records):
            self._tell_until(told, 0)
            return 0
        self._check(records)
        if not self._headed and (self._display.flow or not self._display.quiet):
            self._write(flow.HEADER if self._display.flow else HEADER)
            self._headed = True
        acting = np.flatnonzero(np.isin(records.clauses, self._acting))
        if len(acting):
            self._store.snapshot()
        at = 0
        following = self._next_of_cpu(records) if self._display.flow else {}
        for stop in acting.tolist():
            self._print_texts_and_faults(records, at, stop, told)
            self._following = following.get(stop)
            self._print_acting(records, stop)
            at = stop + 1
        self._print_texts_and_faults(records, at, len(records), told)
        return len(records)

    def _tell_until(self, told: list[tuple[int, str]], at: int) -> None:
        """Tell the messages that belong before the record at an index."""
        while told and told[0][0] <= at:
            self._tell(told.pop(0)[1])

    def _print_texts_and_faults(
        self, records: Records, at: int, stop: int, told: list[tuple[int, str]]
    ) -> None:
        while told and told[0][0] <= stop:
            self._print_texts(records, at, told[0][0])
            at = told[0][0]
            self._tell(told.pop(0)[1])
        self._print_texts(records, at, stop)

    def tell_rest(self) -> None:
        """After the last batch: the messages of faults behind its records."""
        for message in self._faults.rest():
            self._tell(message)

    def finish(self) -> None:
        """After the last batch, with the producers quiet: print every aggregation that no
        printa() has printed, as dtrace(1) does when it ends."""
        self.tell_rest()
        self._store.finish()
        self._aggs.rest()

    def _check(self, records: Records) -> None:
        sizes = records.data.view("<u4")[records.offsets >> 2]
        for clause in np.unique(records.clauses).tolist():
            expected = self._sizes.get(clause, 0)
            if not expected or bool((sizes[records.clauses == clause] != expected).any()):
                raise TargetError(f"a record of clause {clause} is corrupt: not {expected} bytes")

    def _print_texts(self, records: Records, start: int, stop: int) -> None:
        """Records whose clauses make nothing but text."""
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            self._write("".join(self._block(records, at, end)))

    def _block(self, records: Records, at: int, end: int) -> list[str]:
        clauses = records.clauses[at:end]
        offsets = records.offsets[at:end]
        present = np.unique(clauses).tolist()
        if len(present) == 1:
            return self._render(present[0], records.rows(offsets, self._sizes[present[0]]))
        texts: npt.NDArray[np.object_] = np.empty(end - at, dtype=object)
        for clause in present:
            mine = np.flatnonzero(clauses == clause)
            rows = records.rows(offsets[mine], self._sizes[clause])
            texts[mine] = self._render(clause, rows)
        result: list[str] = texts.tolist()
        return result

    def _render(self, clause: int, rows: Bytes) -> list[str]:
        steps = self._steps[clause]
        if not steps:
            return [""] * len(rows)
        (step,) = steps  # without actions all text is one step
        assert isinstance(step, Text)
        return step.render(rows)

    def _next_of_cpu(self, records: Records) -> dict[int, tuple[int, int]]:
        """For each record, by its index: (probe id, clause) of the next one of its CPU."""
        found: dict[int, tuple[int, int]] = {}
        latest: dict[int, int] = {}
        words = records.data.view("<u4")
        for index, offset in enumerate(records.offsets.tolist()):
            clause, probe, cpu = words[(offset >> 2) + 1 : (offset >> 2) + 4].tolist()
            if cpu in latest:
                found[latest[cpu]] = probe, clause
            latest[cpu] = index
        return found

    def _print_acting(self, records: Records, index: int) -> None:
        """One record of a clause that also acts."""
        clause = int(records.clauses[index])
        row = records.rows(records.offsets[index : index + 1], self._sizes[clause])
        self._print_row(clause, row)

    def _print_row(self, clause: int, row: Bytes, *, kept: bool = False) -> None:
        """A record, step by step.  kept: it was speculated, and is now committed."""
        self._clause = clause
        steps = self._steps[clause]
        for step in steps:
            if isinstance(step, Act) and _is(step, "speculate") and not kept:
                use = self._number(step, row) or 0
                show = partial(self._print_row, clause, row.copy(), kept=True)
                self._speculations.keep(use, show)
                return
        at = acts = 0
        while at < len(steps):
            step, at = steps[at], at + 1
            if isinstance(step, Text):
                self._write(step.render(row)[0])
                continue
            self._act(step, row)
            acts += 1
            if self._steps[clause] is not steps:  # setopt(): what follows is shown in another way
                steps = self._steps[clause]
                at = [i for i, one in enumerate(steps) if isinstance(one, Act)][acts - 1] + 1

    def _number(self, step: Act, row: Bytes) -> int | None:
        """The value of the action's last field (clear, trunc and normalize may have none)."""
        if not step.fields:
            return None
        value = value_of(row, step.fields[-1])
        assert isinstance(value, int)
        return value

    def _act(self, step: Act, row: Bytes) -> None:
        action = step.action
        if isinstance(action, Exit):
            status = self._number(step, row)
            self.exit_status = status or 0
        elif isinstance(action, Printa):
            self._aggs.printa(action.format, action.aggregations)
        elif isinstance(action, Clear):
            self._store.clear(action.aggregation.index)
        elif isinstance(action, Trunc):
            count = None if action.count is None else self._number(step, row)
            self._store.truncate(action.aggregation.index, count)
        elif isinstance(action, Normalize):
            divisor = None if action.divisor is None else self._number(step, row)
            self._store.normalize(action.aggregation.index, divisor)
        elif isinstance(action, Perform):
            self._perform(action.name, step, row)

    def _perform(self, name: str, step: Act, row: Bytes) -> None:
        if name in ("commit", "discard"):
            use = self._number(step, row) or 0
            (self._speculations.commit if name == "commit" else self._speculations.discard)(use)
        if self._effects is None:
            return
        text = step.text.render(row)[0] if step.text is not None else ""
        if name == "system":
            self._effects.system(text)
        elif name == "freopen":
            self._effects.reopen(text)
        elif name == "ftruncate":
            self._effects.truncate()
        elif name == "setopt":
            # An option without a value gets 1 (dt_consume_cpu()).
            name, value = (*(decoded(value_of(row, f)) for f in step.fields), "1")[:2]
            self._display = self._effects.set(name, value)
            self._compile()


def _is(step: Act, name: str) -> bool:
    return isinstance(step.action, Perform) and step.action.name == name


def decoded(value: Value) -> str:
    """A recorded string."""
    return text(value) if isinstance(value, bytes) else str(value)
