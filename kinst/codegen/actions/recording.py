"""LLVM IR that writes a record to a CPU's ring (reserve, fill, commit; core/layout.py RECORD_*),
and the action chill().

Tested by tests/codegen/test_records_and_faults.py.
"""

from __future__ import annotations

from kinst.codegen.firing import Firing, Text
from kinst.codegen.helpers.memory_access import WORD, read_bytes
from kinst.codegen.helpers.speculation_slots import speculation_word
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.layout.variable_places import by_address
from kinst.codegen.ssa import IrValue, const
from kinst.codegen.values.builtin_values import timestamp
from kinst.codegen.values.lowering import lower, scalar
from kinst.codegen.values.stack_values import kernel_stack, store_process, user_stack
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import USER_WORDS, DumpType, StackType, SymbolType
from kinst.core.layout import (
    FAULT_ILLOP,
    RECORD_CLAUSE,
    RECORD_CPU,
    RECORD_PAD,
    RECORD_PROBE,
    RECORD_SIZE,
    RECORD_TIME,
    SITE_PROBE,
    STATE_DROPS,
    STATE_HEAD,
    STATE_RESERVED,
    STATE_TAIL,
)
from kinst.core.records import ClauseLayout, Field
from kinst.dlang import typed
from kinst.dlang.vocabulary.builtins import MOST_CHILL


def store_data(firing: Firing, expr: typed.Expr, to: IrValue) -> bool:
    """Emit LLVM IR that stores the value of stack(), sym(), tracemem(), speculate() or the like at
    the address `to`, and return True.  Emit nothing and return False if `expr` is any other
    expression.
    """
    if isinstance(expr, typed.RecordedSymbol):
        assert isinstance(expr.type, SymbolType)
        at = to
        if expr.type.user:
            store_process(firing, to)
            at = firing.code.add(to, USER_WORDS * WORD)
        firing.code.store(firing.code.convert(scalar(firing, expr.address), 64, False), at)
        return True
    if isinstance(expr, typed.Speculation):
        identifier = firing.code.convert(scalar(firing, expr.id), 64, signed=False)
        firing.code.store(speculation_word(firing, expr.name, identifier), to)
        return True
    if isinstance(expr, typed.RecordedMemory):
        assert isinstance(expr.type, DumpType)
        address = firing.code.convert(scalar(firing, expr.address), 64, signed=False)
        read_bytes(firing, address, to, expr.type.size)
        return True
    if isinstance(expr, typed.RecordedStack):
        assert isinstance(expr.type, StackType)
        if expr.type.user:
            user_stack(firing, to, expr.type.frames)
        else:
            kernel_stack(firing, to, expr.type.frames)
        return True
    return False


def chill(firing: Firing, action: typed.ChillAction) -> None:
    """Emit a loop that waits for as many nanoseconds as the action's argument says. If these are
    more than MOST_CHILL, the code faults as an illegal operation. On the host, and on targets
    without a clock, chill() does not wait.
    """
    code, machine = firing.code, firing.unit.machine
    duration = code.convert(scalar(firing, action.duration), 64, signed=False)
    firing.faults.add(code, code.icmp("ugt", duration, MOST_CHILL), FAULT_ILLOP, const(0))
    if machine.host or not machine.keeps_time:
        return
    clock = machine.clock
    assert clock is not None
    cycles = code.op("udiv", code.op("shl", duration, clock.shift), clock.mult)
    start = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    spin, done = code.fresh("spin"), code.fresh("chilled")
    code.jump(spin)
    code.block(spin)
    now = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    code.branch(code.icmp("ult", code.op("sub", now, start), cycles), spin, done)
    code.block(done)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A record's reserved bytes in this CPU's ring.

    Attributes:
        record: address of the record.
        start: the ring's head before the record.
        end: the ring's head after the record.
    """

    record: IrValue
    start: IrValue
    end: IrValue


def reserve(firing: Firing, size: int, dropped: str) -> Reserved:
    """Emit LLVM IR that reserves `size` bytes in this CPU's ring; return the reserved bytes.

    The consumer sees the record only after commit().  If the ring has no room, the emitted code
    counts a drop and jumps to the label `dropped`.  A record that would wrap around begins at the
    ring's start, after a pad.
    """
    code = firing.code
    scratch = firing.unit.machine.scratch
    if size > scratch.ring_size:
        code.increment(firing.field(STATE_DROPS))
        code.jump(dropped)
        code.block(code.fresh("never"))
        nowhere = const(0)
        return Reserved(nowhere, nowhere, nowhere)
    ring = firing.scaled(scratch.ring, scratch.ring_size)
    head = code.load(64, firing.field(STATE_RESERVED if _reserves(firing) else STATE_HEAD))
    used = code.op("sub", head, code.load_atomic(firing.field(STATE_TAIL), "acquire"))
    place = code.op("and", head, scratch.ring_size - 1)
    pad, full, check, go = (code.fresh(n) for n in ("pad", "full", "check", "reserved"))
    code.branch(code.icmp("ule", place, scratch.ring_size - size), check, pad, likely=True)
    code.block(pad)
    # used + the rest of the ring + size <= ring size, with fewer registers.
    padded = code.fresh("padded")
    code.branch(code.icmp("ule", code.op("add", used, size), place), padded, full)
    code.block(padded)
    rest = code.op("sub", const(scratch.ring_size), place)
    mark = code.op("add", ring, place)
    code.store(code.convert(rest, 32, signed=False), code.add(mark, RECORD_SIZE))
    code.store(const(RECORD_PAD, 32), code.add(mark, RECORD_CLAUSE))
    code.jump(go)
    code.block(check)
    code.branch(code.icmp("ule", used, scratch.ring_size - size), go, full, likely=True)
    code.block(full)
    code.increment(firing.field(STATE_DROPS))
    code.jump(dropped)
    code.block(go)
    start = code.phi(64, [(place, check), (const(0), padded)])
    skipped = code.phi(64, [(const(0), check), (rest, padded)])
    end = code.op("add", code.op("add", head, skipped), size)
    return Reserved(code.op("add", ring, start), head, end)


def _reserves(firing: Firing) -> bool:
    """Return whether a clause on this machine reserves a record's bytes from STATE_RESERVED on.
    Otherwise, it reserves them from STATE_HEAD on.

    STATE_HEAD is the end of the bytes that the consumer may read. STATE_RESERVED is the end of all
    reserved bytes. They differ while a trampoline writes a record without a call: trampolines leave
    interrupts on, and a probe may fire in an interrupt in the middle of that record.
    """
    return firing.unit.machine.reserves and not firing.unit.machine.host


def fill(
    firing: Firing, record: IrValue, values: tuple[typed.Expr, ...], fields: tuple[Field, ...]
) -> None:
    """Emit LLVM IR that evaluates the values of one action and stores each in its field of the
    record.

    Args:
        record: address of the record.
        values: the expressions to record.
        fields: where each value belongs, in the order of `values`.
    """
    code = firing.code
    for expr, field in zip(values, fields, strict=True):
        to = code.add(record, field.offset)
        if store_data(firing, expr, to):
            continue
        value = lower(firing, expr)
        if isinstance(value, Text):
            copy_text(firing, value, to, field.size)
        elif by_address(field.type):
            read_bytes(firing, value, to, field.size)
        else:
            code.store(code.convert(value, 8 * field.size, typed.is_signed(field.type)), to)


def commit(firing: Firing, layout: ClauseLayout, reserved: Reserved) -> None:
    """Emit LLVM IR that writes a record's header, then makes the record visible to the consumer.

    The firing may have interrupted a trampoline that writes another record without a call. Then
    both records become visible when the trampoline has completed its own (core/bodies.py
    RecordBody).

    Args:
        layout: layout of the clause's records.
        reserved: the record's bytes, from reserve().
    """
    code, record = firing.code, reserved.record
    now = timestamp(firing)
    code.store(const(layout.clause << 32 | layout.size), code.add(record, RECORD_SIZE))
    probe = code.load(32, code.add(firing.site, SITE_PROBE))
    code.store(probe, code.add(record, RECORD_PROBE))
    code.store(code.convert(firing.cpu, 32, signed=False), code.add(record, RECORD_CPU))
    code.store(now, code.add(record, RECORD_TIME))
    head = firing.field(STATE_HEAD)
    if not _reserves(firing):
        code.store_atomic(reserved.end, head, "release")
        return
    code.store(reserved.end, firing.field(STATE_RESERVED))
    show, shown = code.fresh("show"), code.fresh("shown")
    outermost = code.icmp("eq", code.load_atomic(head), reserved.start)
    code.branch(outermost, show, shown, likely=True)
    code.block(show)
    code.store_atomic(reserved.end, head, "release")
    code.jump(shown)
    code.block(shown)
