"""Offsets of D's variables (global variables, clause-local variables in memory, dynamic variables),
and the sizes and alignments of stored values.

Tested by tests/codegen/layout/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    UINT64,
    ArrayType,
    DType,
    DumpType,
    FloatType,
    FunctionType,
    IntType,
    PointerType,
    StackType,
    StringType,
    StructType,
    SymbolType,
)
from kinst.core.errors import KinstError
from kinst.core.records import DynamicLayout, Field, bucket_size
from kinst.dlang import typed
from kinst.dlang.types.conversions import size_of as plain_size


def size_of(type_: DType, strsize: int) -> int:
    """Return the size in bytes of a stored value of this type.  Raises KinstError if values of this
    type cannot be stored.

    Args:
        strsize: bytes of a string with its NUL.
    """
    if isinstance(type_, (IntType, PointerType, StackType, SymbolType, DumpType)):
        return type_.size
    if isinstance(type_, StringType):
        return min(type_.size, strsize) if type_.size else strsize
    if isinstance(type_, (StructType, ArrayType, FloatType)):
        return plain_size(type_, strsize)
    raise KinstError(f"a value of type {type_} cannot be recorded")


def align_of(type_: DType) -> int:
    """Return the alignment in bytes of a stored value of this type."""
    if isinstance(type_, (StackType, SymbolType, StructType, ArrayType, FloatType)):
        return 8
    return type_.size if isinstance(type_, (IntType, PointerType)) else 1


def round_up(offset: int, align: int) -> int:
    """Round an offset up to a multiple of `align`, a power of two."""
    return (offset + align - 1) & -align


def lay_out_values(
    types: Sequence[DType], at: int, strsize: int, bounds: Sequence[int] = ()
) -> tuple[tuple[Field, ...], int]:
    """Return fields for stored values, one after another, and the offset where the last field ends.

    Args:
        types: types of the values.
        at: offset of the first field.
        strsize: bytes of a string with its NUL.
        bounds: for each value, the largest number of bytes that the value can need if it is a
            string; empty if these numbers are not known.
    """
    fields = []
    for i, type_ in enumerate(types):
        at = round_up(at, align_of(type_))
        size = size_of(type_, strsize)
        if bounds and isinstance(type_, StringType):
            size = min(size, bounds[i])
        fields.append(Field(at, size, type_))
        at += size
    return tuple(fields), at


@dataclass(frozen=True, slots=True)
class VariableOffsets:
    """Offsets of the D variables that are not dynamic, and the sizes of their areas.

    Attributes:
        offsets: offset of each variable, by Variable.index. A global variable's offset is in the
            globals area. The offset of a clause-local variable in memory is in the clause's working
            memory. -1 for any other variable.
        globals_size: bytes of the globals area.
        clause_size: bytes of the clause-local variables in memory.
    """

    offsets: tuple[int, ...]
    globals_size: int
    clause_size: int


def in_registers(variable: typed.Variable) -> bool:
    """Return whether the variable is kept in a register during a firing and needs no memory (a
    clause-local integer or pointer).
    """
    scalar = not variable.length and isinstance(variable.type, IntType | PointerType)
    return variable.scope == "this" and scalar


def memory_size(variable: typed.Variable, strsize: int) -> int:
    """Return the size in bytes of a variable that is not dynamic, with all its elements if it is an
    array.
    """
    return element_size(variable, strsize) * max(1, variable.length)


def element_size(variable: typed.Variable, strsize: int) -> int:
    """Return the distance in bytes between two elements of a scalar array. It is also the size of a
    variable that is no array.

    A string takes strsize bytes and one more byte, which is not 0 if the variable is NULL. The size
    is rounded up to a multiple of 8, so that code can copy strings by words.
    """
    size = size_of(variable.type, strsize)
    return round_up(size + 1, 8) if isinstance(variable.type, StringType) else size


def place_variables(program: typed.TypedProgram, strsize: int) -> VariableOffsets:
    """Return the offsets of all global and clause-local variables that need memory and are not
    dynamic.
    """
    offsets = [-1] * (1 + max((v.index for v in program.variables), default=-1))
    ends = {"global": 0, "this": 0}
    for variable in program.variables:
        if variable.is_dynamic or in_registers(variable):
            continue
        string = isinstance(variable.type, StringType)
        at = round_up(
            ends[variable.scope], 8 if string or variable.length else align_of(variable.type)
        )
        offsets[variable.index] = at
        ends[variable.scope] = at + memory_size(variable, strsize)
    return VariableOffsets(tuple(offsets), round_up(ends["global"], 8), round_up(ends["this"], 8))


def _entry(variable: typed.Variable, strsize: int) -> tuple[tuple[Field, ...], Field, int]:
    """Return the layout of a dynamic variable's table entry: the fields of the keys, the field of
    the value, and the size of the entry in bytes.

    Code compares keys by words, so gaps between keys must be zero. If the keys have no bytes, one
    zero word stands in for them.
    """
    thread = (UINT64,) if variable.scope == "self" else ()
    index = (UINT64,) if variable.length else ()
    keys, end = lay_out_values((*thread, *variable.keys, *index), 0, strsize)
    value = Field(round_up(max(end, 1), 8), size_of(variable.type, strsize), variable.type)
    return keys, value, round_up(value.offset + value.size, 8)


def dynamic_size(program: typed.TypedProgram, strsize: int, dynvarsize: int) -> int:
    """Return the bytes that the tables of the dynamic variables need: dynvarsize or, if that is too
    small, as much as one bucket of each table. 0 if there are no such variables.
    """
    tables = lay_out_dynamic(program, strsize, dynvarsize)
    return (
        max(dynvarsize, tables[-1].area + tables[-1].buckets * tables[-1].stride) if tables else 0
    )


def lay_out_dynamic(
    program: typed.TypedProgram, strsize: int, dynvarsize: int
) -> tuple[DynamicLayout, ...]:
    """Return the layout of each dynamic variable's table, in program order. All tables have the
    same number of buckets, as many as fit in dynvarsize bytes.

    If dynvarsize is too small for that, each table has one bucket, in more than dynvarsize bytes:
    DTrace, too, raises a size that is too small (dtrace_dstate_init()).
    """
    dynamic = [v for v in program.variables if v.is_dynamic]
    entries = [_entry(v, strsize) for v in dynamic]
    each = sum(bucket_size(size) for _, _, size in entries)
    buckets = max(1, dynvarsize // each) if each else 0
    tables = []
    area = 0
    for variable, (keys, value, size) in zip(dynamic, entries, strict=True):
        table = DynamicLayout(
            variable.index, area, buckets, size, keys, value, variable.scope != "self"
        )
        area += buckets * table.stride
        tables.append(table)
    return tuple(tables)


def by_address(type_: DType) -> bool:
    """Return whether code handles a value of this type by its address (typed.Load)."""
    return isinstance(type_, StructType | ArrayType | FloatType | FunctionType)


def bits_of(type_: DType) -> int:
    """Return the width in bits of an integer or pointer type.  Raises KinstError for other
    types.
    """
    if isinstance(type_, (IntType, PointerType)):
        return 8 * type_.size
    raise KinstError(f"a program cannot compute with values of type {type_}")
