"""LLVM IR of entry functions, which trampolines call when a probe fires, and of the clauses in
them.

Tested by tests/codegen/test_target_code.py and tests/codegen/test_samplers.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.codegen.actions.aggregation_updates import aggregate
from kinst.codegen.actions.perturbing import perturb
from kinst.codegen.actions.recording import chill, commit, fill, reserve
from kinst.codegen.actions.signals import panic, raise_signal
from kinst.codegen.firing import Faults, Firing, Lowered, Text, Unit, read_access
from kinst.codegen.layout.program_layout import recorded
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.values.builtin_values import epid, timestamp
from kinst.codegen.values.lowering import nullable, truth
from kinst.codegen.values.variable_code import clear_clause_memory
from kinst.core.errors import KinstError
from kinst.core.layout import (
    CONTEXT_CPU,
    FAULTS_KEPT,
    HEADER_ACTIVE,
    STATE_CLOSED,
    STATE_DOUBLE_ERRORS,
    STATE_ERRORS,
    STATE_FAULT,
    STATE_FAULTS,
    STATE_HEAD,
    STATE_NESTED,
    STATE_SEQUENCE,
    STATE_TOLD,
)
from kinst.core.words import PAGE
from kinst.dlang import typed

# Name of the function that runs the clauses of dtrace:::ERROR after a fault.
_ERROR = "error"


def _cpu(unit: Unit, code: IrFunction, frame: IrValue) -> tuple[IrValue, IrValue]:
    """Emit LLVM IR that computes this CPU's number and its slot in scratch; return (number,
    slot).
    """
    machine = unit.machine
    if machine.host:
        offset = 8 * (machine.frame_slots + CONTEXT_CPU)
        return code.load(64, code.add(frame, offset)), const(machine.scratch.cpus)
    value: Lowered = read_access(code, machine, machine.builtins["cpu"])
    if isinstance(value, Text):
        raise KinstError(f"{machine.name}: the value of the built-in cpu is text, not a number")
    wide = code.convert(value, 64, signed=False)
    return wide, wide


def _state(unit: Unit, code: IrFunction, slot: IrValue) -> IrValue:
    machine = unit.machine
    if machine.host:
        return const(machine.address(machine.scratch.state_of(machine.scratch.cpus)))
    offset = code.op("shl", slot, PAGE.bit_length() - 1)
    return code.add(offset, machine.address(machine.scratch.state))


def write_entry(
    unit: Unit, name: str, clauses: Sequence[typed.Clause], error: IrFunction | None
) -> IrFunction:
    """Return the LLVM function entry(site, frame), which runs these clauses one after another.

    The function counts a drop and runs nothing if this CPU is already in a clause (the probe fired
    in an NMI). In the target, it does nothing if tracing is not active. On the host, the caller
    checks that tracing is active.

    Args:
        unit: the LLVM module under construction.
        name: name of the function.
        clauses: the clauses to run.
        error: the LLVM function of write_error(), which a faulting clause calls; it may be None
            if no clause can fault.
    """
    machine = unit.machine
    params = (IrValue(64, "%site"), IrValue(64, "%frame"))
    code = IrFunction(name, params, 0, machine.convention, internal=False)
    if not machine.host:
        active = code.load_atomic(const(machine.address(HEADER_ACTIVE)))
        code.branch(code.icmp("eq", active, 1), "active", "idle", likely=True)
        code.block("active")
    cpu, slot = _cpu(unit, code, params[1])
    state = _state(unit, code, slot)
    sequence = code.add(state, STATE_SEQUENCE)
    before = code.load_atomic(sequence)
    code.branch(code.convert(before, 1, signed=False), "nested", "enter", likely=False)
    code.block("enter")
    code.store_atomic(code.op("add", before, 1), sequence)
    code.barrier()
    firing = Firing(unit, code, *params, cpu, slot, state, code.local(64), Faults("unused"))
    _write_clauses(firing, clauses, error)
    code.store_atomic(code.op("add", code.load_atomic(sequence), 1), sequence, "release")
    code.ret()
    code.block("nested")
    code.increment(code.add(state, STATE_NESTED))
    code.ret()
    if not machine.host:
        code.block("idle")
        code.ret()
    return code


def _write_clauses(
    firing: Firing, clauses: Sequence[typed.Clause], error: IrFunction | None
) -> None:
    """Emit LLVM IR of clauses one after another, then begin the block "leave".

    Args:
        error: the LLVM function of write_error(), which a faulting clause calls; it may be None
            if no clause can fault.
    """
    clear_clause_memory(firing, clauses)
    for ordinal, clause in enumerate(clauses):
        firing.ordinal = ordinal
        _write_clause(firing, clause, "leave", error)
    firing.code.jump("leave")
    firing.code.block("leave")


def _write_clause(
    firing: Firing, clause: typed.Clause, ended: str, error: IrFunction | None
) -> None:
    """Emit LLVM IR of one clause: test the predicate, reserve a record, run the actions, commit the
    record.

    The emitted code continues after the clause or, if the clause has an exit(), at the label
    `ended`.

    Args:
        ended: label after the last clause of the entry function.
        error: the LLVM function of write_error(), which a faulting clause calls; it may be None
            if no clause can fault.
    """
    code = firing.code
    layout = firing.unit.layout.clauses[clause.index]
    following = code.fresh("next")
    firing.faults = Faults(code.fresh("fault"))
    firing.record_size, firing.following = layout.size, following
    firing.start_action(0)
    code.set(firing.arena(), const(0))
    if clause.predicate is not None:
        run = code.fresh("run")
        code.branch(truth(firing, clause.predicate), run, following)
        code.block(run)
    room = reserve(firing, layout.size, following) if layout.size else None
    for number, action in enumerate(clause.actions):
        firing.start_action(number + 1)
        values = recorded(action)
        if values is not None and room is not None:
            fill(firing, room.record, values, layout.fields[number])
        elif isinstance(action, typed.AggregateAction):
            aggregate(firing, action)
        elif isinstance(action, typed.EvaluateAction):
            nullable(firing, action.expr)
        elif isinstance(action, typed.ChillAction):
            chill(firing, action)
        elif isinstance(action, typed.PanicAction):
            panic(firing, action)
        elif isinstance(action, typed.RaiseAction):
            raise_signal(firing, action)
        elif isinstance(action, typed.PerturbAction):
            perturb(firing, action)
        else:
            raise KinstError(f"{action.span}: kinst cannot compile {type(action).__name__} yet")
    if room is not None:
        commit(firing, layout, room)
    if any(isinstance(action, typed.ExitAction) for action in clause.actions):
        machine = firing.unit.machine
        scratch = machine.scratch
        for slot in range(scratch.cpus + 1 if machine.host else 0):
            closed = machine.address(scratch.state_of(slot) + STATE_CLOSED)
            code.store(const(1, 32), const(closed))
        code.store_atomic(const(0), const(machine.address(HEADER_ACTIVE)), "release")
        code.jump(ended)
    else:
        code.jump(following)
    if firing.faults.sources:
        _write_fault(firing, following, error)
    code.block(following)


def _write_fault(firing: Firing, following: str, error: IrFunction | None) -> None:
    """Emit the block that all faults in a clause jump to: count the fault, run dtrace:::ERROR's
    clauses, and go on after the faulting clause.  The faulting clause's record is not committed.

    Args:
        following: label of the block after the faulting clause.
        error: the LLVM function of write_error().
    """
    code = firing.code
    faults = firing.faults
    code.block(faults.label)
    labels = [source[0] for source in faults.sources]
    codes = [const(action << 8 | kind) for _, action, kind, _ in faults.sources]
    value = code.phi(64, [(s[3], s[0]) for s in faults.sources])
    kind = code.phi(64, list(zip(codes, labels, strict=True)))
    number = code.convert(epid(firing), 64, signed=False)
    assert error is not None  # compile.py writes it before any entry
    if firing.in_error:
        # A fault in dtrace:::ERROR itself is only counted.
        code.increment(firing.field(STATE_ERRORS))
        code.increment(firing.field(STATE_DOUBLE_ERRORS))
    else:
        args = (firing.frame, firing.cpu, number, kind, value, code.get(firing.time))
        code.set(firing.time, code.call(error, args))
        for entry in firing.entries.values():  # ERROR's clauses may have freed these entries
            code.set(entry, const(0))
    code.jump(following)


def write_error(unit: Unit, site: int, clauses: Sequence[typed.Clause]) -> IrFunction:
    """Return the LLVM function error(frame, cpu, epid, action << 8 | kind, value, time), which
    stores a fault in the CPU's state page and runs the clauses of dtrace:::ERROR.

    `kind` and `value` describe the fault as in Faults.add(). `time` is the timestamp of the firing
    that faulted, or 0 if this firing has not read the clock. The function returns the timestamp
    that the firing uses from then on, so that a firing reads the clock only once.

    Args:
        unit: the LLVM module under construction.
        site: address of dtrace:::ERROR's site descriptor.
        clauses: the clauses of dtrace:::ERROR.
    """
    code = unit.function(_ERROR, 6)
    frame, cpu, number, what, value, time = code.params
    machine = unit.machine
    slot = const(machine.scratch.cpus) if machine.host else cpu
    state = _state(unit, code, slot)
    code.increment(code.add(state, STATE_ERRORS))
    action, kind = code.op("lshr", what, 8), code.op("and", what, 0xFF)
    told = code.load(64, code.add(state, STATE_TOLD))
    kept = code.op("shl", code.op("and", told, FAULTS_KEPT - 1), 5)
    entry = code.op("add", code.add(state, STATE_FAULTS), kept)
    now = code.local(64)
    code.set(now, time)
    firing = Firing(
        unit, code, const(site), frame, cpu, slot, state, now, Faults("unused"), in_error=True
    )
    when = timestamp(firing) if machine.host or machine.keeps_time else const(0)
    for place, word in enumerate((number, action, kind, value)):
        code.store(word, code.add(state, STATE_FAULT + 8 * place))
    which = code.op("or", number, code.op("shl", what, 32))
    head = code.load(64, code.add(state, STATE_HEAD))
    for place, word in enumerate((which, value, when, head)):
        code.store(word, code.add(entry, 8 * place))
    code.store_atomic(code.add(told, 1), code.add(state, STATE_TOLD), "release")
    _write_clauses(firing, clauses, code)
    code.ret(code.get(now))
    return code
