"""Declarations of variables: type name; with self or this before it, with [ ] behind it (Dynamic
Tracing Guide, "Variables"; errors as in libdtrace's dt_decl.c and dt_parser.c)."""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.dtypes import ArrayType, DType, StructType, VoidType
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.check.scope import Scope
from kinst.dlang.check.variables import no_clause_local_array
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import is_scalar, is_string, same
from kinst.dlang.vocabulary import builtins

MOST_ELEMENTS = 1 << 20


def declare_type(node: tree.TypeDeclaration, scope: Scope) -> None:
    """A structure, an enumeration or a typedef.  Raises DError D_DECL_IDRED for a name that is a
    variable's, and what Types.declare() raises."""
    if node.name and _is_global(node.name, scope):
        message = f"global variable identifier redeclared: {node.name}"
        raise DError(message, node.span, "D_DECL_IDRED")
    body = node.type.body
    for one in body.enumerators if isinstance(body, tree.EnumBody) else ():
        if builtins.kind_of(one.name) is not None or _is_global(one.name, scope):
            raise DError(f"identifier redeclared: {one.name}", one.span, "D_DECL_IDRED")
    scope.types.declare(node)


def _is_global(name: str, scope: Scope) -> bool:
    return name in scope.variables or name in scope.inlines


def declare(
    node: tree.Declaration, scope: Scope, check: Callable[[tree.Expr, Scope], typed.Expr]
) -> None:
    """Raises DError D_DECL_IDRED, D_DECL_VOIDOBJ, D_DECL_INCOMPLETE, D_DECL_LOCASSC,
    D_DECL_ARRSUB, D_DECL_ARRBIG, D_DECL_PROTO_TYPE and those of type names."""
    type_ = scope.resolve(node.type)
    if node.scope == "extern":
        _declare_only(node.name, type_, node.span, scope)
        return
    name = f"{node.scope}->{node.name}" if node.scope else node.name
    taken = builtins.kind_of(name) is not None or name in scope.environment.registers
    if scope.types.is_typedef(name):
        raise DError(f"typedef identifier redeclared: {name}", node.span, "D_DECL_IDRED")
    if taken or name in scope.inlines:
        kind = "built-in identifier" if taken else "identifier"
        raise DError(f"{kind} redeclared: {name}", node.span, "D_DECL_IDRED")
    if isinstance(type_, VoidType):
        raise DError(f"cannot have void object: {name}", node.span, "D_DECL_VOIDOBJ")
    if isinstance(type_, StructType):
        whole = scope.types.lookup(type_)
        if not whole.size and not whole.members:
            message = f"incomplete struct/union/enum {type_}: {name}"
            raise DError(message, node.span, "D_DECL_INCOMPLETE", "a pointer to it may be declared")
    keys = _keys(node, name, scope)
    length = _length(node, scope, check)
    if isinstance(type_, ArrayType):
        type_, length = _array(node, type_, length, name)
    old = scope.variables.get(name)
    if old is None:
        scope.create(name, type_, node.scope or "global", keys, length)
        if keys:
            scope.keys[name] = keys
        return
    new = typed.Variable(name, type_, old.index, old.scope, keys, length)
    alike = len(old.keys) == len(keys) and all(map(same, old.keys, keys))
    if not alike or old.length != length or not same(old.type, type_):
        message = f"identifier redeclared: {name}: current: {_shown(new)}, previous: {_shown(old)}"
        raise DError(message, node.span, "D_DECL_IDRED")


def _array(node: tree.Declaration, type_: ArrayType, length: int, name: str) -> tuple[DType, int]:
    """(type of an element, their number) where the type is an array itself: of a typedef, or of
    arrays."""
    if node.keys is None and not length and type_.count:
        type_of, length = type_.of, type_.count
        if not isinstance(type_of, ArrayType):
            return type_of, length
        type_ = type_of
    if node.keys is not None or node.scope == "self" or not length or not type_.count:
        message = f"{name} may not be of type {type_}"
        hint = "arrays of arrays are global or this->; a key for each dimension is as good"
        raise DError(message, node.span, "D_UNKNOWN", hint)
    return type_, length


def _declare_only(name: str, type_: DType, span: Span, scope: Scope) -> None:
    """What is extern must have one type; it makes no variable, and is no kernel's symbol either:
    those are named with a `."""
    before = scope.externs.setdefault(name, type_)
    if not same(before, type_):
        message = f"identifier redeclared: D`{name}: current: {type_}, previous: {before}"
        raise DError(message, span, "D_DECL_IDRED")


def _shown(variable: typed.Variable) -> str:
    if variable.keys:
        return f"associative array {variable.type}[{', '.join(map(str, variable.keys))}]"
    if variable.length:
        return f"scalar {variable.type}[{variable.length}]"
    return f"scalar {variable.type}"


def _keys(node: tree.Declaration, name: str, scope: Scope) -> tuple[DType, ...]:
    if node.keys is None:
        return ()
    if node.scope == "this":
        raise no_clause_local_array(name, node.span, "D_DECL_LOCASSC")
    keys = []
    for number, key in enumerate(node.keys, 1):
        type_ = scope.resolve(key)
        if not is_scalar(type_) and not is_string(type_):
            message = f"associative array parameter may not be of type {type_}: #{number}"
            raise DError(message, key.span, "D_DECL_PROTO_TYPE")
        keys.append(type_)
    return tuple(keys)


def _length(
    node: tree.Declaration, scope: Scope, check: Callable[[tree.Expr, Scope], typed.Expr]
) -> int:
    """Elements of a scalar array; 0 when it is none."""
    if node.length is None:
        return 0
    length = check(node.length, scope)
    if not isinstance(length, typed.IntConst) or length.value <= 0:
        message = (
            "positive integral constant expression or tuple signature expected as array"
            " declaration subscript"
        )
        raise DError(message, length.span, "D_DECL_ARRSUB")
    if length.value > MOST_ELEMENTS:
        raise DError("array dimension is too big", length.span, "D_DECL_ARRBIG")
    return length.value
