"""Assignments to memory: *p = x, p->m = x, p[i] = x, v.m = x, and ++ and -- of the same.

Every DError has libdtrace's tag and, up to line breaks, its words.
"""

from __future__ import annotations

from dataclasses import replace

from kinst.core.dtypes import ArrayType, FunctionType, PointerType, StringType, StructType, is_char
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check import inlines, translators
from kinst.dlang.check.operators import converted, step_of
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.check.variables import compound, place_of
from kinst.dlang.syntax import tree
from kinst.dlang.typed_store import Before, Root, Shared, Store, root_of
from kinst.dlang.types import members
from kinst.dlang.types.convert import constant, is_zero

_ARRAYS = ("regs", "args", "uregs")  # whose elements are no memory


def is_memory(node: tree.Expr, scope: Scope) -> bool:
    """Whether an operand that is to be changed names memory, and not a variable as a whole."""
    if place_of(node, scope) is not None:
        return False
    if isinstance(node, tree.Prefix):
        return node.op == "*"
    if isinstance(node, tree.Index):
        base = node.base
        named = isinstance(base, tree.Name) and base.name in _ARRAYS
        return not named and not isinstance(base, tree.Aggregation) and not inlines.is_array(
            base, scope
        )  # fmt: skip
    return isinstance(node, tree.Member)


def _place(node: tree.Expr, op: str, scope: Scope, check: Check) -> typed.Load | typed.BitField:
    """What is stored to; an array of char is a string.  Raises DError D_OP_LVAL and those of
    expressions."""
    found = members.string_place(check(node, scope))
    if isinstance(found, typed.Load) and isinstance(found.type, ArrayType):
        whole = found.type
        if is_char(whole.of) and whole.count:
            return typed.Load(StringType(whole.count), found.span, found.address)
    fixed = isinstance(found.type, ArrayType | FunctionType)
    if fixed or not isinstance(found, typed.Load | typed.BitField):
        message = f"operator {op} requires modifiable lvalue as an operand"
        raise DError(message, node.span, "D_OP_LVAL")
    return found


def _store(
    node: tree.Expr,
    found: typed.Load | typed.BitField,
    value: typed.Expr,
    post: bool,
) -> typed.Expr:
    bit, bits = (found.bit, found.bits) if isinstance(found, typed.BitField) else (0, 0)
    root = root_of(found.address)
    variable = root.variable if isinstance(root, typed.GlobalRead | typed.KeyedRead) else None
    address = found.address
    if variable is None or not variable.is_dynamic:
        return Store(found.type, node.span, address, value, bit, bits, post, variable)
    if root is not None and isinstance(root.type, StringType):
        message = f"characters of {variable.name} cannot be assigned"
        raise DError(message, node.span, "D_UNKNOWN", "use a global or this-> variable")
    assert root is not None
    address = _from_root(address)
    return Store(found.type, node.span, address, value, bit, bits, post, variable, root)


def _from_root(address: typed.Expr) -> typed.Expr:
    """An address that is made of a structure variable, with Root in the variable's place."""
    if isinstance(address.type, StructType):
        return Root(PointerType(address.type), address.span)
    if isinstance(address, typed.Cast | Shared):
        return replace(address, operand=_from_root(address.operand))
    assert isinstance(address, typed.Binary)
    return replace(address, left=_from_root(address.left))


def assignment(node: tree.Assignment, scope: Scope, check: Check) -> typed.Expr:
    """place = value and place op= value; of the latter the place's address is computed once."""
    found = _place(node.left, node.op, scope, check)
    value = translators.as_structure(check(node.right, scope), scope, check)
    if node.op != "=":
        value = compound(node.op, Before(found.type, node.left.span), value, node.span)
    if isinstance(found.type, StringType) and is_zero(value):
        value = typed.StrConst(StringType(1), value.span, b"")
    return _store(node, found, converted(value, found.type, node.op, node.span), False)


def step(node: tree.Prefix | tree.Postfix, scope: Scope, check: Check, *, post: bool) -> typed.Expr:
    """++ and --.  Raises DError D_OP_SCALAR, D_OP_VFPTR."""
    found = _place(node.operand, node.op, scope, check)
    type_, span = found.type, node.span
    old = Before(type_, node.operand.span)
    number = constant(step_of(node, type_, scope), type_, span)
    return _store(node, found, typed.Binary(type_, span, "+", old, number), post)
