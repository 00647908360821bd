"""LLVM IR of stores through pointers: to the clause's own allocations and to D variables.

The emitted code checks every address at run time, however the address was computed (DTrace's
dtrace_canstore()).  Clauses may write no other memory, unless the user permits destructive actions
(-w): then a store through a pointer (*p = 1, p->x = 1) may also change the traced kernel's memory
(CodeMachine.nofault_write).  A store to a part of a D variable (s.x = 1, a[2] = 1) may not.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Text
from kinst.codegen.helpers.memory_access import (
    allocate_zeros,
    local_address,
    read_bytes,
    writable,
    write_anywhere,
)
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.layout.variable_places import bits_of, memory_size, size_of
from kinst.codegen.ssa import IrValue, const
from kinst.codegen.values.dynamic_variables import element_to_change
from kinst.codegen.values.variable_code import base_address
from kinst.core.dtypes import ArrayType, StringType, StructType
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR
from kinst.dlang import typed
from kinst.dlang.typed import Before, Store, TranslatedStruct
from kinst.dlang.walk import find

Lower = Callable[[Firing, typed.Expr], Lowered]


def store(firing: Firing, expr: Store, lower: Lower) -> Lowered:
    """Emit LLVM IR of a store; return the stored value, or the old value if expr.post is set
    (p->x++).

    The code computes a number before the address to store to, as libdtrace's dt_cg_asgn_op() does.
    The address comes first if the number depends on the old value, or if the value is a string, a
    structure or an array.

    Args:
        lower: emits the code of an expression.
    """
    code = firing.code
    before = any(find(expr.value, Before))
    whole = isinstance(expr.type, StructType | ArrayType | StringType)
    value = None if before or whole else lower(firing, expr.value)
    base = _base(firing, expr, lower)
    if expr.root is not None and base is not None:
        firing.old.append(base)
    target = lower(firing, expr.address)
    assert isinstance(target, IrValue)
    address = code.convert(target, 64, signed=False)
    if expr.root is not None:
        firing.old.pop()
    if expr.variable is None and firing.unit.machine.nofault_write:
        if whole:
            return _write_bytes(firing, expr, address, lower)
        return _write_number(firing, expr, address, value, lower)
    if whole:
        return _store_bytes(firing, expr, address, base, lower)
    size = (expr.bit + expr.bits + 7) // 8 if expr.bits else bits_of(expr.type) // 8
    address = _check(firing, expr, address, base, size)
    old = _read(firing, expr, address) if before else const(0)
    if before:
        firing.old.append(old)
        value = lower(firing, expr.value)
        firing.old.pop()
    if not isinstance(value, IrValue):
        raise KinstError(f"{expr.span}: the assigned value is a string, not a number")
    _write(firing, expr, address, value)
    if expr.post:
        return old
    return _field(firing, expr, code.convert(value, 64, signed=False)) if expr.bits else value


def _write_number(
    firing: Firing, expr: Store, address: IrValue, value: Lowered | None, lower: Lower
) -> Lowered:
    """Emit LLVM IR that stores a number or a bit-field to memory of the clause or of the traced
    kernel; return the stored value, or the old value if expr.post is set.

    The new bytes are made in the clause's working memory.

    Args:
        value: the number; None if it depends on the old value and is not computed yet.
    """
    code = firing.code
    size = (expr.bit + expr.bits + 7) // 8 if expr.bits else bits_of(expr.type) // 8
    room = code.add(firing.temp(), TEMP_WORD)
    old = const(0)
    if value is None:
        read_bytes(firing, address, room, size)
        old = _read(firing, expr, room)
        firing.old.append(old)
        value = lower(firing, expr.value)
        firing.old.pop()
    if not isinstance(value, IrValue):
        raise KinstError(f"{expr.span}: the assigned value is a string, not a number")
    if expr.bits:
        read_bytes(firing, address, room, size)
    _write(firing, expr, room, value)
    write_anywhere(firing, address, room, size)
    if expr.post:
        return old
    return _field(firing, expr, code.convert(value, 64, signed=False)) if expr.bits else value


def _write_bytes(firing: Firing, expr: Store, address: IrValue, lower: Lower) -> Lowered:
    """Emit LLVM IR that stores a string, a structure or an array to memory of the clause or of the
    traced kernel; return the string, or the address of a copy of the stored bytes.
    """
    size = size_of(expr.type, firing.unit.layout.strsize)
    value = lower(firing, expr.value)
    room = firing.text_room(size)
    if isinstance(value, Text):
        copy_text(firing, value, room, size, pad=True)
    else:
        read_bytes(firing, value, room, size)
    write_anywhere(firing, address, room, size)
    return Text(room, size) if isinstance(value, Text) else room


def snapshot(firing: Firing, expr: TranslatedStruct, lower: Lower) -> Lowered:
    """Emit LLVM IR that allocates a translated structure and stores its members; return its
    address.

    Args:
        lower: emits the code of an expression.
    """
    if expr.first is not None:
        lower(firing, expr.first)
    room = allocate_zeros(firing, const(size_of(expr.type, firing.unit.layout.strsize)))
    firing.old.append(room)
    for one in expr.stores:
        store(firing, one, lower)
    firing.old.pop()
    return room


def _base(firing: Firing, expr: Store, lower: Lower) -> IrValue | None:
    """Emit LLVM IR for a store that changes a part of a D variable (s.x = 1, a[2] = 1). The emitted
    code computes the address of the variable, a structure or an array; return this address. For a
    dynamic variable, it is the address of the value in the table entry.

    Return None if the store is through a pointer (*p = 1, p->x = 1).
    """
    if expr.variable is None:
        return None
    if expr.root is None:
        return base_address(firing, expr.variable)
    keys = expr.root.keys if isinstance(expr.root, typed.KeyedRead) else ()
    return element_to_change(firing, expr.variable, [lower(firing, key) for key in keys])


def _store_bytes(
    firing: Firing, expr: Store, address: IrValue, base: IrValue | None, lower: Lower
) -> Lowered:
    """Emit LLVM IR that stores a string, a structure or an array; return the stored string or, for
    other values, the address of the stored bytes.

    Args:
        address: address to store to.
        base: result of _base().
    """
    size = size_of(expr.type, firing.unit.layout.strsize)
    address = _check(firing, expr, address, base, size)
    value = lower(firing, expr.value)
    if isinstance(value, Text):
        copy_text(firing, value, address, size, pad=True)
        return Text(address, size)
    read_bytes(firing, value, address, size)
    return address


def _check(
    firing: Firing, expr: Store, address: IrValue, base: IrValue | None, size: int
) -> IrValue:
    """Emit LLVM IR that faults if the clause may not write `size` bytes at the address; return the
    address at which the emitted code can write them (local_address()).

    Args:
        base: result of _base(): the address of the variable in which all bytes must be; None if
            they may be in any memory that clauses may write.
    """
    if expr.variable is None or base is None:
        return writable(firing, address, const(size))
    address = local_address(firing.unit, firing.code, address)
    code, strsize = firing.code, firing.unit.layout.strsize
    one = size_of(expr.variable.type, strsize)
    whole = one if expr.root is not None else memory_size(expr.variable, strsize)
    offset = code.op("sub", address, base)
    bad = code.icmp("ugt", offset, whole - size) if whole >= size else const(1, 1)
    firing.faults.add(code, bad, FAULT_BADADDR, address)
    return address


def _bytes(expr: Store) -> range:
    """Return the indexes of the bytes that hold a bit-field, counted from the store's address."""
    return range((expr.bit + expr.bits + 7) // 8)


def _word(firing: Firing, expr: Store, address: IrValue) -> IrValue:
    """Emit LLVM IR that loads the bytes that hold a bit-field, and no other bytes; return them as
    one 64-bit number.
    """
    code = firing.code
    word = const(0)
    for at in _bytes(expr):
        byte = code.convert(code.load(8, code.add(address, at)), 64, signed=False)
        word = code.op("or", word, code.op("shl", byte, 8 * at))
    return word


def _field(firing: Firing, expr: Store, value: IrValue) -> IrValue:
    """Emit LLVM IR that cuts a number to a bit-field's width; return it with the field's type."""
    code = firing.code
    top = code.op("shl", value, 64 - expr.bits)
    signed = typed.is_signed(expr.type)
    cut = code.op("ashr" if signed else "lshr", top, 64 - expr.bits)
    return code.convert(cut, bits_of(expr.type), signed)


def _read(firing: Firing, expr: Store, address: IrValue) -> IrValue:
    code = firing.code
    if not expr.bits:
        return code.load(bits_of(expr.type), address)
    return _field(firing, expr, code.op("lshr", _word(firing, expr, address), expr.bit))


def _write(firing: Firing, expr: Store, address: IrValue, value: IrValue) -> None:
    code = firing.code
    if not expr.bits:
        code.store(code.convert(value, bits_of(expr.type), signed=False), address)
        return
    mask = ((1 << expr.bits) - 1) << expr.bit
    wide = code.op("shl", code.convert(value, 64, signed=False), expr.bit)
    kept = code.op("and", _word(firing, expr, address), ~mask)
    word = code.op("or", kept, code.op("and", wide, mask))
    for at in _bytes(expr):
        byte = code.convert(code.op("lshr", word, 8 * at), 8, signed=False)
        code.store(byte, code.add(address, at))
