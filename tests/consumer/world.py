"""Hand-built scratch memory, records and programs for the tests of the consumer."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kinst.consumer.aggregations import AggregationStore, CounterSums
from kinst.consumer.faults import PlacedFault
from kinst.consumer.interpreter import Interpreter
from kinst.consumer.rings import Chunk
from kinst.consumer.schema import Schema
from kinst.consumer.symbols import Names, ResolvedSymbol
from kinst.core import dtypes
from kinst.core.dtypes import DType, StringType
from kinst.core.errors import Span
from kinst.core.layout import RECORD_HEADER, Scratch, lay_out
from kinst.core.probe import Probe, ProbeName, ProbePattern
from kinst.core.records import AggregationLayout, ClauseLayout, Field, KeyValue, ProgramLayout
from kinst.dlang.typed import (
    Action,
    AggFunction,
    AggregationVariable,
    Clause,
    Expr,
    FormatPart,
    IntConst,
    PrintaAction,
    PrintfFormat,
    TypedProgram,
)
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import Arrived, Closing, Event
from kinst.render import Destination, renderer

SPAN = Span("t.d", 1, 1)
NAMES = Names(lambda address: ResolvedSymbol("vmlinux", "f", 0))
BEGIN = Probe(1, ProbeName("dtrace", "", "", "BEGIN"))
READ = Probe(12, ProbeName("kinst", "vmlinux", "vfs_read", "19"))


def scratch(
    cpus: int = 2, ring_size: int = 4096, agg_size: int = 8192
) -> tuple[Scratch, bytearray]:
    size = 1 << 20
    made = lay_out(
        0xFFFFFFFF9FE00000, size, cpus, ring_size=ring_size, agg_size=agg_size, globals_size=4096,
        strings_size=4096, sites_size=4096, traps_size=4096,
    )  # fmt: skip
    return made, bytearray(size)


def put64(memory: bytearray, at: int, value: int) -> None:
    struct.pack_into("<Q", memory, at, value & 0xFFFFFFFFFFFFFFFF)


def get64(memory: bytearray, at: int) -> int:
    return int(struct.unpack_from("<Q", memory, at)[0])


def record(
    clause: int, payload: bytes = b"", *, probe: int = 12, cpu: int = 0, time: int = 0
) -> bytes:
    size = RECORD_HEADER + len(payload)
    padded = (size + 7) & ~7
    header = struct.pack("<IIIIQ", padded, clause, probe, cpu, time)
    return header + payload + b"\xaa" * (padded - size)  # padding is not zero in real rings


def pad(size: int) -> bytes:
    return struct.pack("<II", size, 0xFFFFFFFF) + b"\xbb" * (size - 8)


def chunk(*records: bytes, slot: int = 0) -> Chunk:
    return Chunk(slot, np.frombuffer(b"".join(records), dtype=np.uint8))


def const(value: int = 0, type_: DType = dtypes.INT) -> Expr:
    return IntConst(type_, SPAN, value)


def fields(*types: DType | tuple[DType, int]) -> tuple[tuple[Field, ...], int]:
    """Return fields after the header, each aligned to its size (strings to 1), and the record's
    size."""
    at, made = RECORD_HEADER, []
    for one in types:
        type_, size = one if isinstance(one, tuple) else (one, getattr(one, "size", 8))
        if not isinstance(type_, StringType):
            at = (at + size - 1) // size * size
        made.append(Field(at, size, type_))
        at += size
    return tuple(made), (at + 7) & ~7


def part(
    literal: str,
    conversion: str = "",
    flags: str = "",
    width: int | str | None = None,
    precision: int | str | None = None,
) -> FormatPart:
    return FormatPart(literal.encode(), conversion, flags, width, precision)


def format_(*parts: FormatPart) -> PrintfFormat:
    return PrintfFormat("", parts)


def aggregation(
    index: int,
    function: str,
    keys: tuple[DType, ...] = (),
    params: tuple[int, ...] = (),
    name: str = "a",
) -> AggregationVariable:
    return AggregationVariable(name, index, keys, AggFunction(function, params))


def table_layout(
    agg: AggregationVariable,
    area: int,
    data_size: int,
    keys: Sequence[Field] = (),
    *,
    capacity: int = 8,
    constant_keys: tuple[tuple[KeyValue, ...], ...] | None = None,
    counters: int = -1,
) -> AggregationLayout:
    end = max([8] + [k.offset + k.size for k in keys]) if constant_keys is None else 8
    data_offset = (end + 7) & ~7
    return AggregationLayout(
        agg.index, area, data_offset + data_size, capacity, tuple(keys), data_offset, data_size,
        constant_keys, counters,
    )  # fmt: skip


@dataclass
class World:
    """A program with its scratch, store, interpreter and a renderer.

    The renderer is the text renderer, unless another is named; text() returns the output so far.
    """

    clauses: Sequence[tuple[Sequence[Action], Sequence[tuple[Field, ...]], int]] = ()
    aggregations: Sequence[tuple[AggregationVariable, AggregationLayout]] = ()
    options: Options = field(default_factory=Options)
    counters: Sequence[npt.NDArray[np.uint64]] = ()
    probes: Sequence[Probe] = (BEGIN, READ)
    format: str = "dtrace"
    names: Names = NAMES
    sums: CounterSums | None = None

    def __post_init__(self) -> None:
        self.scratch, self.memory = scratch()
        self.out: list[str] = []
        program = TypedProgram(
            tuple(
                Clause(i, (ProbePattern(),), (SPAN,), None, tuple(actions), SPAN)
                for i, (actions, _, _) in enumerate(self.clauses)
            ),
            (),
            tuple(a for a, _ in self.aggregations),
        )
        layout = ProgramLayout(
            tuple(
                ClauseLayout(i, size, tuple(per_action))
                for i, (_, per_action, size) in enumerate(self.clauses)
            ),
            tuple(one for _, one in self.aggregations), (), 0, 8192, 256, (), {}, 0,
        )  # fmt: skip
        self.store = AggregationStore(
            memoryview(self.memory), self.scratch, program, layout, self.counters, self.names,
            self.sums,
        )  # fmt: skip
        self.schema = Schema(
            program, layout, {p.id: p for p in self.probes}, self.store.tables, self.options,
            self.names,
        )  # fmt: skip
        self.interpret(self.schema)

    def interpret(self, schema: Schema) -> None:
        """Start over with this schema."""
        self.interpreter = Interpreter(schema, self.store)
        self.said: list[str] = []
        destination = Destination(self.out.append, self.said.append)
        self.renderer = renderer(self.format)(destination, schema)

    def show(self, events: Iterable[Event]) -> int:
        """Render events; return how many records arrived."""
        count = 0
        for event in events:
            self.renderer.show(event)
            count += event.count if isinstance(event, Arrived) else 0
        return count

    def take(self, chunks: Sequence[Chunk], faults: Sequence[PlacedFault] = ()) -> int:
        """Interpret and render a batch; return how many records it had."""
        return self.show(self.interpreter.take(chunks, faults))

    def finish(self) -> None:
        """Return the remaining output, without the empty line above it."""
        self.show(e for e in self.interpreter.finish() if not isinstance(e, Closing))

    def printa(self, row: PrintfFormat | None, aggregations: Sequence[AggregationVariable]) -> None:
        """Return a record of a clause that is only this printa()."""
        program = replace(self.schema.program, clauses=(
            Clause(0, (ProbePattern(),), (SPAN,), None,
                   (PrintaAction(SPAN, row, tuple(aggregations)),), SPAN),
        ))  # fmt: skip
        layout = replace(self.schema.layout, clauses=(ClauseLayout(0, RECORD_HEADER, ((),)),))
        options = replace(self.options, quiet=True)
        self.interpret(replace(self.schema, program=program, layout=layout, options=options))
        self.take([chunk(record(0))])

    def text(self) -> str:
        return "".join(self.out)

    def entry(
        self, index: int, slot: int, half: int, row: int, keys: bytes, data: Sequence[int]
    ) -> None:
        """Fill one entry of a table as a clause would: tag, keys, data."""
        layout = self.aggregations[index][1]
        at = self.scratch.agg_of(slot, half) + layout.area + row * layout.entry_size
        put64(self.memory, at, 0x1234567 + 2 * row)
        self.memory[at + 8 : at + 8 + len(keys)] = keys
        for i, value in enumerate(data):
            put64(self.memory, at + layout.data_offset + 8 * i, value)
