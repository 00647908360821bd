"""Inlines and translators: names for expressions, which the checker expands (Dynamic Tracing Guide,
"Inline Directives", "Translators"; errors as in libdtrace's dt_parser.c).

The checker replaces an inline by its expression, with the parameters bound to the arguments. It
replaces a member of a translation by the translator's expression for the member, with the
translator's parameter bound to the translated value.

Tested by tests/dlang/check/test_translators.py.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
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
from kinst.core.units import counted
from kinst.dlang import typed
from kinst.dlang.check import members
from kinst.dlang.check.calls import ActionCall, action_as_value
from kinst.dlang.check.scope import Check, Scope, Translation, Translator
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.declaration_parser import refusal
from kinst.dlang.typed import BaseAddress, Store, TranslatedStruct
from kinst.dlang.types.conversions import (
    cast,
    is_declaration,
    is_scalar,
    is_string,
    is_string_like,
    is_void_pointer,
    is_zero,
    same,
    to_string,
)
from kinst.dlang.vocabulary.other_tracers import member_hint
from kinst.dlang.walk import children

# Limit for a whole program: the number of expansions multiplies if inlines use inlines.
MOST_EXPANSIONS = 10_000


def define_inline(node: tree.InlineNode, scope: Scope, check: Check) -> None:
    """Check and add a declaration of an inline. Its expression is checked here and again at each
    use.

    Raises DError D_DECL_IDRED, D_DECL_VOIDOBJ, D_OP_INCOMPAT and all errors of expressions.
    """
    name = node.name
    if scope.kind_of(name) is not None or name in scope.environment.registers:
        raise DError(f"built-in identifier redeclared: {name}", node.span, "D_DECL_IDRED")
    if name in scope.variables or name in scope.inlines:
        kind = "scalar" if name in scope.variables else "inline"
        message = f"identifier redefined: {name}: current: inline, previous: {kind}"
        raise DError(message, node.span, "D_DECL_IDRED")
    if isinstance(scope.resolve(node.type), VoidType):
        raise DError(f"cannot have void object: {name}", node.span, "D_DECL_VOIDOBJ")
    sample: dict[str, typed.Expr] = {}
    for parameter in node.parameters or ():
        type_ = scope.resolve(parameter.type)
        if isinstance(type_, VoidType):
            message = f"inline parameter may not be of type void: {parameter.name}"
            raise DError(message, parameter.span, "D_DECL_PROTO_TYPE")
        variable = typed.Variable(parameter.name, type_, -1)
        sample[parameter.name] = typed.GlobalRead(type_, parameter.span, variable)
    _expand_inline(node, sample, node.span, scope, check)
    scope.inlines[name] = node


def is_inline_array(node: tree.ExprNode, scope: Scope) -> bool:
    """Return whether an expression is the name of an inline with parameters."""
    inline = scope.inlines.get(node.name) if isinstance(node, tree.NameNode) else None
    return inline is not None and inline.parameters is not None


def inline_value(
    node: tree.ExprNode, use: tree.IndexNode | None, scope: Scope, check: Check
) -> typed.Expr:
    """Return the expression that replaces a name: for an inline, its expanded expression; for a
    parameter, the argument for it in the current expansion.

    Args:
        node: the name of the inline or parameter.
        use: the whole expression name[arguments] for an inline with parameters, else None.

    Raises:
        DError: D_IDENT_BADREF, D_PROTO_LEN, D_PROTO_ARG.
    """
    assert isinstance(node, tree.NameNode)
    if use is None and node.name in scope.bound:
        return scope.bound[node.name]
    inline = scope.inlines[node.name]
    if use is None:
        if inline.parameters is not None:
            message = f"associative array '{node.name}' may not be referenced as scalar"
            raise DError(message, node.span, "D_IDENT_BADREF")
        found = _expand_inline(inline, {}, node.span, scope, check)
        return replace(found, span=node.span) if isinstance(found, Translation) else found
    parameters = inline.parameters or ()
    arguments = use.arguments
    if len(arguments) != len(parameters):
        message = (
            f"{node.name}[ ] prototype mismatch: {counted(len(arguments), 'arg')} passed, "
            f"{len(parameters)} expected"
        )
        raise DError(message, use.span, "D_PROTO_LEN")
    bound = {}
    for number, (parameter, argument_node) in enumerate(zip(parameters, arguments, strict=True), 1):
        wanted, got = scope.resolve(parameter.type), check(argument_node, scope)
        argument = as_argument(got, wanted)
        if argument is None:
            message = (
                f"{node.name}[ ] argument #{number} is incompatible with prototype: "
                f"prototype: {wanted}, argument: {got.type}"
            )
            raise DError(message, argument_node.span, "D_PROTO_ARG")
        bound[parameter.name] = argument
    return _expand_inline(inline, bound, use.span, scope, check)


def as_argument(expr: typed.Expr, type_: DType) -> typed.Expr | None:
    """Convert an expression to a parameter's type; return None if its type is incompatible."""
    if isinstance(expr, Translation):
        return expr if same(expr.type, type_) else None
    if is_string(type_):
        return to_string(expr) if is_string_like(expr.type) else None
    if not is_scalar(type_):
        return expr if expr.type == type_ else None
    if not is_scalar(expr.type):
        return None
    mixed = type(expr.type) is not type(type_)
    return None if mixed and not is_zero(expr) else cast(expr, type_)


def count_expansion(span: Span, scope: Scope) -> None:
    """Count one expansion of an inline or translator. Raises DError D_UNKNOWN if the program has
    too many.
    """
    scope.expansions += 1
    if scope.expansions > MOST_EXPANSIONS:
        message = (
            f"the program uses inlines more than {MOST_EXPANSIONS} times, inlines within inlines"
            " included"
        )
        raise DError(message, span, "D_UNKNOWN")


def _expand_inline(
    inline: tree.InlineNode, bound: dict[str, typed.Expr], span: Span, scope: Scope, check: Check
) -> typed.Expr:
    """Check an inline's expression with the parameters bound; return it converted to the inline's
    type.

    Args:
        bound: argument of each parameter of this inline, by name. No other parameters can be used
            in the expression.
        span: where the inline is used.
    """
    count_expansion(span, scope)
    outer, scope.bound = scope.bound, bound
    try:
        value = check(inline.value, scope)
    finally:
        scope.bound = outer
    wanted = scope.resolve(inline.type)
    converted_value = as_argument(value, wanted)
    if converted_value is None:
        message = (
            f'inline {inline.name} definition uses incompatible types: "{wanted}" = "{value.type}"'
        )
        raise DError(message, inline.value.span, "D_OP_INCOMPAT")
    return converted_value


def define_translator(
    node: tree.TranslatorNode, scope: Scope, check: Check, *, lazily: bool = False
) -> None:
    """Check and add a declaration of a translator. Its expressions are checked at each use and,
    unless `lazily` is set, here as well.

    Raises DError D_XLATE_SOU, D_XLATE_REDECL, D_XLATE_MEMB, D_XLATE_INCOMPAT and all errors of
    expressions.

    Args:
        lazily: check the expressions only when they are used. Translators of kinst's D libraries
            need this: some of their expressions do not fit every kernel.
    """
    target, source = scope.resolve(node.type), scope.resolve(node.source)
    if isinstance(target, StructType):
        target = scope.types.lookup(target)
        if is_declaration(target):
            message = f"incomplete struct/union/enum {target}"
            raise DError(message, node.span, "D_XLATE_SOU")
    else:
        message = "translator output type must be a struct or union"
        raise DError(message, node.span, "D_XLATE_SOU")
    if isinstance(source, VoidType):
        message = f"cannot have void object: {node.parameter}"
        raise DError(message, node.span, "D_DECL_VOIDOBJ")
    if any(same(t.source, source) and same(t.target, target) for t in scope.translators):
        message = f"translator from {source} to {target} has already been declared"
        raise DError(message, node.span, "D_XLATE_REDECL")
    translator = Translator(node, source, target, lazily)
    if not lazily:
        sample = _sample_of(node, source)
        for member in node.members:
            _member_value(translator, member, sample, member.span, scope, check)
    scope.translators.append(translator)


def _sample_of(node: tree.TranslatorNode, type_: DType) -> typed.Expr:
    """Return a placeholder of type `type_` for a translator's parameter, with which the
    translator's expressions can be checked before any use of the translator. For a structure, the
    placeholder is an lvalue in memory.
    """
    if isinstance(type_, StructType):
        pointer = PointerType(type_)
        variable = typed.Variable(node.parameter, pointer, -1)
        return typed.Load(type_, node.span, typed.GlobalRead(pointer, node.span, variable))
    return typed.GlobalRead(type_, node.span, typed.Variable(node.parameter, type_, -1))


def xlate(node: tree.XlateNode, scope: Scope, check: Check) -> typed.Expr:
    """Check xlate < type > (expression), where the type is a structure or a pointer to a structure;
    return the translation.

    Raises DError D_XLATE_NONE and the errors of the expression.
    """
    wanted, operand = scope.resolve(node.type), check(node.operand, scope)
    struct = wanted.to if isinstance(wanted, PointerType) else wanted
    of_type = [t for t in scope.translators if same(t.target, struct)]
    exact = [t for t in of_type if same(t.source, operand.type)]
    for translator in (*exact, *of_type):
        source = _as_source(operand, translator.source)
        if source is not None:
            return Translation(wanted, node.span, translator, source)
    message = f'cannot translate from "{operand.type}" to "{wanted}"'
    sources = ", ".join(dict.fromkeys(str(t.source) for t in of_type))
    hint = f"there are translators from {sources}" if sources else ""
    raise DError(message, node.span, "D_XLATE_NONE", hint)


def _as_source(operand: typed.Expr, type_: DType) -> typed.Expr | None:
    """Convert an operand to the type of a translator's parameter; return None if it is
    incompatible.
    """
    if isinstance(type_, StructType):
        return operand if same(operand.type, type_) else None
    pointers = isinstance(operand.type, PointerType) and isinstance(type_, PointerType)
    any_pointer = is_void_pointer(operand.type) or is_void_pointer(type_)
    if pointers and not any_pointer and not same(operand.type, type_):
        return None
    return as_argument(operand, type_)


def translated_member(
    node: tree.MemberNode, base: Translation, scope: Scope, check: Check
) -> typed.Expr:  # fmt: skip
    """Return the expression of a translation's member; an array is not converted to a pointer.
    Raises DError D_XLATE_NOCONV, D_OP_PTR, D_OP_SOU and the errors of the member's expression.

    Args:
        node: the expression that reads the member.
        base: the translation.
    """
    translator = base.translator
    definitions = [one for one in translator.node.members if one.name == node.name]
    if not definitions:
        message = f"translator does not define conversion for member: {node.name}"
        near = get_close_matches(node.name, [one.name for one in translator.node.members], 1)
        hint = f"did you mean {near[0]}?" if near else member_hint(node.name)
        raise DError(message, node.span, "D_XLATE_NOCONV", hint)
    pointer = isinstance(base.type, PointerType)
    if pointer != (node.op == "->"):
        message = f"operator {node.op} must be applied to a {'struct' if pointer else 'pointer'}"
        hint = f"write {'->' if pointer else '.'}{node.name}"
        raise DError(message, node.span, "D_OP_SOU" if pointer else "D_OP_PTR", hint)
    return _member_value(translator, definitions[0], base.source, node.span, scope, check)


def _member_value(
    translator: Translator,
    definition: tree.MemberValueNode,
    source: typed.Expr,
    span: Span,
    scope: Scope,
    check: Check,
) -> typed.Expr:
    """Check a translator's expression for one member, with `source` in place of the translator's
    parameter; return the expression converted to the member's type. Raises DError.
    """
    wanted = translator.target.member(definition.name)
    if wanted is None:
        message = f"translator member {definition.name} is not a member of {translator.target}"
        raise DError(message, definition.span, "D_XLATE_MEMB")
    if reason := refusal(definition.value):
        message = f"{translator.target} has no {definition.name}: {reason}"
        raise DError(message, span, "D_XLATE_NOCONV")
    count_expansion(span, scope)
    outer, scope.bound = scope.bound, {translator.node.parameter: source}
    try:
        value = check(definition.value, scope)
    except DError as error:
        if not translator.lazily:
            raise
        raise DError(error.message, span, error.tag, error.hint) from error
    finally:
        scope.bound = outer
    member_value = _as_member(value, wanted.type)
    if member_value is None:
        message = (
            f"translator member {definition.name} definition uses incompatible types: "
            f'"{wanted.type}" = "{value.type}"'
        )
        raise DError(message, definition.span, "D_XLATE_INCOMPAT")
    return member_value


def _as_member(value: typed.Expr, type_: DType) -> typed.Expr | None:
    """Convert an expression to the type of a structure's member; return None if its type is
    incompatible.
    """
    if isinstance(type_, ArrayType) and is_char(type_.of):
        return to_string(value) if is_string_like(value.type) else None
    if isinstance(type_, ArrayType):
        alike = isinstance(value.type, PointerType) and same(value.type.to, type_.of)
        return typed.Load(type_, value.span, value) if alike else None
    if isinstance(type_, StructType):
        return value if same(value.type, type_) else None
    return as_argument(value, type_)


def as_structure(value: typed.Expr, scope: Scope, check: Check) -> typed.Expr:
    """Convert a translation to a structure into an expression that makes the whole structure, so
    that the program can assign or print it (libdtrace's dt_cg_asgn_op()); return any other
    expression unchanged.

    The structure has all members that the translator defines. If the translator is one of kinst's
    and the kernel lacks a type or symbol for a member's expression, the member is 0.
    """
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
    for member in translator.node.members:
        wanted = translator.target.member(member.name)
        try:
            found = _member_value(translator, member, source, span, scope, check)
        except DError:
            if not translator.lazily:
                raise
            continue
        assert wanted is not None
        stores.append(_member_store(wanted, found, translator.target))
    return TranslatedStruct(translator.target, span, first, tuple(stores))


def as_pointer(value: typed.Expr, scope: Scope, check: Check) -> typed.Expr:
    """Convert a translation to a pointer (xlate < type * >) into an expression that makes the whole
    structure and returns its address; return any other expression unchanged.
    """
    if not isinstance(value, Translation) or not isinstance(value.type, PointerType):
        return value
    whole = replace(value, type=value.translator.target)
    return typed.Cast(value.type, value.span, as_structure(whole, scope, check))


def _member_store(member: Member, value: typed.Expr, structure: StructType) -> Store:
    """Return the store of one member into a structure under construction.

    Args:
        structure: type of the structure.
    """
    type_, span, bit = member.type, value.span, 0
    if isinstance(type_, ArrayType) and is_string(value.type):
        type_ = StringType(type_.count)
    offset = member.bit // 8
    if member.bits:
        bit = member.bit % 8
    address = members.moved(BaseAddress(PointerType(structure), span), offset, type_)
    return Store(type_, span, address, value, bit, member.bits)


def refuse_whole(clause: typed.Clause) -> None:
    """Raise an error if a clause uses a whole translation where only its members may be used, or an
    action as a value.

    Raises DError D_OP_DYN for a translation (D_CG_DYN if it is a whole statement), and D_CG_EXPR
    for an action.
    """
    for action in clause.actions:
        if isinstance(action, typed.EvaluateAction) and isinstance(action.expr, Translation):
            message = "expression cannot evaluate to result of dynamic type"
            raise DError(message, action.expr.span, "D_CG_DYN")
    waiting = children(clause)
    while waiting:  # from the last to the first
        node = waiting.pop()
        if isinstance(node, Translation):
            _refuse_translation(node)
        if isinstance(node, ActionCall):
            raise action_as_value(node)
        waiting += children(node)


def _refuse_translation(node: Translation) -> NoReturn:
    op = "->" if isinstance(node.type, PointerType) else "."
    raise DError(
        f"a translation to {node.type} may not be used as a value: it is of dynamic type",
        node.span, "D_OP_DYN", f"use one of its members: (...){op}member",
    )  # fmt: skip
