"""Clauses whose records a trampoline can write by itself, without a call of an entry function
(core/bodies.py RecordBody).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kinst.codegen.analysis import register_slot
from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.layout.program_layout import recorded
from kinst.codegen.layout.variable_places import bits_of
from kinst.codegen.site_work import Arguments, Clauses
from kinst.core.bodies import CallBody, RecordAddresses, RecordBody, RecordField, Snippet
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import IntType, PointerType
from kinst.core.isa import Isa
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.core.records import Field, ProgramLayout
from kinst.core.words import PAGE
from kinst.dlang import typed
from kinst.dlang.walk import expressions

_REACH = 1 << 31  # exclusive end of the addresses that a sign-extended 32-bit operand can have


@dataclass(frozen=True, slots=True)
class InlineRecord:
    """A record that a trampoline writes without calling an entry function.

    Attributes:
        addresses: the addresses that the trampoline needs for writing a record: of the ring, the
            CPU's number, the clock and so on.
        clause: index of the clause.
        size: bytes of the record.
        fields: what each field of the record holds.
    """

    addresses: RecordAddresses
    clause: int
    size: int
    fields: tuple[RecordField, ...]

    def body(self, probe: int, otherwise: CallBody, guard: Snippet | None) -> RecordBody:
        """Return the work of the trampoline at one site, which writes this record.

        Args:
            probe: id of the site's probe.
            otherwise: the call that writes the record if the trampoline cannot, because the ring is
                full or an NMI has interrupted a clause.
            guard: snippet that tests the clause's predicate; None if the clause has none.
        """
        return RecordBody(
            self.addresses, self.clause, probe, self.size, self.fields, otherwise, guard
        )


def record_shapes(
    program: typed.TypedProgram,
    layout: ProgramLayout,
    probes: Iterable[tuple[Clauses, Arguments]],
    machine: CodeMachine,
    isa: Isa,
) -> Mapping[tuple[Clauses, Arguments], InlineRecord]:
    """Return the records that trampolines can write without a call, by the clauses and the
    arguments of the probes that record them.

    A trampoline can write a record if the probe has only one clause, and the clause records only
    the time, the CPU, registers, arguments in registers and constants. The clause's predicate must
    not read `cpu`. Any other probe is not in the result: its trampolines make a call.

    Args:
        layout: layout of the program's data.
        probes: for each probe, the indexes of its clauses, and where arg0, arg1, ... are at its
            site.
        machine: a CPU of the traced kernel.
    """
    places = _record_addresses(machine) if isa.records_inline else None
    if places is None:
        return {}
    records: dict[tuple[Clauses, Arguments], InlineRecord] = {}
    for clauses, arguments in dict.fromkeys(probes):
        if len(clauses) != 1:
            continue
        clause, shape = program.clauses[clauses[0]], layout.clauses[clauses[0]]
        # The thread may move to another CPU after it has tested the predicate.
        if clause.predicate is not None and any(
            isinstance(part, typed.Builtin) and part.name == "cpu"
            for part in expressions(clause.predicate)
        ):
            continue
        if not all(
            isinstance(a, typed.TraceAction | typed.PrintAction | typed.PrintfAction)
            for a in clause.actions
        ):
            continue
        fields = [
            _field(value, field, arguments, machine, isa)
            for action, placed in zip(clause.actions, shape.fields, strict=True)
            for value, field in zip(recorded(action) or (), placed, strict=True)
        ]
        in_registers = [field for field in fields if field is not None]
        if shape.size and len(in_registers) == len(fields):
            records[clauses, arguments] = InlineRecord(
                places, shape.clause, shape.size, tuple(in_registers)
            )
    return records


def _record_addresses(machine: CodeMachine) -> RecordAddresses | None:
    """Return the addresses that a trampoline needs for writing a record; None if trampolines cannot
    write records on this machine. They can under three conditions:
    * They can read the CPU's number and the clock, and raise the kernel's counter that keeps a
      thread on its CPU (CodeMachine.pin).
    * All addresses fit in sign-extended 32-bit operands.
    * A ring is at least a page.
    """
    cpu, busy = machine.builtins.get("cpu"), machine.pin
    scratch, clock = machine.scratch, machine.clock
    if cpu is None or busy is None or not machine.keeps_time:
        return None
    assert clock is not None
    for access in (cpu, busy):
        if access.per_cpu is None or access.offsets or access.size != 4:
            return None
        if not -_REACH <= access.per_cpu < _REACH:
            return None
    assert cpu.per_cpu is not None and busy.per_cpu is not None
    end = machine.address(scratch.ring + (scratch.cpus + 1) * scratch.ring_size)
    if machine.base < (1 << 64) - _REACH or end > 1 << 64 or scratch.ring_size < PAGE:
        return None
    settled = machine.preemption
    if settled and settled < (1 << 64) - _REACH:
        settled = None
    return RecordAddresses(
        cpu.per_cpu, busy.per_cpu, settled, machine.address(scratch.state),
        machine.address(scratch.ring), scratch.ring_size, clock,
    )  # fmt: skip


def _field(
    value: typed.Expr, field: Field, arguments: Sequence[Argument], machine: CodeMachine, isa: Isa
) -> RecordField | None:
    if not isinstance(value.type, IntType | PointerType) or bits_of(value.type) != 8 * field.size:
        return None
    while isinstance(value, typed.Cast):  # a cast that does not widen keeps the low bytes
        inner = value.operand
        if not isinstance(inner.type, IntType | PointerType):
            return None
        if bits_of(value.type) > bits_of(inner.type):
            return None
        value = inner
    match value:
        case typed.IntConst():
            return RecordField(field.offset, field.size, "constant", value.value)
        case typed.Builtin(name="timestamp"):
            return RecordField(field.offset, field.size, "time")
        case typed.Builtin(name="cpu"):
            return RecordField(field.offset, field.size, "cpu")
        case typed.RegisterRead(user=False, index=typed.IntConst(value=index)):
            return _register(field, register_slot(machine, index), isa)
        case typed.Builtin() if value.name[:3] == "arg" and value.name[3:].isdigit():
            number = int(value.name[3:])
            if number >= len(arguments):
                return None
            argument = arguments[number]
            if argument.kind == ARGUMENT_CONSTANT:
                return RecordField(field.offset, field.size, "constant", argument.value)
            if argument.kind == ARGUMENT_SLOT:
                return _register(field, argument.value, isa)
    return None


def _register(field: Field, slot: int | None, isa: Isa) -> RecordField | None:
    if slot is None or slot not in isa.snippets.names:
        return None
    return RecordField(field.offset, field.size, "register", slot)
