"""Stores to memory: to what the clause has allocated, and to members of structure variables.

Nothing else may be written: every address is checked where the clause runs, whatever it was made
of (DTrace's dtrace_canstore()).
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.firing import Firing, Lowered
from kinst.codegen.lower_builtins import bits_of
from kinst.codegen.lower_memory import read_bytes
from kinst.codegen.lower_static import base_address
from kinst.codegen.place_variables import memory_size
from kinst.codegen.ssa import Value, const
from kinst.codegen.subr_memory import check_allocated
from kinst.codegen.walk import within
from kinst.core.dtypes import StructType
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR
from kinst.dlang import typed
from kinst.dlang.typed_store import Before, Store

Lower = Callable[[Firing, typed.Expr], Lowered]


def store(firing: Firing, expr: Store, lower: Lower) -> Lowered:
    """The value stored, or with post what was there."""
    code = firing.code
    target = lower(firing, expr.address)
    assert isinstance(target, Value)
    address = code.convert(target, 64, signed=False)
    if isinstance(expr.type, StructType):
        _check(firing, expr, address, expr.type.size)
        value = lower(firing, expr.value)
        assert isinstance(value, Value)
        read_bytes(firing, value, address, expr.type.size)
        return address
    size = (expr.bit + expr.bits + 7) // 8 if expr.bits else bits_of(expr.type) // 8
    _check(firing, expr, address, size)
    before = any(isinstance(e, Before) for e in within(expr.value))
    old = _read(firing, expr, address) if before else const(0)
    if before:
        firing.old.append(old)
    value = lower(firing, expr.value)
    if before:
        firing.old.pop()
    if not isinstance(value, Value):
        raise KinstError(f"{expr.span}: a number was expected")
    _write(firing, expr, address, value)
    if expr.post:
        return old
    return _field(firing, expr, code.convert(value, 64, signed=False)) if expr.bits else value


def _check(firing: Firing, expr: Store, address: Value, size: int) -> None:
    """Fault unless these bytes may be written."""
    if expr.variable is None:
        check_allocated(firing, address, const(size))
        return
    code = firing.code
    whole = memory_size(expr.variable, firing.unit.layout.strsize)
    offset = code.op("sub", address, base_address(firing, expr.variable))
    bad = code.icmp("ugt", offset, whole - size) if whole >= size else const(1, 1)
    firing.faults.add(code, bad, FAULT_BADADDR, address)


def _bytes(expr: Store) -> range:
    """The bytes of a bit-field, from the address."""
    return range((expr.bit + expr.bits + 7) // 8)


def _word(firing: Firing, expr: Store, address: Value) -> Value:
    """The bytes of a bit-field as one number: no others are touched."""
    code = firing.code
    word = const(0)
    for at in _bytes(expr):
        byte = code.convert(code.load(8, code.add(address, at)), 64, signed=False)
        word = code.op("or", word, code.op("shl", byte, 8 * at))
    return word


def _field(firing: Firing, expr: Store, value: Value) -> Value:
    """A number as the bit-field represents it, of the field's type."""
    code = firing.code
    top = code.op("shl", value, 64 - expr.bits)
    signed = typed.is_signed(expr.type)
    cut = code.op("ashr" if signed else "lshr", top, 64 - expr.bits)
    return code.convert(cut, bits_of(expr.type), signed)


def _read(firing: Firing, expr: Store, address: Value) -> Value:
    code = firing.code
    if not expr.bits:
        return code.load(bits_of(expr.type), address)
    return _field(firing, expr, code.op("lshr", _word(firing, expr, address), expr.bit))


def _write(firing: Firing, expr: Store, address: Value, value: Value) -> None:
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
