"""The program and the layout that records are decoded with.

Tested by tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst.consumer.aggregations import KeyedTable
from kinst.consumer.symbols import NO_NAMES, Names, shown
from kinst.core.probe import Probe
from kinst.core.records import ClauseLayout, ProgramLayout
from kinst.dlang.typed import Clause, TypedProgram
from kinst.dlang.vocabulary.d_options import Options


@dataclass(frozen=True, slots=True)
class Schema:
    """The meaning of a program's records.

    Attributes:
        program: that makes the records.
        layout: of the records.
        probes: by id.
        tables: of aggregations, by index; they change during the trace.
        options: at the start of the trace.
        names: of recorded addresses.
    """

    program: TypedProgram
    layout: ProgramLayout
    probes: Mapping[int, Probe]
    tables: Mapping[int, KeyedTable]
    options: Options = field(default_factory=Options)
    names: Names = NO_NAMES

    def clauses(self) -> list[tuple[Clause, ClauseLayout]]:
        """Return the clauses that write records."""
        clauses = {one.index: one for one in self.program.clauses}
        return [(clauses[one.clause], one) for one in self.layout.clauses if one.size]

    def symbolise(self, address: int) -> str:
        """Return module`function+0x13, or the address in hexadecimal."""
        return shown(address, self.names.kernel(address))
