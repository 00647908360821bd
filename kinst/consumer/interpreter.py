"""The interpreter of records: it makes events of the records of all CPUs, in the order in which
things happened.

The interpreter itself does exit(), clear(), trunc(), normalize(), speculations and setopt(). What
only the client can do (text, files, commands) becomes events. The interpreter makes no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kinst.consumer.actions import acts, is_silent
from kinst.consumer.aggregations import AggregationStore
from kinst.consumer.columns import value_of
from kinst.consumer.convert import text
from kinst.consumer.decode import DecodedRecords, merge
from kinst.consumer.faults import FaultOrder, PlacedFault
from kinst.consumer.policies import KeptRecords
from kinst.consumer.printf import RowTemplate, format_template
from kinst.consumer.rings import Bytes, Chunk
from kinst.consumer.schema import Schema
from kinst.consumer.speculations import Speculations
from kinst.consumer.values import BatchDecoder, aggregation_of
from kinst.core.columns import distinct
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError, TargetError
from kinst.core.records import ClauseLayout, Field
from kinst.dlang.typed import (
    Action,
    Clause,
    ClearAction,
    ExitAction,
    NormalizeAction,
    PerformAction,
    PrintaAction,
    TruncAction,
)
from kinst.dlang.vocabulary.d_options import COMPILE_TIME, DYNAMIC, NAMES, Options
from kinst.events import (
    Aggregation,
    Arrived,
    Batch,
    Closing,
    Event,
    Message,
    OptionSet,
    Printed,
    Reopen,
    Shell,
    Truncate,
)

BLOCK = 8192  # most records of one event: bounds memory, and lets the reader's thread run


@dataclass(frozen=True, slots=True)
class ActStep:
    """An action of a clause for which the consumer acts when it gets the record.

    Attributes:
        action: the action.
        number: position of the action in its clause.
        fields: fields of the record with the action's values.
        format: compiled format of system()'s command or of freopen()'s file name; None if the
            action has no format.
    """

    action: Action
    number: int
    fields: tuple[Field, ...]
    format: RowTemplate | None = None

    def is_(self, name: str) -> bool:
        return isinstance(self.action, PerformAction) and self.action.name == name


def act_steps(
    clause: Clause, layout: ClauseLayout, symbolise: Callable[[int], str]
) -> tuple[ActStep, ...]:
    """Return the actions of a clause for which the consumer acts when it gets the record, in
    order."""
    steps = []
    for number, (action, fields) in enumerate(zip(clause.actions, layout.fields, strict=True)):
        if acts(action):
            template = None
            if isinstance(action, PerformAction) and action.format is not None:
                template = format_template(action.format, fields, symbolise)
            steps.append(ActStep(action, number, fields, template))
    return tuple(steps)


class Interpreter:
    """Maker of events from the records that were taken from the rings.

    Attributes:
        exit_status: status of the last exit() record that was taken; None before the first.
        options: dtrace(1)'s options as setopt() has left them.
    """

    def __init__(self, schema: Schema, store: AggregationStore) -> None:
        """
        Args:
            schema: what is known of the program's records.
            store: the program's aggregations; its tables are those of the schema.
        """
        self.exit_status: int | None = None
        self.options: Options = schema.options
        self._schema = schema
        self._store = store
        self._decode = BatchDecoder(schema)
        self._sizes = {layout.clause: layout.size for _, layout in schema.clauses()}
        self._silent = {clause.index for clause, _ in schema.clauses() if is_silent(clause)}
        self._steps = {
            clause.index: act_steps(clause, layout, schema.symbolise)
            for clause, layout in schema.clauses()
        }
        acting = [clause for clause, steps in self._steps.items() if steps]
        self._acting: npt.NDArray[np.uint32] = np.array(acting, dtype=np.uint32)
        self._speculations: Speculations[tuple[int, Bytes]] = Speculations()
        self._faults = FaultOrder()
        self._held: list[PlacedFault] = []
        policy, size = self.options.bufpolicy, self.options.bufsize
        self._kept = None if policy == "switch" else KeptRecords(policy, size)

    @property
    def full(self) -> bool:
        """Whether a CPU's buffer is full under the buffer policy fill, so that tracing is over."""
        return self._kept is not None and self._kept.full

    def take(self, chunks: Sequence[Chunk], faults: Sequence[PlacedFault] = ()) -> Iterator[Event]:
        """Yield the events of the records that were taken from all rings at one time, merged by
        time. If the buffer policy is fill or ring, store the records and yield nothing.

        Args:
            chunks: the records.
            faults: faults since the previous call. Each fault's event comes between the events of
                the records around it, in this call or a later one.

        Raises:
            TargetError: the bytes are not records of this program.
        """
        self._held += faults
        if self._kept is not None:
            self._kept.add(chunks)
            return
        yield from self._interpreted(chunks)

    def finish(self) -> Iterator[Event]:
        """Yield the last events of a trace, as dtrace(1) does: those of the records that the buffer
        policy stored, then those of faults, then those of the aggregations that no printa() has
        printed.

        Call it after the last take(), once no producer runs.
        """
        if self._kept is not None:
            chunks, self._kept = self._kept.all(), None
            yield from self._interpreted(chunks)
        yield Closing()
        yield from self._faults.rest()
        self._store.finish()
        tables = [table for table in self._store.tables.values() if not table.printed]
        if self.options.aggsortrev:
            tables.reverse()  # aggsortrev also reverses the order of aggregations
        for table in tables:
            if table.entries:
                yield self._printed((table.aggregation.index,))

    def pause(self) -> Iterator[Event]:
        """Yield the events of records that the buffer policy stored, and then those of faults.
        Yield no aggregations.

        Call it instead of finish() if the trace continues with other probes.
        """
        if self._kept is not None:
            chunks, self._kept = self._kept.all(), None
            yield from self._interpreted(chunks)
        yield from self._faults.rest()
        self._store.finish()

    def aggregations(self) -> tuple[Aggregation, ...]:
        """Return the present values of all aggregations."""
        return tuple(self._aggregation(index) for index in self._store.tables)

    def _aggregation(self, index: int) -> Aggregation:
        return aggregation_of(self._store.tables[index], self.options, self._schema.names)

    def _printed(self, tables: tuple[int, ...], clause: int = -1, action: int = -1) -> Printed:
        def read() -> tuple[Aggregation, ...]:
            return tuple(self._aggregation(index) for index in tables)

        return Printed(tables, read, clause, action)

    def _interpreted(self, chunks: Sequence[Chunk]) -> Iterator[Event]:
        records = merge(chunks)
        faults = self._faults.among(records, self._held)
        self._held = []
        if not len(records):
            yield from (event for _, event in faults)
            return
        self._check(records)
        yield Arrived(len(records))
        special = np.isin(records.clauses, self._acting)
        acting = np.flatnonzero(special).tolist()
        if acting:
            self._store.snapshot()
        following = following_of(records) if self.options.flowindent else None
        # A stretch of records that only show data ends at a record that acts, or at a fault.
        at = 0
        for stop in [*acting, len(records)]:
            while faults and faults[0][0] <= stop:
                yield from self._batches(records, following, at, faults[0][0])
                at = faults[0][0]
                yield faults.pop(0)[1]
            yield from self._batches(records, following, at, stop)
            if stop < len(records):
                yield from self._acting_record(records, following, stop)
            at = stop + 1

    def _check(self, records: DecodedRecords) -> None:
        sizes = records.data.view("<u4")[records.offsets >> 2]
        for clause in distinct(records.clauses).tolist():
            expected = self._sizes.get(clause, 0)
            if not expected or bool((sizes[records.clauses == clause] != expected).any()):
                raise TargetError(
                    f"a record of clause {clause} is corrupt: its size is not {expected} bytes"
                )

    def _batches(
        self,
        records: DecodedRecords,
        following: npt.NDArray[np.int64] | None,
        start: int,
        stop: int,
    ) -> Iterator[Batch]:
        """Yield Batch events of the records from index `start` up to, but not including, index
        `stop`. Their clauses only show data. Each event has at most BLOCK records.

        Args:
            following: for each record, the probe id and clause of the next record of its CPU
                (following_of()); None without the option flowindent.
        """
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            yield Batch(
                records.data,
                records.offsets[at:end],
                records.clauses[at:end],
                self._decode,
                following=None if following is None else following[at:end],
            )

    def _acting_record(
        self, records: DecodedRecords, following: npt.NDArray[np.int64] | None, index: int
    ) -> Iterator[Event]:
        clause = int(records.clauses[index])
        start = int(records.offsets[index])
        data = records.data[start : start + self._sizes[clause]]
        after = None if following is None else following[index : index + 1]
        for step in self._steps[clause]:
            if step.is_("speculate"):
                use = self._number(step, data)
                if not self._speculations.keep(use, (clause, data.copy())):
                    return
        yield from self._stepwise(clause, data, after)

    def _stepwise(
        self, clause: int, data: Bytes, following: npt.NDArray[np.int64] | None
    ) -> Iterator[Event]:
        """Yield the events of one record whose clause makes the consumer act, in the order of the
        clause's actions.

        Args:
            clause: index of the clause.
            data: bytes of the record.
            following: probe id and clause of the CPU's next record; None without the option
                flowindent.
        """
        silent = clause in self._silent
        if not silent:
            yield self._single(clause, data, 0, following)
        for part, step in enumerate(self._steps[clause], 1):
            if step.is_("commit"):
                for kept_clause, kept in self._speculations.commit(self._number(step, data)):
                    yield from self._stepwise(kept_clause, kept, following)
            else:
                yield from self._act(clause, step, data)
            if not silent:
                yield self._single(clause, data, part, following)

    def _single(
        self, clause: int, data: Bytes, part: int, following: npt.NDArray[np.int64] | None
    ) -> Batch:
        return Batch(
            data,
            np.zeros(1, np.int64),
            np.array([clause], np.uint32),
            self._decode,
            part,
            following,
        )

    def _number(self, step: ActStep, data: Bytes) -> int:
        """Return the value that a record has for an action's last argument, an integer.

        Args:
            step: the action.
            data: bytes of the record.
        """
        value = value_of(data[None, :], step.fields[-1])
        assert isinstance(value, int)
        return value

    def _act(self, clause: int, step: ActStep, data: Bytes) -> Iterator[Event]:
        action = step.action
        if isinstance(action, ExitAction):
            self.exit_status = self._number(step, data)
        elif isinstance(action, PrintaAction):
            tables = [self._store.tables[one.index] for one in action.aggregations]
            yield self._printed(
                tuple(one.index for one in action.aggregations), clause, step.number
            )
            if any(table.entries for table in tables):
                for table in tables:
                    table.printed = True
        elif isinstance(action, ClearAction):
            self._store.clear(action.aggregation.index)
        elif isinstance(action, TruncAction):
            count = None if action.count is None else self._number(step, data)
            self._store.truncate(action.aggregation.index, count)
        elif isinstance(action, NormalizeAction):
            divisor = None if action.divisor is None else self._number(step, data)
            self._store.normalize(action.aggregation.index, divisor)
        elif isinstance(action, PerformAction):
            yield from self._perform(action.name, step, data)

    def _perform(self, name: str, step: ActStep, data: Bytes) -> Iterator[Event]:
        if name == "discard":
            self._speculations.discard(self._number(step, data))
        given = step.format.render(data[None, :])[0] if step.format is not None else ""
        if name == "system":
            yield Shell(given)
        elif name == "freopen":
            yield Reopen(given)
        elif name == "ftruncate":
            yield Truncate()
        elif name == "setopt":
            # An option without a value gets 1 (dt_consume_cpu()).
            values = (value_of(data[None, :], field) for field in step.fields)
            option, value = (*(_decoded(one) for one in values), "1")[:2]
            yield from self._set(option, value)

    def _set(self, name: str, value: str) -> Iterator[OptionSet | Message]:
        """Change an option as setopt() does, and yield an event of the change. If the option cannot
        be changed, yield a message with the reason.

        If the option matters only to the compiler, change and yield nothing.
        """
        wrong = ""
        if name not in NAMES:
            wrong = "Invalid option name"
        elif name not in DYNAMIC | COMPILE_TIME:
            wrong = "Operation illegal when tracing is active"
        else:
            try:
                changed = self.options.with_option(name, value)
            except KinstError:
                wrong = "Invalid value for specified option"
            else:
                if name in DYNAMIC:
                    self.options = changed
                    yield OptionSet(name, value)
        if wrong:
            yield Message(f'dtrace: couldn\'t set option "{name}" to "{value}": {wrong}')


def following_of(records: DecodedRecords) -> npt.NDArray[np.int64]:
    """Return, for each record, the probe id and the clause of the next record of its CPU, as an (n,
    2) matrix. Both are -1 if no record follows."""
    following = np.full((len(records), 2), -1, np.int64)
    headers = records.data.view("<u4")[(records.offsets[:, None] >> 2) + np.array([2, 1])]
    cpus = records.data.view("<u4")[(records.offsets >> 2) + 3]
    for cpu in distinct(cpus).tolist():
        mine = np.flatnonzero(cpus == cpu)
        following[mine[:-1]] = headers[mine[1:]]
    return following


def _decoded(value: int | bytes) -> str:
    return text(value) if isinstance(value, bytes) else str(value)
