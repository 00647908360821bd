"""Operators on typed expressions: compute result types, make conversions explicit, fold constants.

Every DError has libdtrace's tag and, except for line breaks, its words.

Tested by tests/dlang/types/test_conversions.py.
"""

from __future__ import annotations

from kinst.core.dtypes import (
    INT,
    LONG,
    DType,
    IntType,
    PointerType,
    StringType,
    StructType,
    VoidType,
)
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.types.conversions import (
    COMPARISONS,
    binary,
    cast,
    common,
    constant,
    is_declaration,
    is_integer,
    is_scalar,
    is_string,
    is_string_like,
    is_void_pointer,
    is_zero,
    logical,
    of_field,
    offset_pointer,
    promoted,
    same,
    size_of,
    to_string,
)
from kinst.dlang.vocabulary.type_names import words


def incompatible(left: DType, op: str, right: DType, span: Span) -> DError:
    message = f'operands have incompatible types: "{left}" {op} "{right}"'
    one_is_text = isinstance(left, StringType) != isinstance(right, StringType)
    has_single_quotes = "'" in span.text[span.column :]
    hint = 'strings have double quotes: "ls"' if one_is_text and has_single_quotes else ""
    return DError(message, span, "D_OP_INCOMPAT", hint)


def common_pointer(left: typed.Expr, right: typed.Expr) -> PointerType | None:
    """Return the type in which two pointers, or a pointer and an integer (curthread ==
    regs[R_RDI]), are compared; None if they cannot be compared.
    """
    a, b = left.type, right.type
    if isinstance(a, PointerType) and isinstance(b, PointerType):
        if is_void_pointer(b):
            return a
        return b if is_void_pointer(a) or same(a.to, b.to) else None
    if isinstance(a, PointerType) and is_integer(b):
        return a
    if isinstance(b, PointerType) and is_integer(a):
        return b
    return None


def converted(value: typed.Expr, type_: DType, op: str, span: Span) -> typed.Expr:
    """Convert a value for an assignment to a variable of `type_` (K&R A7.17).

    Raises DError D_OP_INCOMPAT.

    Args:
        op: the assignment's operator, for messages.
    """
    if is_integer(type_) and is_integer(value.type):
        return cast(value, type_)
    if is_string(type_) and is_string_like(value.type):
        return to_string(value)
    if isinstance(type_, PointerType):
        if is_string(value.type) and is_string_like(type_):
            message = "a string as the value of a char pointer is not supported yet"
            raise DError(message, span, "D_UNKNOWN", "use a variable of type string")
        if isinstance(value.type, PointerType):
            compatible = (
                is_void_pointer(type_) or is_void_pointer(value.type) or same(type_, value.type)
            )
        else:
            compatible = is_zero(value)
        if compatible:
            return cast(value, type_)
    if isinstance(type_, StructType) and op == "=" and same(type_, value.type):
        return value
    raise incompatible(type_, op, value.type, span)


def load(address: typed.Expr, span: Span) -> typed.Expr:
    """Return the expression *address. Raises DError D_DEREF_NONPTR, D_DEREF_VOID."""
    if not isinstance(address.type, PointerType):
        hint = "cast it: *(uint64_t *)..." if is_integer(address.type) else ""
        raise DError("cannot dereference non-pointer type", span, "D_DEREF_NONPTR", hint)
    if isinstance(address.type.to, VoidType):
        message = "cannot dereference pointer to void"
        raise DError(message, span, "D_DEREF_VOID", "cast it first")
    return typed.Load(address.type.to, span, address)


def need_definition(op: str, type_: DType, span: Span) -> None:
    """Check that a type is not a structure that is only declared. Raises DError D_OP_INCOMPLETE.

    Args:
        op: the operator that needs the type, for messages.
    """
    if is_declaration(type_):
        message = (
            f"operator {op} cannot be applied to a forward declaration: no {type_} definition is"
            " available"
        )
        raise DError(message, span, "D_OP_INCOMPLETE")


_KINDS = {
    **dict.fromkeys(words("& ^ | << >> %"), ("integral", "D_OP_INT")),
    **dict.fromkeys(words("* /"), ("arithmetic", "D_OP_ARITH")),
}


def operate(op: str, left: typed.Expr, right: typed.Expr, span: Span, shown: str) -> typed.Expr:
    """Return the expression left op right, with both operands converted to the operator's type.
    Raises DError.

    Args:
        op: any binary operator except the comma and assignments.
        shown: the operator in error messages: op itself, or += if the program has += for +.
    """
    left, right = of_field(left), of_field(right)
    if op in ("&&", "||", "^^"):
        if not is_scalar(left.type) or not is_scalar(right.type):
            message = f"operator {op} requires operands of scalar type"
            raise DError(message, span, "D_OP_SCALAR")
        return logical(op, left, right, span)
    if op in COMPARISONS:
        return _compare(op, left, right, span)
    if op in ("+", "-") and not (is_integer(left.type) and is_integer(right.type)):
        return move(op, left, right, span, shown)
    if not isinstance(left.type, IntType) or not isinstance(right.type, IntType):
        kind, tag = _KINDS[op]
        raise DError(f"operator {shown} requires operands of {kind} type", span, tag)
    if op in ("<<", ">>"):
        type_ = promoted(left.type)
        count = cast(right, promoted(right.type))
        return binary(op, cast(left, type_), count, type_, span)
    type_ = common(left.type, right.type)
    return binary(op, cast(left, type_), cast(right, type_), type_, span)


def _compare(op: str, left: typed.Expr, right: typed.Expr, span: Span) -> typed.Expr:
    if isinstance(left.type, IntType) and isinstance(right.type, IntType):
        type_: DType = common(left.type, right.type)
        return binary(op, cast(left, type_), cast(right, type_), INT, span)
    strings = is_string_like(left.type) and is_string_like(right.type)
    if strings and (is_string(left.type) or is_string(right.type)):
        return typed.Binary(INT, span, op, to_string(left), to_string(right))
    if op in ("==", "!=") and (
        (is_string(left.type) and is_zero(right)) or (is_string(right.type) and is_zero(left))
    ):
        return typed.Binary(INT, span, op, to_string(left), to_string(right))
    pointer = common_pointer(left, right)
    if pointer is None:
        raise incompatible(left.type, op, right.type, span)
    return binary(op, cast(left, pointer), cast(right, pointer), INT, span)


def move(op: str, left: typed.Expr, right: typed.Expr, span: Span, shown: str = "") -> typed.Expr:
    """Return pointer + integer, integer + pointer, pointer - integer, or the difference of two
    pointers (K&R A7.7). Raises DError D_OP_INCOMPAT, D_OP_INCOMPLETE.

    Args:
        shown: the operator in error messages; "" means op.
    """
    a, b = left.type, right.type
    for type_ in (a, b):
        if isinstance(type_, PointerType):
            need_definition(shown or op, type_.to, span)
    if isinstance(a, PointerType) and is_integer(b) and not is_void_pointer(a):
        return offset_pointer(op, left, right, size_of(a.to, 0), span)
    if op == "+" and isinstance(b, PointerType) and is_integer(a) and not is_void_pointer(b):
        return offset_pointer(op, right, left, size_of(b.to, 0), span)
    sized = not is_void_pointer(a) and not is_void_pointer(b)
    if isinstance(a, PointerType) and isinstance(b, PointerType) and op == "-" and sized:
        if not same(a.to, b.to):
            raise incompatible(a, shown or op, b, span)
        distance = binary("-", cast(left, LONG), cast(right, LONG), LONG, span)
        size = constant(size_of(a.to, 0), LONG, span)
        return distance if size.value == 1 else binary("/", distance, size, LONG, span)
    raise incompatible(a, shown or op, b, span)


def wider_string(left: DType, right: DType) -> StringType:
    """Return a string type that can hold the values of both string types."""
    assert isinstance(left, StringType) and isinstance(right, StringType)
    return StringType(max(left.size, right.size) if left.size and right.size else 0)


def choose(condition: typed.Expr, left: typed.Expr, right: typed.Expr, span: Span) -> typed.Expr:
    """Return the expression condition ? left : right (K&R A7.16). Raises DError D_OP_INCOMPAT."""
    type_: DType | None
    left, right = of_field(left), of_field(right)
    if isinstance(left.type, IntType) and isinstance(right.type, IntType):
        type_ = left.type if same(left.type, right.type) else common(left.type, right.type)
    elif (
        is_string_like(left.type)
        and is_string_like(right.type)
        and (is_string(left.type) or is_string(right.type))
    ):
        left, right = to_string(left), to_string(right)
        type_ = wider_string(left.type, right.type)
    elif is_string(left.type) and is_zero(right):
        right, type_ = to_string(right), left.type
    elif is_string(right.type) and is_zero(left):
        left, type_ = to_string(left), right.type
    else:
        type_ = common_pointer(left, right)
    if type_ is None:
        message = "operator ?: operands must have compatible types"
        raise DError(message, span, "D_OP_INCOMPAT")
    if not is_string(type_):
        left, right = cast(left, type_), cast(right, type_)
    if isinstance(condition, typed.IntConst):
        return left if condition.value else right
    return typed.Conditional(type_, span, condition, left, right)


def step_of(node: tree.PrefixNode | tree.PostfixNode, type_: DType, strsize: int) -> int:
    """Return the number that ++ or -- adds: +1 or -1, for a pointer times the size of its target.

    Raises DError D_OP_SCALAR, D_OP_VFPTR, D_OP_INCOMPLETE.
    """
    if not is_scalar(type_):
        message = f"operator {node.op} requires operand of scalar type"
        raise DError(message, node.span, "D_OP_SCALAR")
    if is_void_pointer(type_):
        message = f"operator {node.op} requires an operand of known size"
        raise DError(message, node.span, "D_OP_VFPTR")
    by = 1
    if isinstance(type_, PointerType):
        need_definition(node.op, type_.to, node.span)
        by = size_of(type_.to, strsize)
    return by if node.op == "++" else -by
