"""Names of values of enumerations: the program's own, and the traced kernel's."""

from __future__ import annotations

from kinst.core.dtypes import EnumType
from kinst.core.errors import DError, KinstError
from kinst.core.types import AmbiguousNameError
from kinst.dlang import typed
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import constant
from kinst.dlang.vocabulary import builtins


def named(node: tree.Name, scope: Scope) -> typed.Expr | None:
    """The enumeration constant of this name, of the program or the kernel.

    Raises DError D_IDENT_AMBIG."""
    try:
        found = scope.types.enumerator(node.name)
    except AmbiguousNameError as error:
        raise DError(error.message, node.span, "D_IDENT_AMBIG", error.hint) from error
    except KinstError:
        return None
    return None if found is None else constant(found[1], found[0], node.span)


def tag(type_: EnumType, node: tree.Expr, op: str, scope: Scope) -> typed.Expr | None:
    """node, the right side of a comparison (op) with an enumeration, where it is the name of one
    of that enumeration's values: those of others may be called the same (libdtrace's
    dt_cook_op2()).  Raises DError D_IDENT_AMBIG."""
    if not isinstance(node, tree.Name):
        return None
    value = dict(type_.values).get(node.name)
    if value is None:
        return None
    kind = _kind(node.name, scope)
    if kind:
        message = (
            f"ambiguous use of operator {op}: {node.name} is both a {type_} enum tag and a global"
            f" {kind}"
        )
        raise DError(message, node.span, "D_IDENT_AMBIG")
    return constant(value, type_, node.span)


def _kind(name: str, scope: Scope) -> str:
    """What else a name means, "" for nothing."""
    variable = scope.variables.get(name)
    if variable is not None:
        return "associative array" if variable.keys or variable.length else "scalar"
    if name in scope.inlines or name in scope.bound or name in scope.environment.registers:
        return "scalar"
    return builtins.kind_of(name) or ""
