"""Values of each instruction besides its count (`kinst annotate --by`): the value of a D
expression, or the time that a thread takes from the start of one basic block to the start of the
next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from kinst.core.code import OUTSIDE, CodeInstruction, FunctionCode
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.words import MASK
from kinst.events import Aggregation
from kinst.views.annotation import Measure
from kinst.views.counting import SITE, clause, described, site_rows

LATENCY = "latency"
BY, TOOK, TIMES = "by", "took", "times"  # names of aggregations
_AGGREGATING = re.compile(
    r"\s*(count|sum|min|max|avg|stddev|quantize|lquantize|llquantize)\s*\(.*\)\s*\Z", re.DOTALL
)


@dataclass(frozen=True)
class Measurement:
    """Values measured in one function.

    Attributes:
        values: the measured value of each instruction, by the instruction's address.
        edges: for LATENCY, average time from the start of a block to the start of the next block,
            in nanoseconds, by (number of the block, number of the next block). OUTSIDE as the next
            block means that the function ended.
    """

    values: Mapping[int, Measure] = field(default_factory=dict)
    edges: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuringPlan:
    """What the clauses of --by measure, and in which functions.

    Attributes:
        codes: the functions.
        expression: a D expression, an aggregating function of a D expression, or LATENCY; "" to
            measure nothing.
        condition: a D predicate that selects the hits to measure; "" selects all hits.
    """

    codes: tuple[FunctionCode, ...]
    expression: str
    condition: str = ""

    def unit(self, aggregations: Sequence[Aggregation]) -> str:
        """Return the unit of the measured values, such as "ns"; "" if it is not known.

        Args:
            aggregations: aggregations of a trace with the clauses that `program` returns.
        """
        if self.expression == LATENCY:
            return "ns"
        return next((one.unit for one in aggregations if one.name == BY), "")

    @property
    def program(self) -> str:
        """D clauses that measure, to append to the D program that counts the instructions
        (CountingPlan.program); "" if nothing is measured."""
        if not self.expression:
            return ""
        found = self._latencies() if self.expression == LATENCY else self._values()
        return "\n".join(found) + "\n"

    def _values(self) -> Iterator[str]:
        aggregated = (
            self.expression if _AGGREGATING.match(self.expression) else f"avg({self.expression})"
        )
        parts = [p for code in self.codes for p in code.parts]
        where = ",\n".join(f"kinst:{p.module}:{p.name}:" for p in parts)
        yield clause(where, self.condition, f"@{BY}[{SITE}] = {aggregated};")

    def _latencies(self) -> Iterator[str]:
        """Yield the D clauses that measure latencies.

        Two thread-local variables hold the block that the thread entered last, and when it entered
        the block. Each function has two such variables of its own, because the functions may call
        one another.
        """
        for number, code in enumerate(self.codes, 1):
            block, since = f"self->block{number}", f"self->since{number}"
            yield f"self uint64_t block{number}, since{number};"
            where = ",\n".join(map(described, _starts(code)))
            adds = (
                f"@{TOOK}[{block}, (uint64_t){{to}}] = sum(timestamp - {since}); "
                f"@{TIMES}[{block}, (uint64_t){{to}}] = count();"
            )
            yield clause(where, block, adds.format(to="regs[R_PC]"))
            begins = f"{block} = (uint64_t)regs[R_PC]; {since} = timestamp;"
            yield clause(where, self.condition, begins)
            ways_out = _ways_out(code)
            if ways_out:
                ends = f"{adds.format(to=0)} {block} = 0;"
                yield clause(",\n".join(map(described, ways_out)), block, ends)

    def measured(self, aggregations: Sequence[Aggregation]) -> list[Measurement]:
        """Return the measured values of each function, in the plan's order.

        Args:
            aggregations: aggregations of a trace with the clauses that `program` returns.

        Raises:
            KinstError: the aggregations are of a trace without these clauses.
        """
        named = {one.name: one for one in aggregations}
        if not self.expression:
            return [Measurement() for _ in self.codes]
        wanted = (TOOK, TIMES) if self.expression == LATENCY else (BY,)
        missing = [f"@{name}" for name in wanted if name not in named]
        if missing and named:
            raise KinstError(
                f"the results lack {missing[0]}",
                "kinst annotate -d --by EXPR shows a program that makes it",
            )
        if self.expression == LATENCY:
            return [self._latency(code, named) for code in self.codes]
        rows = site_rows(named[BY]) if named else {}
        return [Measurement(dict(_sited(code, rows))) for code in self.codes]

    def _latency(self, code: FunctionCode, named: Mapping[str, Aggregation]) -> Measurement:
        took, times = _pairs(named.get(TOOK)), _pairs(named.get(TIMES))
        starts = {one.address: number for number, block in enumerate(code.blocks)
                  for one in block.instructions}  # fmt: skip
        edges, totals, counts = {}, dict[int, int](), dict[int, int]()
        for (start, to), count in times.items():
            if start not in starts or not count:
                continue
            nanoseconds = took.get((start, to), 0)
            edges[starts[start], starts.get(to, OUTSIDE)] = nanoseconds // count
            totals[start] = totals.get(start, 0) + nanoseconds
            counts[start] = counts.get(start, 0) + count
        return Measurement({start: totals[start] // counts[start] for start in totals}, edges)


def _starts(code: FunctionCode) -> list[CodeInstruction]:
    """Return, for each basic block, the first of its instructions that can be planted. Blocks in
    which no instruction can be planted are left out."""
    firsts = (next((i for i in block.instructions if not i.refused), None) for block in code.blocks)
    return [one for one in firsts if one is not None]


def _ways_out(code: FunctionCode) -> list[CodeInstruction]:
    """Return the instructions at which control always leaves the function, such as returns: the
    last instructions of blocks whose only edge leads out. Instructions that cannot be planted are
    left out.
    """
    return [
        block.last
        for block in code.blocks
        if not block.last.refused and len(block.edges) == 1 and block.edges[0].to == OUTSIDE
    ]


def _sited(
    code: FunctionCode, rows: Mapping[tuple[str, str, int], object]
) -> Iterator[tuple[int, Measure]]:
    for one in code.instructions:
        value = rows.get((one.function.module, one.function.name, one.offset))
        if isinstance(value, int | tuple):
            yield one.address, value


def _pairs(found: Aggregation | None) -> dict[tuple[int, int], int]:
    rows = found.rows.items() if found is not None else ()
    return {
        (key[0] & MASK, key[1] & MASK): value
        for key, value in rows
        if isinstance(key[0], int) and isinstance(key[1], int) and isinstance(value, int)
    }
