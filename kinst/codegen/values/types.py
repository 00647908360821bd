"""Bit-fields, structures and arrays by their address, addresses of the kernel's symbols."""

from __future__ import annotations

from kinst.codegen.firing import Firing
from kinst.codegen.ssa import Value, const
from kinst.codegen.values.builtins import bits_of
from kinst.codegen.values.memory import load_word, read_bytes
from kinst.core.dtypes import ArrayType, DType, FloatType, FunctionType, StructType
from kinst.core.errors import KinstError
from kinst.dlang import typed


def by_address(type_: DType) -> bool:
    """Whether a value of this type is handled by its address (typed.Load)."""
    return isinstance(type_, StructType | ArrayType | FloatType | FunctionType)


def bit_field(firing: Firing, expr: typed.BitField, address: Value) -> Value:
    """The field's value: only the bytes that hold it are read."""
    code = firing.code
    size = (expr.bit + expr.bits + 7) // 8
    word = code.convert(load_word(firing, address, 8 * size), 64, signed=False)
    top = code.op("shl", word, 64 - expr.bit - expr.bits)
    shift = "ashr" if typed.is_signed(expr.type) else "lshr"
    value = code.op(shift, top, 64 - expr.bits)
    return code.convert(value, bits_of(expr.type), signed=False)


def symbol(firing: Firing, expr: typed.SymbolAddress) -> Value:
    """Raises KinstError where the target has no such symbol."""
    found = firing.unit.machine.symbols.get((expr.module, expr.name))
    if found is None:
        raise KinstError(
            f"{expr.span}: the address of {expr.module}`{expr.name} is not known",
            "its kernel or module is not running",
        )
    return const(found)


def copy_value(firing: Firing, source: Value, to: Value, size: int) -> None:
    """Copy the bytes of a structure or array of the traced kernel to scratch; a bad address
    faults."""
    if size:
        read_bytes(firing, source, to, size)
