"""Casts (Dynamic Tracing Guide, "Types, Operators, and Expressions"; C99 6.5.4)."""

from __future__ import annotations

from dataclasses import replace

from kinst.core.dtypes import PointerType, StructType, VoidType
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.check.translation import Translation
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast, is_scalar, is_string, same, to_string


def cast_to(node: tree.CastTo, scope: Scope, check: Check) -> typed.Expr:
    """(type)operand.  Raises DError D_CAST_INVAL, and what resolving the type raises."""
    type_ = scope.resolve(node.type)
    operand = check(node.operand, scope)
    source = operand.type
    if isinstance(type_, VoidType):
        return typed.Cast(type_, node.span, operand)
    if isinstance(operand, Translation):
        message = f'invalid cast expression: a translation to "{source}" to "{type_}"'
        raise DError(message, node.span, "D_CAST_INVAL", "its members are values")
    if isinstance(type_, StructType) and same(source, type_):
        return operand
    if is_string(type_) and (is_scalar(source) or is_string(source)):
        return replace(to_string(operand), span=node.span)
    if is_scalar(type_) and is_scalar(source):
        return replace(cast(operand, type_), span=node.span)
    message = f'invalid cast expression: "{source}" to "{type_}"'
    raise DError(message, node.span, "D_CAST_INVAL")


def made(node: tree.Typed, operand: typed.Expr) -> typed.Expr:
    """What kinst itself has made for a local variable, as a value of its type."""
    return cast(operand, PointerType(node.type) if node.pointer else node.type)
