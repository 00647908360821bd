"""C's conversions of typed expressions, with constant folding (K&R A6, C99 6.3, on LP64).

D defines what C leaves undefined, and codegen computes the same results: integers wrap around at
their type's size; shifts are done in 64 bits with the count modulo 64, and then cut to the type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from kinst.core.dtypes import (
    CHAR,
    INT,
    INT64,
    UINT,
    UINT64,
    ArrayType,
    DType,
    EnumType,
    FloatType,
    FunctionType,
    IntType,
    PointerType,
    StringType,
    StructType,
    VoidType,
    is_char,
)
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.vocabulary.type_names import is_bool

POINTER_SIZE = 8


def is_integer(type_: DType) -> bool:
    return isinstance(type_, IntType)


def is_scalar(type_: DType) -> bool:
    """Return whether a type is an integer or a pointer. Strings are not scalars in D."""
    return isinstance(type_, IntType | PointerType)


def is_string(type_: DType) -> bool:
    return isinstance(type_, StringType)


def is_void_pointer(type_: DType) -> bool:
    return isinstance(type_, PointerType) and isinstance(type_.to, VoidType)


def is_char_pointer(type_: DType) -> bool:
    return isinstance(type_, PointerType) and isinstance(type_.to, IntType) and type_.to.size == 1


def is_string_like(type_: DType) -> bool:
    """Return whether a value of this type may be used as a string: a string or a char pointer."""
    return is_string(type_) or is_char_pointer(type_)


def is_declaration(type_: DType) -> bool:
    """Return whether a type is a structure that is only declared, so that its size is unknown."""
    return isinstance(type_, StructType) and not type_.size and not type_.members


def is_zero(expr: typed.Expr) -> bool:
    return isinstance(expr, typed.IntConst) and expr.value == 0


def size_of(type_: DType, strsize: int) -> int:
    """Return the size of a type in bytes; 0 if it has none.

    Args:
        strsize: bytes of a string whose type has no size of its own.
    """
    if isinstance(type_, IntType | PointerType):
        return type_.size
    if isinstance(type_, StringType):
        return type_.size or strsize
    if isinstance(type_, ArrayType):
        return size_of(type_.of, strsize) * type_.count
    if isinstance(type_, StructType | FloatType):
        return type_.size
    return 0


def same(left: DType, right: DType) -> bool:
    """Return whether two types are compatible. Compatible integer types may have different
    names.
    """
    if isinstance(left, IntType) and isinstance(right, IntType):
        return left.size == right.size and left.signed == right.signed
    if isinstance(left, PointerType) and isinstance(right, PointerType):
        # D's own char is signed; the kernel's may be unsigned.
        return same(left.to, right.to) or (is_char(left.to) and is_char(right.to))
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return left.count == right.count and same(left.of, right.of)
    if isinstance(left, StructType) and isinstance(right, StructType):
        # The kernel and each of its modules may describe one structure.
        named = left.name and left.kind == right.kind and left.name == right.name
        sizes = left.size == right.size or not left.size or not right.size
        return bool(named and sizes) or left == right
    if isinstance(left, FunctionType) and isinstance(right, FunctionType):
        alike = len(left.parameters) == len(right.parameters) and same(left.result, right.result)
        return alike and all(map(same, left.parameters, right.parameters))
    return type(left) is type(right)


def wrap(value: int, type_: DType) -> int:
    """Return a number reduced to the range of an integer or pointer type."""
    size = type_.size if isinstance(type_, IntType | PointerType) else POINTER_SIZE
    value &= (1 << (8 * size)) - 1
    if typed.is_signed(type_) and value >> (8 * size - 1):
        value -= 1 << (8 * size)
    return value


def constant(value: int, type_: DType, span: Span) -> typed.IntConst:
    return typed.IntConst(type_, span, wrap(value, type_))


def _result(value: int, type_: DType, span: Span) -> typed.IntConst:
    """Return the constant that an operator on constants yields. If int cannot hold the value, the
    constant is an int64_t, like a literal of this value: 5 * 1000000000, 1 << 40 (libdtrace's
    dt_node_op2() computes constants in 64 bits).

    Args:
        type_: the operator's result type in C.
    """
    if type(type_) is IntType and same(type_, INT) and wrap(value, INT) != value:
        return constant(value, INT64, span)
    return constant(value, type_, span)


def cast(expr: typed.Expr, type_: DType) -> typed.Expr:
    """Convert an expression from one integer or pointer type to another; constants are folded."""
    # A bit-field needs the Cast even if its type stays the same: only the Cast's result has a size.
    if expr.type == type_ and not isinstance(expr, typed.BitField):
        return expr
    if isinstance(expr, typed.IntConst):
        value = int(expr.value != 0) if is_bool(type_) else expr.value
        return constant(value, type_, expr.span)
    if is_bool(type_) and not is_bool(expr.type):
        zero = constant(0, expr.type, expr.span)
        expr = typed.Binary(INT, expr.span, "!=", expr, zero)
    return typed.Cast(type_, expr.span, expr)


def to_string(expr: typed.Expr) -> typed.Expr:
    """Return a string expression unchanged; for a pointer or integer, return the string at this
    address.
    """
    if is_string(expr.type):
        return expr
    address = expr
    if not isinstance(expr.type, PointerType):
        address = cast(expr, PointerType(CHAR))
    return typed.Load(StringType(), expr.span, address)


def promoted(type_: IntType) -> IntType:
    """Return an integer type after the integer promotions: int if the type is narrower (C99
    6.3.1.1).
    """
    if isinstance(type_, EnumType) and type_.size == INT.size:
        return INT if type_.signed else UINT
    return INT if type_.size < INT.size else type_


def of_field(expr: typed.Expr) -> typed.Expr:
    """Convert a bit-field to int if int can hold all of its values (C99 6.3.1.1); return any other
    expression unchanged.
    """
    if not isinstance(expr, typed.BitField) or expr.bits >= 8 * INT.size:
        return expr
    return cast(expr, INT)


def common(left: IntType, right: IntType) -> IntType:
    """Return the common type of two integers after the usual arithmetic conversions (C99
    6.3.1.8).
    """
    left, right = promoted(left), promoted(right)
    if left.signed == right.signed:
        return right if right.size > left.size else left
    unsigned, signed = (right, left) if left.signed else (left, right)
    return signed if signed.size > unsigned.size else unsigned


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

_PLAIN: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip

COMPARISONS = frozenset(_COMPARE)


def _folded(op: str, left: int, right: int) -> int:
    """Compute an operator on two constants; return the exact result, which the caller wraps."""
    if op in _PLAIN:
        return _PLAIN[op](left, right)
    if op in _COMPARE:
        return int(_COMPARE[op](left, right))
    if op == "<<":
        return left << (right & 63)
    if op == ">>":
        return left >> (right & 63)
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return quotient if op == "/" else left - quotient * right


def binary(op: str, left: typed.Expr, right: typed.Expr, type_: DType, span: Span) -> typed.Expr:
    """Return the expression left op right, folded if both operands are constants. The operands
    already have their final types.

    Raises DError D_DIV_ZERO.

    Args:
        type_: type of the result.
    """
    if op in ("/", "%") and is_zero(right):
        raise DError("expression contains division by zero", span, "D_DIV_ZERO")
    if isinstance(left, typed.IntConst) and isinstance(right, typed.IntConst):
        return _result(_folded(op, left.value, right.value), type_, span)
    return typed.Binary(type_, span, op, left, right)


def logical(op: str, left: typed.Expr, right: typed.Expr, span: Span) -> typed.Expr:
    """Return the expression left op right for the operators && || ^^, folded if both operands are
    constants.
    """
    if isinstance(left, typed.IntConst) and isinstance(right, typed.IntConst):
        a, b = left.value != 0, right.value != 0
        value = {"&&": a and b, "||": a or b, "^^": a != b}[op]
        return constant(int(value), INT, span)
    return typed.Logical(INT, span, op, left, right)


def unary(op: str, operand: typed.Expr, type_: DType, span: Span) -> typed.Expr:
    """Return the expression op operand for the operators - ~ !, folded if the operand is a
    constant. The operand already has its final type.

    Args:
        type_: type of the result.
    """
    if isinstance(operand, typed.IntConst):
        value = {"-": -operand.value, "~": ~operand.value, "!": int(operand.value == 0)}[op]
        return _result(value, type_, span)
    return typed.Unary(type_, span, op, operand)


def offset_pointer(
    op: str, pointer: typed.Expr, index: typed.Expr, size: int, span: Span
) -> typed.Expr:
    """Return pointer + index or pointer - index, where the index counts units of `size` bytes."""
    scaled = binary("*", cast(index, UINT64), constant(size, UINT64, span), UINT64, span)
    if is_zero(scaled):
        return pointer
    return cast(binary(op, cast(pointer, UINT64), scaled, UINT64, span), pointer.type)
