"""Lvalues in the kernel's memory (members, elements, bit-fields, symbols), their values
and their addresses.

Every DError has libdtrace's tag and, except for line breaks, its words. The value of a char array
is a string (dt_node_is_string()). The value of any other array is a pointer to its first element.

Tested by tests/dlang/check/test_declarations.py.
"""

from __future__ import annotations

from difflib import get_close_matches

from kinst.core.dtypes import (
    CHAR,
    UINT64,
    ArrayType,
    DType,
    FunctionType,
    Member,
    PointerType,
    StringType,
    StructType,
    VoidType,
    is_char,
)
from kinst.core.errors import DError, KinstError, Span
from kinst.dlang import typed
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.typed import Shared, root_of
from kinst.dlang.types.conversions import (
    cast,
    constant,
    is_declaration,
    is_integer,
    is_string,
    size_of,
)
from kinst.dlang.types.operators import move, need_definition
from kinst.dlang.vocabulary.other_tracers import member_hint
from kinst.dlang.vocabulary.type_names import typedef

PER_CPU_HINT = "every CPU has its own: there is no one address"


def is_char_array(type_: DType) -> bool:
    """Return whether a type is a char array, whose value is a string."""
    return isinstance(type_, ArrayType) and is_char(type_.of)


def value(lvalue: typed.Expr) -> typed.Expr:
    """Convert an lvalue to its value in an expression: a char array to a string, any other array
    and a function to a pointer.
    """
    if not isinstance(lvalue, typed.Load):
        return lvalue
    type_ = lvalue.type
    if isinstance(type_, ArrayType) and is_char(type_.of) and type_.count:
        return typed.Load(StringType(type_.count + 1), lvalue.span, lvalue.address, type_.count)
    if isinstance(type_, ArrayType | FunctionType):
        return decayed(lvalue)
    return lvalue


def decayed(lvalue: typed.Expr) -> typed.Expr:
    """Convert an array to a pointer to its first element, and a function to a pointer to the
    function (K&R A7.1); return any other expression unchanged.
    """
    if isinstance(lvalue, typed.Load):
        if isinstance(lvalue.type, ArrayType):
            return cast(_shared(lvalue.address), PointerType(lvalue.type.of))
        if isinstance(lvalue.type, FunctionType):
            return lvalue.address
    return lvalue


def _shared(address: typed.Expr) -> typed.Expr:
    """Wrap an address within a D variable in a Shared, so that the program may store the address
    and use it later; return any other address unchanged.

    D variables are in memory that both the traced kernel and kinst's process map, at different
    addresses. A Shared always has the kernel's address.
    """
    is_final = isinstance(address, Shared) or root_of(address) is None
    return address if is_final else Shared(address.type, address.span, address)


def char_array_of(expr: typed.Expr) -> typed.Expr:
    """Convert a string that value() made of a char array back to the char array; return any other
    expression unchanged.
    """
    if isinstance(expr, typed.Load) and isinstance(expr.type, StringType) and expr.most:
        pointer = expr.address.type
        assert isinstance(pointer, PointerType)
        return typed.Load(pointer.to, expr.span, expr.address)
    return expr


def moved(address: typed.Expr, offset: int, type_: DType) -> typed.Expr:
    """Return address + offset as a pointer to `type_`.

    Args:
        offset: the number of bytes to add.
    """
    pointer = PointerType(type_)
    base = address
    if isinstance(base, typed.Cast) and isinstance(base.operand, typed.Binary):
        inner = base.operand
        if inner.op == "+" and isinstance(inner.right, typed.IntConst) and inner.type == UINT64:
            offset, base = offset + inner.right.value, inner.left
    if not offset:
        return address if address.type == pointer else cast(address, pointer)
    number = constant(offset, UINT64, address.span)
    if isinstance(base, typed.IntConst):
        return constant(base.value + offset, pointer, address.span)
    total = typed.Binary(UINT64, address.span, "+", cast(base, UINT64), number)
    return typed.Cast(pointer, address.span, total)


def lvalue_of_member(node: tree.MemberNode, base: typed.Expr, scope: Scope) -> typed.Expr:
    """Return base.name or base->name as an lvalue. Raises DError D_OP_PTR, D_OP_SOU,
    D_OP_INCOMPLETE, D_TYPE_MEMBER.

    Args:
        node: the member expression.
        base: the typed tree of its base.
    """
    op, span = node.op, node.span
    type_ = base.type
    if op == "->":
        base = decayed(char_array_of(base))
        if not isinstance(base.type, PointerType):
            message = f"operator {op} must be applied to a pointer"
            hint = f"write .{node.name}" if isinstance(type_, StructType) else ""
            raise DError(message, span, "D_OP_PTR", hint)
        type_ = base.type.to
    struct = _complete(type_, op, span, scope)
    member = find(struct, node.name, span)
    address = base if op == "->" else _address(base, span)
    if member.bits:
        byte, bit = divmod(member.bit, 8)
        return typed.BitField(member.type, span, moved(address, byte, UINT64), bit, member.bits)
    return typed.Load(member.type, span, moved(address, member.bit // 8, member.type))


def _complete(type_: DType, op: str, span: Span, scope: Scope) -> StructType:
    if not isinstance(type_, StructType):
        if op == "->":
            message = (
                f'operator -> cannot be applied to pointer to type "{type_}"; must be applied to a'
                " struct or union pointer"
            )
        else:
            message = (
                f'operator {op} cannot be applied to type "{type_}"; must be applied to a struct'
                " or union"
            )
        hint = "write -> instead" if op == "." and isinstance(type_, PointerType) else ""
        raise DError(message, span, "D_OP_SOU", hint)
    struct = scope.types.lookup(type_)
    need_definition(op, struct, span)
    return struct


def find(struct: StructType, name: str, span: Span) -> Member:
    """Return a structure's member of this name.  Raises DError D_TYPE_MEMBER."""
    try:
        member = struct.member(name)
    except KinstError as error:
        raise DError(error.message, span, "D_UNKNOWN", error.hint) from error
    if member is None:
        near = get_close_matches(name[:80], [m.name for m in struct.members if m.name], 1)
        spelt = f"did you mean {near[0]}?" if near else ""
        hint = member_hint(name) or spelt
        message = f"{name[:80]} is not a member of {struct}"
        raise DError(message, span, "D_TYPE_MEMBER", hint)
    return member


def _address(lvalue: typed.Expr, span: Span) -> typed.Expr:
    """Return the address of a structure. Raises DError D_UNKNOWN if the structure has no
    address.
    """
    if isinstance(lvalue, typed.Load):
        return lvalue.address
    pointer = PointerType(lvalue.type)
    if isinstance(lvalue, typed.Conditional):
        sides = _address(lvalue.then, span), _address(lvalue.otherwise, span)
        return typed.Conditional(pointer, lvalue.span, lvalue.condition, *sides)
    if isinstance(lvalue, typed.Comma):
        return typed.Comma(pointer, lvalue.span, lvalue.left, _address(lvalue.right, span))
    if isinstance(lvalue, typed.GlobalRead | typed.KeyedRead):
        return typed.Cast(pointer, lvalue.span, lvalue)  # a structure's value is its address
    message = f"members of a value of type {lvalue.type} cannot be read"
    raise DError(message, span, "D_UNKNOWN", "use a pointer to it")


def address_of(lvalue: typed.Expr, span: Span) -> typed.Expr:
    """Return the expression &lvalue.  Raises DError D_ADDROF_LVAL, D_ADDROF_BITFIELD."""
    lvalue = char_array_of(lvalue)
    if isinstance(lvalue, typed.BitField):
        raise DError("cannot take address of bit-field", span, "D_ADDROF_BITFIELD")
    if isinstance(lvalue, typed.Load) and not isinstance(lvalue.type, StringType):
        return cast(_shared(lvalue.address), PointerType(lvalue.type))
    raise DError("unacceptable operand for unary & operator", span, "D_ADDROF_LVAL")


def offset_of(node: tree.OffsetOfNode, scope: Scope) -> typed.Expr:
    """Check offsetof(type, member); return the offset in bytes. Raises DError D_OFFSETOF_TYPE,
    D_OFFSETOF_BITFIELD, and D_UNKNOWN for an unknown member.
    """
    type_ = scope.resolve(node.type)
    offset = 0
    for name in node.member.split("."):
        whole = isinstance(type_, StructType) and scope.types.lookup(type_)
        if not isinstance(whole, StructType) or is_declaration(whole):
            message = "offsetof operand must be a struct or union type"
            raise DError(message, node.span, "D_OFFSETOF_TYPE")
        try:
            member = find(whole, name, node.span)
        except DError as error:
            message = f"failed to determine offset of {name[:80]}: {error.message}"
            raise DError(message, node.span, "D_UNKNOWN", error.hint) from error
        if member.bits:
            message = f"cannot take offset of a bit-field: {name}"
            raise DError(message, node.span, "D_OFFSETOF_BITFIELD")
        offset, type_ = offset + member.offset, member.type
    return constant(offset, typedef("size_t"), node.span)


def symbol(name: str, span: Span, scope: Scope) -> typed.Expr:
    """Return a symbol of the kernel, written `name or module`name, as an lvalue. Raises DError
    D_IDENT_UNDEF, D_SYM_BADREF, D_SYM_NOTYPES.
    """
    try:
        kernel_symbol = scope.types.symbol(name)
        constant_ = scope.types.enumerator(name) if kernel_symbol is None else None
    except KinstError as error:
        message = f"failed to resolve {name[:80]}: {error.message}"
        raise DError(message, span, "D_IDENT_UNDEF", error.hint) from error
    if constant_ is not None:
        return constant(constant_[1], constant_[0], span)
    if kernel_symbol is None:
        message = f"failed to resolve {name[:80]}: Unknown symbol name"
        raise DError(message, span, "D_IDENT_UNDEF")
    shown = f"{kernel_symbol.module}`{kernel_symbol.name}"
    if kernel_symbol.per_cpu:
        message = f"{shown} is a per-CPU variable"
        raise DError(message, span, "D_SYM_BADREF", PER_CPU_HINT)
    if kernel_symbol.type is None:
        message = f"no symbolic type information is available for {shown}"
        raise DError(message, span, "D_SYM_NOTYPES")
    address = typed.SymbolAddress(
        PointerType(kernel_symbol.type), span, kernel_symbol.module, kernel_symbol.name
    )
    return typed.Load(kernel_symbol.type, span, address)


def current_thread(scope: Scope) -> DType:
    """Return the type of curthread: a pointer to the system's thread structure, or a void pointer
    if the kernel's types do not have this structure.
    """
    tag = scope.environment.dialect().thread
    if scope.types.source is None or not tag:
        return PointerType(VoidType())
    try:
        struct = scope.types.source.tagged("struct", tag)
    except KinstError:
        struct = None
    return PointerType(struct if struct is not None else VoidType())


def size_of_operand(lvalue: typed.Expr, scope: Scope, span: Span) -> int:
    """Return the size in bytes of sizeof's operand. Raises DError D_SIZEOF_BITFIELD."""
    lvalue = char_array_of(lvalue)
    if isinstance(lvalue, typed.BitField):
        raise DError("cannot apply sizeof to a bit-field", span, "D_SIZEOF_BITFIELD")
    if is_string(lvalue.type) and not isinstance(lvalue, typed.StrConst):
        return scope.environment.strsize  # also if kinst knows that the string is shorter
    return size_of(lvalue.type, scope.environment.strsize)


def as_pointer(expr: typed.Expr) -> typed.Expr:
    """Convert an array or a string to a pointer, which can be indexed and dereferenced; return any
    other value unchanged.
    """
    converted = decayed(char_array_of(expr))
    if not is_string(converted.type):
        return converted
    if isinstance(converted, typed.Load):  # a string in memory: no copy is needed
        return cast(converted.address, PointerType(CHAR))
    return typed.Cast(PointerType(CHAR), expr.span, converted)


def arithmetic(op: str, left: typed.Expr, right: typed.Expr, span: Span) -> typed.Expr | None:
    """Return string + n, n + string or string - n as the string that begins n bytes later or
    earlier; None for any other operands.
    """
    a, b = is_string(left.type), is_string(right.type)
    if a and is_integer(right.type) and op in ("+", "-"):
        return typed.Load(StringType(), span, move(op, as_pointer(left), right, span))
    if b and is_integer(left.type) and op == "+":
        return typed.Load(StringType(), span, move(op, left, as_pointer(right), span))
    return None
