"""The type of what the consumer needs to know of a program to decode its records.

Tested by tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from kinst.consumer.aggregations import KeyedTable
from kinst.consumer.symbols import NO_NAMES, Names, shown
from kinst.core.dataclass import dataclass
from kinst.core.probe import Probe
from kinst.core.records import ClauseLayout, ProgramLayout
from kinst.dlang.typed import Clause, TypedProgram
from kinst.dlang.vocabulary.d_options import Options


@dataclass(frozen=True, slots=True)
class Schema:
    """What the consumer needs to know of a program to decode its records.

    Attributes:
        program: the program that makes the records.
        layout: layout of the records and of other data in scratch.
        probes: probes by id.
        tables: merged aggregations by index; they change during the trace.
        options: dtrace(1)'s options at the start of the trace.
        names: functions that find names for recorded addresses.
    """

    program: TypedProgram
    layout: ProgramLayout
    probes: Mapping[int, Probe]
    tables: Mapping[int, KeyedTable]
    options: Options = field(default_factory=Options)
    names: Names = NO_NAMES

    def clauses(self) -> list[tuple[Clause, ClauseLayout]]:
        """Return each clause that writes records, with the layout of its records."""
        clauses = {one.index: one for one in self.program.clauses}
        return [(clauses[one.clause], one) for one in self.layout.clauses if one.size]

    def symbolise(self, address: int) -> str:
        """Return a kernel address as text: module`function+0x13, or in hexadecimal if it has no
        name."""
        return shown(address, self.names.kernel(address))
