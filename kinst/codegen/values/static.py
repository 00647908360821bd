"""Variables that are not dynamic: global and clause-local ones, scalar arrays, in memory or in
registers (place_variables.py says which)."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.codegen.firing import Firing, Lowered, Text, Unit
from kinst.codegen.layout.fields import size_of, up
from kinst.codegen.layout.place_variables import element_size
from kinst.codegen.ssa import Function, Local, Value, const
from kinst.codegen.values.builtins import bits_of
from kinst.codegen.values.memory import copy_text
from kinst.core.layout import FAULT_BADADDR
from kinst.dlang import typed


def base_address(firing: Firing, variable: typed.Variable) -> Value:
    """Address of a variable that is in memory and not dynamic."""
    machine = firing.unit.machine
    offset = firing.unit.layout.variables[variable.index]
    if variable.scope == "this":
        return firing.code.add(firing.temp(), firing.clause_memory() + offset)
    return const(machine.address(machine.scratch.globals + offset))


def address_of(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Value:
    """Of a variable that is not dynamic, or of an element; outside the array it faults."""
    base = base_address(firing, variable)
    if not keys:
        return base
    index = checked_index(firing, variable, keys, base)
    size = element_size(variable, firing.unit.layout.strsize)
    return firing.code.op("add", base, firing.code.op("mul", index, size))


def checked_index(
    firing: Firing, variable: typed.Variable, keys: Sequence[Lowered], base: Value
) -> Value:
    """The index of an element.  One outside the array faults: at base, as if it were there."""
    (index,) = keys
    assert isinstance(index, Value)
    code = firing.code
    size = element_size(variable, firing.unit.layout.strsize)
    wild = code.op("add", base, code.op("mul", index, size))
    firing.faults.add(code, code.icmp("uge", index, variable.length), FAULT_BADADDR, wild)
    return index


def register_of(firing: Firing, variable: typed.Variable) -> Local:
    """The clause-local variable, in a register."""
    if variable.index not in firing.this:
        firing.this[variable.index] = firing.code.local(bits_of(variable.type))
    return firing.this[variable.index]


def mark_null(firing: Firing, variable: typed.Variable, address: Value, null: Value) -> None:
    """Note whether the string there is NULL; null: i8, not 0 if so."""
    size = size_of(variable.type, firing.unit.layout.strsize)
    firing.code.store(null, firing.code.add(address, size))


def read_text(firing: Firing, variable: typed.Variable, address: Value) -> Text:
    """The string of a variable that is not dynamic: NULL where it was assigned that."""
    code = firing.code
    size = size_of(variable.type, firing.unit.layout.strsize)
    null = code.icmp("ne", code.load(8, code.add(address, size)), 0)
    return Text(code.select(null, const(0), address), size, nullable=True)


def store_text(firing: Firing, variable: typed.Variable, text: Text, address: Value) -> Text:
    """Assign to a variable that is not dynamic; the value that it has then."""
    code = firing.code
    size = size_of(variable.type, firing.unit.layout.strsize)
    if not text.nullable:
        copy_text(firing, text, address, size)
        mark_null(firing, variable, address, const(0, 8))
        return Text(address, size)
    null = code.icmp("eq", text.address, 0)
    mark_null(firing, variable, address, code.convert(null, 8, signed=False))
    there, end = code.fresh("there"), code.fresh("stored")
    code.branch(null, end, there)
    code.block(there)
    copy_text(firing, text, address, size)
    code.jump(end)
    code.block(end)
    return Text(code.select(null, const(0), address), size, nullable=True)


def clear_array(unit: Unit, name: str) -> Function:
    """Helper clear_array(address, size): size is a multiple of 8 and not 0."""
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


def zeros(firing: Firing, size: int) -> Value:
    """The address of a structure that was not assigned."""
    room = firing.text_room(up(size, 8))
    firing.code.call(firing.unit.helper("clear_array", clear_array), (room, const(up(size, 8))))
    return room
