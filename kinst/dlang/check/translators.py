"""Translators: a structure's members, each as an expression over a value of another type (Dynamic
Tracing Guide, "Translators"; errors as in libdtrace's dt_parser.c).

They are expanded when the program is compiled, as inlines are: a member of a translation is the
translator's expression for it with the parameter bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from kinst.core.dtypes import (
    ArrayType,
    DType,
    Member,
    PointerType,
    StringType,
    StructType,
    VoidType,
    is_char,
)
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.check import inlines
from kinst.dlang.check.calls import Action, refused
from kinst.dlang.check.height import children
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.check.translation import Translation, Translator
from kinst.dlang.syntax import tree
from kinst.dlang.typed_store import Root, Snapshot, Store
from kinst.dlang.types import members
from kinst.dlang.types.convert import (
    is_scalar,
    is_string,
    is_string_like,
    is_void_pointer,
    same,
    to_string,
)


def define(node: tree.Translator, scope: Scope, check: Check, *, lazily: bool = False) -> None:
    """Note a translator.  Its expressions are checked here, too, where it stands; lazily: only
    where a member is used (kinst's own translators, for kernels that differ).

    Raises DError D_XLATE_SOU, D_XLATE_REDECL, D_XLATE_MEMB, D_XLATE_INCOMPAT and all those of
    expressions.
    """
    made, source = scope.resolve(node.type), scope.resolve(node.source)
    if isinstance(made, StructType):
        made = scope.types.lookup(made)
        if not made.size and not made.members:
            message = f"incomplete struct/union/enum {made}"
            raise DError(message, node.span, "D_XLATE_SOU")
    else:
        message = "translator output type must be a struct or union"
        raise DError(message, node.span, "D_XLATE_SOU")
    if isinstance(source, VoidType):
        message = f"cannot have void object: {node.parameter}"
        raise DError(message, node.span, "D_DECL_VOIDOBJ")
    if any(same(t.source, source) and same(t.made, made) for t in scope.translators):
        message = f"translator from {source} to {made} has already been declared"
        raise DError(message, node.span, "D_XLATE_REDECL")
    translator = Translator(node, source, made, lazily)
    if not lazily:
        sample = _sample(node, source)
        for one in node.members:
            _value(translator, one, sample, one.span, scope, check)
    scope.translators.append(translator)


def _sample(node: tree.Translator, type_: DType) -> typed.Expr:
    """Something of the parameter's type; a structure is a place in memory."""
    if isinstance(type_, StructType):
        pointer = PointerType(type_)
        variable = typed.Variable(node.parameter, pointer, -1)
        return typed.Load(type_, node.span, typed.GlobalRead(pointer, node.span, variable))
    return typed.GlobalRead(type_, node.span, typed.Variable(node.parameter, type_, -1))


def xlate(node: tree.Xlate, scope: Scope, check: Check) -> typed.Expr:
    """xlate < type > (expression), to a structure or to a pointer to one.

    Raises DError D_XLATE_NONE and those of the expression."""
    wanted, operand = scope.resolve(node.type), check(node.operand, scope)
    made = wanted.to if isinstance(wanted, PointerType) else wanted
    of_type = [t for t in scope.translators if same(t.made, made)]
    exact = [t for t in of_type if same(t.source, operand.type)]
    for translator in (*exact, *of_type):
        source = _given(operand, translator.source)
        if source is not None:
            return Translation(wanted, node.span, translator, source)
    message = f'cannot translate from "{operand.type}" to "{wanted}"'
    known = ", ".join(dict.fromkeys(str(t.source) for t in of_type))
    hint = f"there are translators from {known}" if known else ""
    raise DError(message, node.span, "D_XLATE_NONE", hint)


def _given(operand: typed.Expr, type_: DType) -> typed.Expr | None:
    """The operand as a translator's parameter, or None where it is none."""
    if isinstance(type_, StructType):
        return operand if same(operand.type, type_) else None
    pointers = isinstance(operand.type, PointerType) and isinstance(type_, PointerType)
    any_pointer = is_void_pointer(operand.type) or is_void_pointer(type_)
    if pointers and not any_pointer and not same(operand.type, type_):
        return None
    return inlines.argument(operand, type_)


def member(
    node: tree.Member, base: Translation, scope: Scope, check: Check
) -> typed.Expr:  # fmt: skip
    """A member of a translation.  Raises DError D_XLATE_NOCONV, D_OP_PTR, D_OP_SOU and those of
    its expression."""
    translator = base.translator
    given = [one for one in translator.node.members if one.name == node.name]
    if not given:
        message = f"translator does not define conversion for member: {node.name}"
        raise DError(message, node.span, "D_XLATE_NOCONV")
    pointer = isinstance(base.type, PointerType)
    if pointer != (node.op == "->"):
        message = f"operator {node.op} must be applied to a {'struct' if pointer else 'pointer'}"
        hint = f"write {'->' if pointer else '.'}{node.name}"
        raise DError(message, node.span, "D_OP_SOU" if pointer else "D_OP_PTR", hint)
    return _value(translator, given[0], base.source, node.span, scope, check)


def _value(
    translator: Translator,
    one: tree.MemberValue,
    source: typed.Expr,
    span: Span,
    scope: Scope,
    check: Check,
) -> typed.Expr:
    """The expression of one member, as a value of the member's type."""
    wanted = translator.made.member(one.name)
    if wanted is None:
        message = f"translator member {one.name} is not a member of {translator.made}"
        raise DError(message, one.span, "D_XLATE_MEMB")
    inlines.count(span, scope)
    outer, scope.bound = scope.bound, {translator.node.parameter: source}
    try:
        found = check(one.value, scope)
    except DError as error:
        if not translator.lazily:
            raise
        raise DError(error.message, span, error.tag, error.hint) from error
    finally:
        scope.bound = outer
    made = _as_member(found, wanted.type)
    if made is None:
        message = (
            f'translator member {one.name} definition uses incompatible types: "{wanted.type}" ='
            f' "{found.type}"'
        )
        raise DError(message, one.span, "D_XLATE_INCOMPAT")
    return made


def _as_member(value: typed.Expr, type_: DType) -> typed.Expr | None:
    """value as a member of type_, or None where it cannot be one."""
    if isinstance(type_, ArrayType) and is_char(type_.of):
        return to_string(value) if is_string_like(value.type) else None
    if isinstance(type_, ArrayType):
        alike = isinstance(value.type, PointerType) and same(value.type.to, type_.of)
        return value if alike else None
    if isinstance(type_, StructType):
        return value if same(value.type, type_) else None
    return inlines.argument(value, type_)


def as_structure(value: typed.Expr, scope: Scope, check: Check) -> typed.Expr:
    """What a translation to a structure is worth where it is assigned or printed: a structure
    with every member that the translator defines (in libdtrace dt_cg_asgn_op()); any other value
    as it is.  Of kinst's own translators what this kernel does not have is left 0."""
    if not isinstance(value, Translation) or not isinstance(value.type, StructType):
        return value
    translator, source, span = value.translator, value.source, value.span
    first: typed.Expr | None = None
    if not isinstance(source, typed.IntConst) and is_scalar(source.type):
        name = f"this->%xlate_{len(scope.variables)}"
        variable = scope.create(name, source.type, "this")
        first = typed.Assign(source.type, span, variable, source)
        source = typed.GlobalRead(source.type, span, variable)
    stores = []
    for one in translator.node.members:
        wanted = translator.made.member(one.name)
        try:
            found = _value(translator, one, source, span, scope, check)
        except DError:
            if not translator.lazily:
                raise
            continue
        assert wanted is not None
        stores.append(_store(wanted, found, translator.made))
    return Snapshot(translator.made, span, first, tuple(stores))


def as_pointer(value: typed.Expr, scope: Scope, check: Check) -> typed.Expr:
    """The address of as_structure() where a translation is one to a pointer."""
    if not isinstance(value, Translation) or not isinstance(value.type, PointerType):
        return value
    whole = replace(value, type=value.translator.made)
    return typed.Cast(value.type, value.span, as_structure(whole, scope, check))


def _store(wanted: Member, value: typed.Expr, made: StructType) -> Store:
    """A member of a structure that is being made."""
    type_, span, bit = wanted.type, value.span, 0
    if isinstance(type_, ArrayType) and is_string(value.type):
        type_ = StringType(type_.count)
    elif isinstance(type_, ArrayType):
        value = typed.Load(type_, span, value)
    offset = wanted.bit // 8
    if wanted.bits:
        bit = wanted.bit % 8
    address = members.moved(Root(PointerType(made), span), offset, type_)
    return Store(type_, span, address, value, bit, wanted.bits)


def refuse_whole(clause: typed.Clause) -> None:
    """Raise DError D_OP_DYN where a translation itself is used as a value (D_CG_DYN where it is a
    statement), and D_CG_EXPR where an action is."""
    for action in clause.actions:
        if isinstance(action, typed.Evaluate) and isinstance(action.expr, Translation):
            message = "expression cannot evaluate to result of dynamic type"
            raise DError(message, action.expr.span, "D_CG_DYN")
    waiting = list(children(clause))
    while waiting:
        node = waiting.pop()
        if isinstance(node, Translation):
            _refuse(node)
        if isinstance(node, Action):
            raise refused(node)
        waiting += children(node)


def _refuse(node: Translation) -> NoReturn:
    op = "->" if isinstance(node.type, PointerType) else "."
    raise DError(
        f"a translation to {node.type} may not be used as a value: it is of dynamic type",
        node.span, "D_OP_DYN", f"its members may: (...){op}member",
    )  # fmt: skip
