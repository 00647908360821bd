"""Variables: global and clause-local ones, scalar arrays, and the dynamic ones: thread-local
variables and associative arrays (tables: dynvars.py; places: place_variables.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.access import read_access
from kinst.codegen.dynvars import call_find, call_obtain, call_remove, release
from kinst.codegen.fields import size_of, up
from kinst.codegen.firing import TEMP_KEYS, Firing, Lowered, Text, Unit
from kinst.codegen.lower_builtins import bits_of, context_word
from kinst.codegen.lower_memory import copy_text, read_bytes
from kinst.codegen.place_variables import element_size, in_registers, memory_size
from kinst.codegen.ssa import Function, Local, Value, const
from kinst.codegen.walk import expressions, within
from kinst.core.dtypes import StringType, StructType
from kinst.core.errors import KinstError
from kinst.core.layout import (
    CONTEXT_CURTHREAD,
    CONTEXT_INTERRUPT,
    CONTEXT_TID,
    FAULT_BADADDR,
)
from kinst.core.records import DynamicLayout
from kinst.dlang import typed

Lower = Callable[[Firing, typed.Expr], Lowered]

# What the keys of thread-local variables are made of.  A task's address has its low six bits 0
# and, below 4 TB of memory, the top ones alike; its id, in them, tells tasks apart that use the
# same memory one after another.  As in DTrace an interrupt handler is no part of the thread that
# it interrupts (DTRACE_TLS_THRKEY).
_TID_SHIFT = 42
# Of Linux's preemption count (include/linux/preempt.h): in a soft interrupt's handler; in a hard
# interrupt's or NMI's.
_SOFT_SHIFT = 8
_HARD_MASK = 0xFF0000

THREAD_PARTS = frozenset({"curthread", "tid", "interrupt"})  # built-ins that are read for it

VARIABLE_NODES = (
    typed.GlobalRead, typed.Assign, typed.Step,
    typed.KeyedRead, typed.KeyedAssign, typed.KeyedStep, typed.OldValue,
)  # fmt: skip


def lower_variable(firing: Firing, expr: typed.Expr, lower: Lower, nullable: Lower) -> Lowered:
    """GlobalRead, Assign, Step, KeyedRead, KeyedAssign, KeyedStep and OldValue.

    nullable: lowers what is assigned, which may be NULL, as the value may be."""
    match expr:
        case typed.GlobalRead():
            return _read(firing, expr.variable, [])
        case typed.KeyedRead():
            return _read(firing, expr.variable, [lower(firing, key) for key in expr.keys])
        case typed.OldValue():
            return firing.old[-1]
        case typed.Assign():
            return _assign(firing, expr.variable, [], expr.value, nullable)
        case typed.KeyedAssign():
            keys = [lower(firing, key) for key in expr.keys]
            if uses_old(expr.value):
                firing.old.append(_read(firing, expr.variable, keys))
                value = _assign(firing, expr.variable, keys, expr.value, nullable)
                firing.old.pop()
                return value
            return _assign(firing, expr.variable, keys, expr.value, nullable)
        case typed.Step():
            return _step(firing, expr, [])
        case typed.KeyedStep():
            return _step(firing, expr, [lower(firing, key) for key in expr.keys])
    raise AssertionError(f"no variable: {type(expr).__name__}")


def is_thread_local(expr: typed.Expr) -> bool:
    """Whether an expression reads or changes a thread-local variable."""
    return isinstance(expr, VARIABLE_NODES) and expr.variable.scope == "self"


def uses_old(value: typed.Expr) -> bool:
    """Whether the element's old value is wanted."""
    return any(isinstance(e, typed.OldValue) for e in within(value))


def clear_clause_memory(firing: Firing, clauses: Sequence[typed.Clause]) -> None:
    """Clause-local variables are 0 and "" when a firing begins."""
    used = {
        e.variable.index: e.variable
        for clause in clauses
        for e in expressions(clause)
        if isinstance(e, VARIABLE_NODES) and e.variable.scope == "this"
    }
    code, strsize = firing.code, firing.unit.layout.strsize
    for variable in used.values():
        if in_registers(variable):
            continue
        start = base_address(firing, variable)
        if not variable.length and isinstance(variable.type, StringType):
            code.store(const(0, 8), start)
            _mark(firing, variable, start, const(0, 8))
            continue
        size = const(up(memory_size(variable, strsize), 8))
        code.call(firing.unit.helper("clear_array", _clear_array), (start, size))


def _clear_array(unit: Unit, name: str) -> Function:
    """clear_array(address, size): size is a multiple of 8 and not 0."""
    code = unit.function(name, 2, 0)
    start, size = code.params
    at = code.local(64)
    code.jump("word")
    code.block("word")
    here = code.get(at)
    code.store(const(0), code.op("add", start, here))
    following = code.add(here, 8)
    code.set(at, following)
    code.branch(code.icmp("ult", following, size), "word", "done")
    code.block("done")
    code.ret()
    return code


# Places.


def base_address(firing: Firing, variable: typed.Variable) -> Value:
    """Address of a variable that is in memory and not dynamic."""
    machine = firing.unit.machine
    offset = firing.unit.layout.variables[variable.index]
    if variable.scope == "this":
        return firing.code.add(firing.temp(), firing.clause_memory() + offset)
    return const(machine.address(machine.scratch.globals + offset))


def _address(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Value:
    """Of a variable that is not dynamic, or of an element; outside the array it faults."""
    base = base_address(firing, variable)
    if not keys:
        return base
    index = _checked_index(firing, variable, keys, base)
    size = element_size(variable, firing.unit.layout.strsize)
    return firing.code.op("add", base, firing.code.op("mul", index, size))


def _checked_index(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], base: Value
) -> Value:
    (index,) = keys
    assert isinstance(index, Value)
    code = firing.code
    size = element_size(variable, firing.unit.layout.strsize)
    wild = code.op("add", base, code.op("mul", index, size))
    firing.faults.add(code, code.icmp("uge", index, variable.length), FAULT_BADADDR, wild)
    return index


def _register(firing: Firing, variable: typed.Variable) -> Local:
    """The clause-local variable, in a register."""
    if variable.index not in firing.this:
        firing.this[variable.index] = firing.code.local(bits_of(variable.type))
    return firing.this[variable.index]


def _mark(firing: Firing, variable: typed.Variable, address: Value, null: Value) -> None:
    """Note whether the string there is NULL; null: i8, not 0 if so."""
    size = size_of(variable.type, firing.unit.layout.strsize)
    firing.code.store(null, firing.code.add(address, size))


def _read_text(firing: Firing, variable: typed.Variable, address: Value) -> Text:
    """The string of a variable that is not dynamic: NULL where it was assigned that."""
    code = firing.code
    size = size_of(variable.type, firing.unit.layout.strsize)
    null = code.icmp("ne", code.load(8, code.add(address, size)), 0)
    return Text(code.select(null, const(0), address), size, nullable=True)


def _store_text(firing: Firing, variable: typed.Variable, text: Text, address: Value) -> Text:
    """Assign to a variable that is not dynamic; the value that it has then."""
    code = firing.code
    size = size_of(variable.type, firing.unit.layout.strsize)
    if not text.nullable:
        copy_text(firing, text, address, size)
        _mark(firing, variable, address, const(0, 8))
        return Text(address, size)
    null = code.icmp("eq", text.address, 0)
    _mark(firing, variable, address, code.convert(null, 8, signed=False))
    there, end = code.fresh("there"), code.fresh("stored")
    code.branch(null, end, there)
    code.block(there)
    copy_text(firing, text, address, size)
    code.jump(end)
    code.block(end)
    return Text(code.select(null, const(0), address), size, nullable=True)


def _zeros(firing: Firing, size: int) -> Value:
    """The address of a structure that was not assigned."""
    room = firing.text_room(up(size, 8))
    firing.code.call(firing.unit.helper("clear_array", _clear_array), (room, const(up(size, 8))))
    return room


# Dynamic variables.


def thread_key(firing: Firing) -> Value:
    """What tells the current thread from all others, and from what interrupts it."""
    code, machine = firing.code, firing.unit.machine

    def word(name: str, context: int) -> Value:
        if machine.host:
            return code.load(64, context_word(firing, context))
        access = machine.builtins.get(name)
        if access is None:
            if name == "curthread":
                raise KinstError(f"{machine.name}: thread-local variables need the current thread")
            return const(0)
        value = read_access(code, machine, access)
        assert isinstance(value, Value)
        return code.convert(value, 64, signed=False)

    thread = word("curthread", CONTEXT_CURTHREAD)
    number = code.op("shl", word("tid", CONTEXT_TID), _TID_SHIFT)
    counts = word("interrupt", CONTEXT_INTERRUPT)
    soft = code.op("and", code.op("lshr", counts, _SOFT_SHIFT), 1)
    hard = code.convert(code.icmp("ne", code.op("and", counts, _HARD_MASK), 0), 64, signed=False)
    level = code.op("or", soft, code.op("shl", hard, 1))
    return code.op("xor", code.op("xor", thread, number), level)


def _thread(firing: Firing) -> Value:
    """thread_key(), made once in a firing."""
    code = firing.code
    kept = firing.local("thread")
    make, made = code.fresh("thread"), code.fresh("known")
    code.branch(code.icmp("eq", code.get(kept), 0), make, made)
    code.block(make)
    code.set(kept, thread_key(firing))
    code.jump(made)
    code.block(made)
    return code.get(kept)


def _kept(firing: Firing, variable: typed.Variable) -> Local | None:
    """Where the firing keeps the entry that it has found, which is nobody else's: of self->x."""
    if variable.scope != "self" or variable.keys or variable.length:
        return None
    if variable.index not in firing.entries:
        firing.entries[variable.index] = firing.code.local(64)
    return firing.entries[variable.index]


def _find(
    firing: Firing,
    variable: typed.Variable,
    keys: Sequence[Lowered],
    call: Callable[[Firing, DynamicLayout, Value], Value],
) -> Value:
    """Address of the entry, or 0: by call_find or call_obtain where it is not known."""
    code, layout, kept = firing.code, _layout(firing, variable), _kept(firing, variable)
    if kept is None:
        return call(firing, layout, _key(firing, variable, layout, keys))
    search, known = code.fresh("search"), code.fresh("known")
    code.branch(code.icmp("eq", code.get(kept), 0), search, known)
    code.block(search)
    code.set(kept, call(firing, layout, _key(firing, variable, layout, keys)))
    code.jump(known)
    code.block(known)
    return code.get(kept)


def _remove(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> None:
    """Free the entry, if there is one."""
    code, layout, kept = firing.code, _layout(firing, variable), _kept(firing, variable)
    if kept is None:
        call_remove(firing, layout, _key(firing, variable, layout, keys))
        return
    entry = _find(firing, variable, keys, call_find)
    free, gone = code.fresh("release"), code.fresh("gone")
    code.branch(code.icmp("eq", entry, 0), gone, free)
    code.block(free)
    release(firing, layout, entry)
    code.set(kept, const(0))
    code.jump(gone)
    code.block(gone)


def _layout(firing: Firing, variable: typed.Variable) -> DynamicLayout:
    return next(d for d in firing.unit.layout.dynamic if d.index == variable.index)


def _key(
    firing: Firing, variable: typed.Variable, layout: DynamicLayout, keys: Sequence[Lowered]
) -> Value:
    """The key as the table's functions take it."""
    code = firing.code
    if variable.length:
        _checked_index(firing, variable, keys, const(0))
    values = [_thread(firing), *keys] if variable.scope == "self" else list(keys)
    if layout.key_words == 1 and len(values) == 1 and isinstance(values[0], Value):
        return code.convert(values[0], 64, signed=False)
    room = code.add(firing.temp(), TEMP_KEYS)
    covered = {f.offset + i for f in layout.keys for i in range(f.size)}
    for at in range(0, 8 * layout.key_words, 8):
        if not covered.issuperset(range(at, at + 8)):
            code.store(const(0), code.add(room, at))
    for field, value in zip(layout.keys, values, strict=True):
        to = code.add(room, field.offset)
        if isinstance(value, Text):
            copy_text(firing, value, to, field.size, pad=True)
        else:
            code.store(code.convert(value, 8 * field.size, signed=False), to)
    return code.load(64, room) if layout.key_words == 1 else room


def _read_dynamic(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Lowered:
    code = firing.code
    layout = _layout(firing, variable)
    entry = _find(firing, variable, keys, call_find)
    place = code.add(entry, layout.value.offset)
    missing = code.icmp("eq", entry, 0)
    if isinstance(variable.type, StringType):
        address = code.select(missing, const(0), place)
        size = size_of(variable.type, firing.unit.layout.strsize)
        return Text(address, size, nullable=True)
    if isinstance(variable.type, StructType):
        return code.select(missing, _zeros(firing, layout.value.size), place)
    before = code.at
    there, end = code.fresh("there"), code.fresh("read")
    code.branch(missing, end, there)
    code.block(there)
    bits = bits_of(variable.type)
    value = code.load(bits, place)
    code.jump(end)
    code.block(end)
    return code.phi(bits, [(const(0, bits), before), (value, there)])


def _store_dynamic(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], value: Lowered
) -> None:
    """A scalar 0 and a string that is NULL free; what finds no room is lost and counted."""
    code = firing.code
    layout = _layout(firing, variable)
    end = code.fresh("stored")
    decides = value.address if isinstance(value, Text) else value
    struct = isinstance(variable.type, StructType)
    if (isinstance(value, Value) and not struct) or (isinstance(value, Text) and value.nullable):
        store, free = code.fresh("store"), code.fresh("free")
        code.branch(code.icmp("eq", decides, 0), free, store)
        code.block(free)
        _remove(firing, variable, keys)
        code.jump(end)
        code.block(store)
    entry = _find(firing, variable, keys, call_obtain)
    kept = code.fresh("kept")
    code.branch(code.icmp("eq", entry, 0), end, kept, likely=False)
    code.block(kept)
    place = code.add(entry, layout.value.offset)
    if isinstance(value, Text):
        copy_text(firing, value, place, layout.value.size)
    elif struct:
        read_bytes(firing, value, place, layout.value.size)
    else:
        code.store(value, place)
    code.jump(end)
    code.block(end)


def _step_dynamic(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], by: int
) -> Value:
    """The old value; of an array that other CPUs use the step is one access."""
    code = firing.code
    bits = bits_of(variable.type)
    layout = _layout(firing, variable)
    entry = _find(firing, variable, keys, call_obtain)
    before = code.at
    there, free, end = (code.fresh(n) for n in ("there", "free", "stepped"))
    code.branch(code.icmp("eq", entry, 0), end, there, likely=False)
    code.block(there)
    place = code.add(entry, layout.value.offset)
    if layout.shared:
        old = code.change_atomic("add", place, const(by, bits))
    else:
        old = code.load(bits, place)
        code.store(code.op("add", old, const(by, bits)), place)
    code.branch(code.icmp("eq", old, const(-by, bits)), free, end, likely=False)
    code.block(free)
    _remove(firing, variable, keys)
    freed = code.at
    code.jump(end)
    code.block(end)
    return code.phi(bits, [(const(0, bits), before), (old, there), (old, freed)])


# All of them.


def _read(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Lowered:
    if variable.is_dynamic:
        return _read_dynamic(firing, variable, keys)
    if in_registers(variable):
        return firing.code.get(_register(firing, variable))
    address = _address(firing, variable, keys)
    if isinstance(variable.type, StringType):
        return _read_text(firing, variable, address)
    if isinstance(variable.type, StructType):
        return address
    return firing.code.load(bits_of(variable.type), address)


def _free(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Text:
    """0 or NULL assigned to a string."""
    if variable.is_dynamic:
        _remove(firing, variable, keys)
    else:
        _mark(firing, variable, _address(firing, variable, keys), const(1, 8))
    return Text(const(0), 1, nullable=True)


def _assign(
    firing: Firing,
    variable: typed.Variable,
    keys: Sequence[Lowered],
    expr: typed.Expr,
    nullable: Lower,
) -> Lowered:
    string = isinstance(variable.type, StringType)
    if string and not isinstance(expr.type, StringType):
        return _free(firing, variable, keys)
    value = nullable(firing, expr)
    if variable.is_dynamic:
        _store_dynamic(firing, variable, keys, value)
        return value
    if isinstance(value, Text) and string:
        return _store_text(firing, variable, value, _address(firing, variable, keys))
    assert isinstance(value, Value)
    if isinstance(variable.type, StructType):
        address = _address(firing, variable, keys)
        read_bytes(firing, value, address, element_size(variable, firing.unit.layout.strsize))
        return address
    if in_registers(variable):
        firing.code.set(_register(firing, variable), value)
    else:
        firing.code.store(value, _address(firing, variable, keys))
    return value


def _step(firing: Firing, expr: typed.Step | typed.KeyedStep, keys: Sequence[Lowered]) -> Value:
    code, variable = firing.code, expr.variable
    if variable.is_dynamic:
        old = _step_dynamic(firing, variable, keys, expr.by)
        return old if expr.post else code.op("add", old, const(expr.by, old.bits))
    if in_registers(variable):
        register = _register(firing, variable)
        old = code.get(register)
        new = code.op("add", old, const(expr.by, old.bits))
        code.set(register, new)
    else:
        address = _address(firing, variable, keys)
        old = code.load(bits_of(variable.type), address)
        new = code.op("add", old, const(expr.by, old.bits))
        code.store(new, address)
    return old if expr.post else new
