"""LLVM IR that reads and writes dynamic variables: thread-local variables and associative arrays
(helpers/dynamic_tables.py has their hash tables).

Tested by tests/codegen/helpers/test_dynamic_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.firing import TEMP_KEYS, Firing, Lowered, Text, context_word, read_access
from kinst.codegen.helpers.dynamic_tables import call_find, call_obtain, call_remove, release
from kinst.codegen.helpers.memory_access import read_bytes, zeros
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.layout.variable_places import (
    bits_of,
    by_address,
    element_size,
    round_up,
    size_of,
)
from kinst.codegen.ssa import IrLocal, IrValue, const
from kinst.core.dtypes import StringType, StructType
from kinst.core.errors import KinstError
from kinst.core.layout import CONTEXT_CURTHREAD, CONTEXT_INTERRUPT, CONTEXT_TID, FAULT_BADADDR
from kinst.core.records import DynamicLayout
from kinst.dlang import typed


def checked_index(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], base: IrValue
) -> IrValue:
    """Emit LLVM IR that faults if an index is outside a scalar array; return the index.

    Args:
        variable: the array.
        keys: a sequence with the index as its only element.
        base: address of the array. The fault reports the address that the element would have.
    """
    (index,) = keys
    assert isinstance(index, IrValue)
    code = firing.code
    size = element_size(variable, firing.unit.layout.strsize)
    wild = code.op("add", base, code.op("mul", index, size))
    firing.faults.add(code, code.icmp("uge", index, variable.length), FAULT_BADADDR, wild)
    return index


# Shift of the thread's id in the key of a thread-local variable.  The key also has the task's
# address, whose low six bits are 0.  With less than 4 TB of memory the top bits of all tasks'
# addresses are equal, so the thread's id in the top bits distinguishes tasks that use the same
# memory one after another.  As in DTrace, an interrupt handler does not belong to the thread that
# it interrupts (DTRACE_TLS_THRKEY); the low bits say which kind of handler runs.
_TID_SHIFT = 42

THREAD_PARTS = frozenset({"curthread", "tid", "interrupt"})  # built-ins that thread_key() reads


def thread_key(firing: Firing) -> IrValue:
    """Emit LLVM IR that computes a number which identifies the current thread; return the number.
    Interrupt handlers have numbers of their own.
    """
    code, machine = firing.code, firing.unit.machine

    def word(name: str, context: int) -> IrValue:
        if machine.host:
            return code.load(64, context_word(firing, context))
        access = machine.builtins.get(name)
        if access is None:
            if name == "curthread":
                raise KinstError(
                    f"thread-local variables (self->) cannot be used: kinst does not know where"
                    f" {machine.name} keeps its current thread"
                )
            return const(0)
        value = read_access(code, machine, access)
        assert isinstance(value, IrValue)
        return code.convert(value, 64, signed=False)

    thread = word("curthread", CONTEXT_CURTHREAD)
    number = code.op("shl", word("tid", CONTEXT_TID), _TID_SHIFT)
    key = code.op("xor", thread, number)
    if not machine.interrupt_masks:
        return key
    word_of_cpu, level = word("interrupt", CONTEXT_INTERRUPT), const(0)
    for place, mask in enumerate(machine.interrupt_masks):
        if mask & mask - 1:
            handles = code.icmp("ne", code.op("and", word_of_cpu, mask), 0)
            bit = code.convert(handles, 64, signed=False)
        else:
            bit = code.op("and", code.op("lshr", word_of_cpu, mask.bit_length() - 1), 1)
        level = code.op("or", level, code.op("shl", bit, place)) if place else bit
    return code.op("xor", key, level)


def _thread(firing: Firing) -> IrValue:
    """Emit LLVM IR that computes thread_key() once in a firing; return the number."""
    code = firing.code
    kept = firing.local("thread")
    make, done = code.fresh("thread"), code.fresh("known")
    code.branch(code.icmp("eq", code.get(kept), 0), make, done)
    code.block(make)
    code.set(kept, thread_key(firing))
    code.jump(done)
    code.block(done)
    return code.get(kept)


def _kept(firing: Firing, variable: typed.Variable) -> IrLocal | None:
    """Return the LLVM local variable in which a firing remembers the address of the table entry of
    self->x; it is 0 until the entry is found.

    Return None for arrays, which have many entries, and for variables that are not thread-local,
    whose entries other threads can free.
    """
    if variable.scope != "self" or variable.keys or variable.length:
        return None
    if variable.index not in firing.entries:
        firing.entries[variable.index] = firing.code.local(64)
    return firing.entries[variable.index]


def _find(
    firing: Firing,
    variable: typed.Variable,
    keys: Sequence[Lowered],
    call: Callable[[Firing, DynamicLayout, IrValue], IrValue],
) -> IrValue:
    """Emit LLVM IR that finds a dynamic variable's entry; return the entry's address, or 0 if the
    variable has no entry. A firing remembers the entry of a thread-local variable self->x, and does
    not search for it again (_kept()).

    Args:
        keys: values of the keys.
        call: call_find or call_obtain (which makes a missing entry).
    """
    code, layout, kept = firing.code, _layout(firing, variable), _kept(firing, variable)
    if kept is None:
        return call(firing, layout, _key(firing, variable, layout, keys))
    search, end = code.fresh("search"), code.fresh("known")
    code.branch(code.icmp("eq", code.get(kept), 0), search, end)
    code.block(search)
    code.set(kept, call(firing, layout, _key(firing, variable, layout, keys)))
    code.jump(end)
    code.block(end)
    return code.get(kept)


def remove_dynamic(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> None:
    """Emit LLVM IR that frees a dynamic variable's entry if there is one.

    Args:
        keys: values of the keys.
    """
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
) -> IrValue:
    """Emit LLVM IR that makes the key in a dynamic variable's hash table from the values of the
    variable's keys. Return the key if it is one word, else its address in working memory.

    Args:
        keys: values of the keys.
    """
    code = firing.code
    if variable.length:
        checked_index(firing, variable, keys, const(0))
    values = [_thread(firing), *keys] if variable.scope == "self" else list(keys)
    first = values[0]
    number = isinstance(first, IrValue) and not by_address(layout.keys[0].type)
    if layout.key_words == 1 and len(values) == 1 and number:
        assert isinstance(first, IrValue)
        return code.convert(first, 64, signed=False)
    room = code.add(firing.temp(), TEMP_KEYS)
    covered = {f.offset + i for f in layout.keys for i in range(f.size)}
    for at in range(0, 8 * layout.key_words, 8):
        if not covered.issuperset(range(at, at + 8)):
            code.store(const(0), code.add(room, at))
    for field, value in zip(layout.keys, values, strict=True):
        to = code.add(room, field.offset)
        if isinstance(value, Text):
            copy_text(firing, value, to, field.size, pad=True)
        elif by_address(field.type):
            read_bytes(firing, value, to, field.size)
        else:
            code.store(code.convert(value, 8 * field.size, signed=False), to)
    return code.load(64, room) if layout.key_words == 1 else room


def read_dynamic(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Lowered:
    """Emit LLVM IR that reads a dynamic variable; return its value, which is 0 or NULL if nothing
    was assigned.

    Args:
        keys: values of the keys.
    """
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
        return code.select(missing, zeros(firing, layout.value.size), place)
    before = code.at
    there, end = code.fresh("there"), code.fresh("read")
    code.branch(missing, end, there)
    code.block(there)
    bits = bits_of(variable.type)
    value = code.load(bits, place)
    code.jump(end)
    code.block(end)
    return code.phi(bits, [(const(0, bits), before), (value, there)])


def element_to_change(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> IrValue:
    """Emit LLVM IR that finds or makes a dynamic variable's entry for a structure; return the
    structure's address. A new structure is all zeros.

    If the table has no room, the code counts a drop and returns the address of working memory, so
    that the change is lost.

    Args:
        keys: values of the keys.
    """
    code, layout = firing.code, _layout(firing, variable)
    spare = firing.text_room(round_up(layout.value.size, 8))
    entry = _find(firing, variable, keys, call_obtain)
    place = code.add(entry, layout.value.offset)
    return code.select(code.icmp("eq", entry, 0), spare, place)


def store_dynamic(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], value: Lowered
) -> None:
    """Emit LLVM IR that assigns a value to a dynamic variable.  A scalar 0 or a NULL string frees
    the variable's entry.  If the table has no room, the code drops the value and counts the drop.

    Args:
        keys: values of the keys.
    """
    code = firing.code
    layout = _layout(firing, variable)
    end = code.fresh("stored")
    decides = value.address if isinstance(value, Text) else value
    struct = isinstance(variable.type, StructType)
    if (isinstance(value, IrValue) and not struct) or (isinstance(value, Text) and value.nullable):
        store, free = code.fresh("store"), code.fresh("free")
        code.branch(code.icmp("eq", decides, 0), free, store)
        code.block(free)
        remove_dynamic(firing, variable, keys)
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


def step_dynamic(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], by: int
) -> IrValue:
    """Emit LLVM IR of ++ or -- on a dynamic variable; return the old value.  In an associative
    array, which other CPUs can use at the same time, the addition is one atomic access.

    Args:
        keys: values of the keys.
        by: 1 or -1.
    """
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
    remove_dynamic(firing, variable, keys)
    freed = code.at
    code.jump(end)
    code.block(end)
    return code.phi(bits, [(const(0, bits), before), (old, there), (old, freed)])
