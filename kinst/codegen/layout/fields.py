"""Sizes of stored values, and their places one after another."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import (
    ArrayType,
    DType,
    DumpType,
    FloatType,
    IntType,
    PointerType,
    StackType,
    StringType,
    StructType,
    SymbolType,
)
from kinst.core.errors import KinstError
from kinst.core.records import Field
from kinst.dlang.types.convert import size_of as plain_size


def size_of(type_: DType, strsize: int) -> int:
    """Bytes of a stored value of this type."""
    if isinstance(type_, (IntType, PointerType, StackType, SymbolType, DumpType)):
        return type_.size
    if isinstance(type_, StringType):
        return min(type_.size, strsize) if type_.size else strsize
    if isinstance(type_, (StructType, ArrayType, FloatType)):
        return plain_size(type_, strsize)
    raise KinstError(f"a value of type {type_} cannot be recorded")


def align_of(type_: DType) -> int:
    """What the offset of a value of this type is a multiple of."""
    if isinstance(type_, (StackType, SymbolType, StructType, ArrayType, FloatType)):
        return 8
    return type_.size if isinstance(type_, (IntType, PointerType)) else 1


def up(offset: int, align: int) -> int:
    """The next multiple of align, a power of two."""
    return (offset + align - 1) & -align


def place(
    types: Sequence[DType], at: int, strsize: int, bounds: Sequence[int] = ()
) -> tuple[tuple[Field, ...], int]:
    """Fields one after another from `at`, and the end.

    bounds: bytes that are enough for each one if it is a string."""
    found = []
    for i, type_ in enumerate(types):
        at = up(at, align_of(type_))
        size = size_of(type_, strsize)
        if bounds and isinstance(type_, StringType):
            size = min(size, bounds[i])
        found.append(Field(at, size, type_))
        at += size
    return tuple(found), at
