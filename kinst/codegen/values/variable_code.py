"""LLVM IR that reads, assigns and steps (++, --) D variables in registers, in memory, or in hash
tables (dynamic_variables.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.firing import Firing, Lowered, Text
from kinst.codegen.helpers.memory_access import clear_words, read_bytes
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.layout.variable_places import (
    bits_of,
    element_size,
    in_registers,
    memory_size,
    round_up,
    size_of,
)
from kinst.codegen.ssa import IrLocal, IrValue, const
from kinst.codegen.values.dynamic_variables import (
    checked_index,
    read_dynamic,
    remove_dynamic,
    step_dynamic,
    store_dynamic,
)
from kinst.core.dtypes import ArrayType, StringType, StructType
from kinst.dlang import typed
from kinst.dlang.walk import expressions, find


def base_address(firing: Firing, variable: typed.Variable) -> IrValue:
    """Return the address of a variable that is in memory and not dynamic."""
    machine = firing.unit.machine
    offset = firing.unit.layout.variables[variable.index]
    if variable.scope == "this":
        return firing.code.add(firing.temp(), firing.clause_memory() + offset)
    return const(machine.address(machine.scratch.globals + offset))


def address_of(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> IrValue:
    """Emit LLVM IR that computes the address of a variable that is not dynamic, or of an array's
    element; return the address.  An index outside the array faults.

    Args:
        keys: a sequence with the index of the array's element as its only element; empty for the
            address of the variable itself.
    """
    base = base_address(firing, variable)
    if not keys:
        return base
    index = checked_index(firing, variable, keys, base)
    size = element_size(variable, firing.unit.layout.strsize)
    return firing.code.op("add", base, firing.code.op("mul", index, size))


def register_of(firing: Firing, variable: typed.Variable) -> IrLocal:
    """Return the LLVM local variable that holds a clause-local variable."""
    if variable.index not in firing.this:
        firing.this[variable.index] = firing.code.local(bits_of(variable.type))
    return firing.this[variable.index]


def mark_null(firing: Firing, variable: typed.Variable, address: IrValue, null: IrValue) -> None:
    """Emit LLVM IR that records whether a string variable is NULL, in the byte after its text.

    Args:
        address: address of the variable.
        null: an i8, not 0 if the string is NULL.
    """
    size = size_of(variable.type, firing.unit.layout.strsize)
    firing.code.store(null, firing.code.add(address, size))


def read_text(firing: Firing, variable: typed.Variable, address: IrValue) -> Text:
    """Return the string of a variable that is not dynamic, as a Text whose address is 0 if the
    variable is NULL at run time.

    Args:
        address: address of the variable.
    """
    code = firing.code
    size = size_of(variable.type, firing.unit.layout.strsize)
    null = code.icmp("ne", code.load(8, code.add(address, size)), 0)
    return Text(code.select(null, const(0), address), size, nullable=True)


def store_text(firing: Firing, variable: typed.Variable, text: Text, address: IrValue) -> Text:
    """Emit LLVM IR that assigns a string to a variable that is not dynamic; return the variable's
    new value.

    Args:
        address: address of the variable.
    """
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


Lower = Callable[[Firing, typed.Expr], Lowered]

VARIABLE_NODES = (
    typed.GlobalRead, typed.Assign, typed.Step,
    typed.KeyedRead, typed.KeyedAssign, typed.KeyedStep, typed.OldValue,
)  # fmt: skip


def lower_variable(firing: Firing, expr: typed.Expr, lower: Lower, nullable: Lower) -> Lowered:
    """Emit LLVM IR of an expression that reads or changes a variable; return its value, which may
    be a NULL string.

    Args:
        expr: a GlobalRead, Assign, Step, KeyedRead, KeyedAssign, KeyedStep or OldValue.
        lower: emits the code of a key.
        nullable: emits the code of an assigned value, which may be NULL.
    """
    match expr:
        case typed.GlobalRead():
            return _read_variable(firing, expr.variable, [])
        case typed.KeyedRead():
            return _read_variable(firing, expr.variable, [lower(firing, key) for key in expr.keys])
        case typed.OldValue():
            return firing.old[-1]
        case typed.Assign():
            return _assign(firing, expr.variable, list, expr.value, nullable)
        case typed.KeyedAssign():
            if uses_old(expr.value):
                keys = [lower(firing, key) for key in expr.keys]
                firing.old.append(_read_variable(firing, expr.variable, keys))
                value = _assign(firing, expr.variable, lambda: keys, expr.value, nullable)
                firing.old.pop()
                return value
            return _assign(
                firing,
                expr.variable,
                lambda: [lower(firing, key) for key in expr.keys],
                expr.value,
                nullable,
            )
        case typed.Step():
            return _step(firing, expr, [])
        case typed.KeyedStep():
            return _step(firing, expr, [lower(firing, key) for key in expr.keys])
    raise AssertionError(f"no variable: {type(expr).__name__}")


def is_thread_local(expr: typed.Expr) -> bool:
    """Return whether an expression reads or changes a thread-local variable."""
    return isinstance(expr, VARIABLE_NODES) and expr.variable.scope == "self"


def uses_old(value: typed.Expr) -> bool:
    """Return whether an assigned value is computed from the variable's old value."""
    return any(find(value, typed.OldValue))


def clear_clause_memory(firing: Firing, clauses: Sequence[typed.Clause]) -> None:
    """Emit LLVM IR that sets the clause-local variables in memory to their values at the start of a
    firing, 0 or "".

    Args:
        clauses: the clauses whose variables are cleared.
    """
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
            mark_null(firing, variable, start, const(0, 8))
            continue
        clear_words(firing, start, round_up(memory_size(variable, strsize), 8))


def _read_variable(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Lowered:
    if variable.is_dynamic:
        return read_dynamic(firing, variable, keys)
    if in_registers(variable):
        return firing.code.get(register_of(firing, variable))
    address = address_of(firing, variable, keys)
    if isinstance(variable.type, StructType | ArrayType) or (variable.length and not keys):
        return address
    if isinstance(variable.type, StringType):
        return read_text(firing, variable, address)
    return firing.code.load(bits_of(variable.type), address)


def _free(firing: Firing, variable: typed.Variable, keys: Sequence[Lowered]) -> Text:
    """Emit LLVM IR that assigns NULL to a string variable; return NULL."""
    if variable.is_dynamic:
        remove_dynamic(firing, variable, keys)
    else:
        mark_null(firing, variable, address_of(firing, variable, keys), const(1, 8))
    return Text(const(0), 1, nullable=True)


def _assign(
    firing: Firing,
    variable: typed.Variable,
    lower_keys: Callable[[], Sequence[Lowered]],
    expr: typed.Expr,
    nullable: Lower,
) -> Lowered:
    """Emit LLVM IR of an assignment to a variable; return the assigned value.  The code computes
    the value first and the keys after it, as libdtrace's dt_cg_asgn_op() does.

    Args:
        lower_keys: emits the code of the keys.
        expr: the value to assign.
        nullable: emits the code of a value, which may be NULL.
    """
    string = isinstance(variable.type, StringType)
    if string and not isinstance(expr.type, StringType):
        return _free(firing, variable, lower_keys())
    value = nullable(firing, expr)
    keys = lower_keys()
    if variable.is_dynamic:
        store_dynamic(firing, variable, keys, value)
        return value
    if isinstance(value, Text) and string:
        return store_text(firing, variable, value, address_of(firing, variable, keys))
    assert isinstance(value, IrValue)
    if isinstance(variable.type, StructType):
        address = address_of(firing, variable, keys)
        read_bytes(firing, value, address, element_size(variable, firing.unit.layout.strsize))
        return address
    if in_registers(variable):
        firing.code.set(register_of(firing, variable), value)
    else:
        firing.code.store(value, address_of(firing, variable, keys))
    return value


def _step(firing: Firing, expr: typed.Step | typed.KeyedStep, keys: Sequence[Lowered]) -> IrValue:
    code, variable = firing.code, expr.variable
    if variable.is_dynamic:
        old = step_dynamic(firing, variable, keys, expr.by)
        return old if expr.post else code.op("add", old, const(expr.by, old.bits))
    if in_registers(variable):
        register = register_of(firing, variable)
        old = code.get(register)
        new = code.op("add", old, const(expr.by, old.bits))
        code.set(register, new)
    else:
        address = address_of(firing, variable, keys)
        old = code.load(bits_of(variable.type), address)
        new = code.op("add", old, const(expr.by, old.bits))
        code.store(new, address)
    return old if expr.post else new
