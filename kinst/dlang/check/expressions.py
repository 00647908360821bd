"""Checker of expressions: resolves names, computes types, makes conversions explicit.

check() converts a tree.ExprNode to a typed.Expr. Every DError has libdtrace's tag and, except for
line breaks, its words.

Tested by tests/dlang/types/test_conversions.py and tests/d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from kinst.core.dtypes import (
    INT,
    INT64,
    UINT8,
    UINT64,
    ArrayType,
    DType,
    EnumType,
    IntType,
    PointerType,
    StringType,
    StructType,
    VoidType,
)
from kinst.core.errors import DError, KinstError, Span
from kinst.core.probe import ProbePattern
from kinst.core.types import AmbiguousNameError
from kinst.dlang import typed
from kinst.dlang.check import calls, members, variables
from kinst.dlang.check.expansions import inline_value, is_inline_array, translated_member, xlate
from kinst.dlang.check.scope import Check, Scope, Translation
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.source import literal_type
from kinst.dlang.types.conversions import (
    COMPARISONS,
    binary,
    cast,
    constant,
    is_scalar,
    is_string,
    logical,
    of_field,
    promoted,
    same,
    size_of,
    to_string,
    unary,
)
from kinst.dlang.types.operators import choose, load, move, need_definition, operate
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.other_tracers import variable_hint
from kinst.dlang.vocabulary.type_names import is_bool, typedef

_BUILTIN_ARGUMENTS = 10  # arg0 to arg9


def _probe_argument(node: tree.IndexNode, scope: Scope, check: Check) -> typed.Expr:
    """Check args[index]; return the argument with its type.  Raises DError D_PROTO_LEN,
    D_PROTO_ARG, D_ARGS_NONE, D_ARGS_MULTI, D_ARGS_IDX, D_ARGS_TYPE.
    """
    span, count = node.span, len(node.arguments)
    if count != 1:
        message = f"args[ ] prototype mismatch: {count} args passed, 1 expected"
        raise DError(message, span, "D_PROTO_LEN")
    index = check(node.arguments[0], scope)
    if not isinstance(index, typed.IntConst):
        raise DError(
            "args[ ] argument #1 is incompatible with prototype: prototype: integer constant, "
            f"argument: {index.type}",
            index.span,
            "D_PROTO_ARG",
        )
    if not scope.patterns:
        message = "args[ ] may not be referenced outside of a probe clause"
        raise DError(message, span, "D_ARGS_NONE")
    # The parser makes a clause of each description. If the clause still has several descriptions,
    # they are instructions of one probe.
    type_ = _argument_type(scope.patterns[0], index.value, node, scope)
    value: typed.Expr = typed.Builtin(INT64, span, f"arg{index.value}")
    # Only the low byte of a bool is passed (System V psABI).
    value = cast(value, UINT8) if is_bool(type_) else value
    return cast(value, type_)


def _no_types(pattern: ProbePattern) -> Sequence[DType] | None:
    return ()


def _has_no_arguments(pattern: ProbePattern, scope: Scope) -> bool:
    """Return whether a description matches only probes that have no arguments in any kernel."""
    providers = scope.environment.providers
    if pattern.provider in providers and providers[pattern.provider].all_plain:
        return True
    return not pattern.function and any(
        pattern.provider in ("", name) and _is_one_of(pattern.name, interface.plain)
        for name, interface in providers.items()
    )


def _is_one_of(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _is_own(pattern: ProbePattern, scope: Scope) -> bool:
    """Return whether a description matches only probes that fire in kinst's own process."""
    return not pattern.function and any(
        pattern.provider in ("", name) and _is_one_of(pattern.name, interface.own)
        for name, interface in scope.environment.providers.items()
    )


def _argument_type(pattern: ProbePattern, index: int, node: tree.IndexNode, scope: Scope) -> DType:
    """Return the type of args[index] at the probes that a description matches. Raises DError
    D_ARGS_*.
    """
    types_of = _no_types if _has_no_arguments(pattern, scope) else scope.environment.arguments
    try:
        types = types_of(pattern) if types_of is not None else None
    except KinstError as error:
        message = f"failed to resolve native type for {pattern} args[{index}]: {error.message}"
        raise DError(message, node.span, "D_ARGS_TYPE", error.hint) from error
    if types is None:
        message = (
            f"args[ ] may not be referenced because probe description {pattern} matches an"
            " unstable set of probes"
        )
        raise DError(message, node.span, "D_ARGS_MULTI", "use arg0 to arg9, which have no types")
    if not 0 <= index < min(len(types), _BUILTIN_ARGUMENTS):
        message = f"index {index} is out of range for {pattern} args[ ]"
        hint = f"it has {len(types)}" if types else "it has no arguments"
        raise DError(message, node.span, "D_ARGS_IDX", hint)
    type_ = types[index]
    if not isinstance(type_, IntType | PointerType):
        message = f"failed to resolve native type for {pattern} args[{index}]: it is {type_}"
        raise DError(message, node.span, "D_ARGS_TYPE", "it is not passed in a register")
    return type_


_ERRNO = "errno"


def _errno(span: Span, scope: Scope) -> typed.Expr:
    """Return an expression for errno. Raises DError D_IDENT_UNDEF.

    In most systems, errno is a field of the thread. If the system has no such field, all probes of
    the clause must be returns, and errno is computed from the function's result: 5 for the result
    -5, and 0 for a result that is no error number. Both the 64-bit and the 32-bit value of the
    result register are tested, because a function that returns int may leave any bits in the upper
    half.

    In probes of kinst's own process errno is 0.
    """
    dialect = scope.environment.dialect()
    most = dialect.most_error
    if not most:
        return typed.Builtin(builtins.VARIABLES[_ERRNO].type, span, _ERRNO)
    traced = [p for p in scope.patterns if not _is_own(p, scope)]
    if scope.patterns and not traced:
        return constant(0, INT, span)
    others = [p for p in traced if not _is_return(p, scope)]
    if others or not scope.patterns:
        where = f" at {others[0]}" if others else " outside of a probe clause"
        raise DError(
            f"errno is not available{where}: {dialect.system} keeps none in the thread",
            span,
            "D_IDENT_UNDEF",
            _errno_hint(others, scope),
        )
    value = typed.Builtin(INT64, span, "arg1")
    wide, narrow = (_is_error_from(value, start - most, most) for start in (0, 1 << 32))
    fails = logical("||", wide, narrow, span)
    error = unary("-", cast(value, INT), INT, span)
    return typed.Conditional(INT, span, fails, error, constant(0, INT, span))


def _errno_hint(patterns: Sequence[ProbePattern], scope: Scope) -> str:
    """Return a hint that names the probe that has the error of a system call or function.

    Args:
        patterns: the descriptions at which errno is not known.
    """
    providers = scope.environment.providers
    interface = providers.get(patterns[0].provider) if patterns else None
    if interface is None or not interface.system_calls:
        return "fbt::F:return has the error that F returns"
    one = replace(patterns[0], name=interface.returns[0])
    return f"{one} has the error with which the system call fails"


def _is_error_from(value: typed.Expr, least: int, count: int) -> typed.Expr:
    """Return the condition `least <= value < least + count`: whether a value is in a range of
    negative error numbers.
    """
    span = value.span
    above = binary("-", cast(value, UINT64), constant(least, UINT64, span), UINT64, span)
    return binary("<", above, constant(count, UINT64, span), INT, span)


def _is_return(pattern: ProbePattern, scope: Scope) -> bool:
    return any(
        pattern.provider in ("", name) and pattern.name in interface.returns
        for name, interface in scope.environment.providers.items()
    )


def _enumerator(node: tree.NameNode, scope: Scope) -> typed.Expr | None:
    """Return the enumeration constant of this name, from the program's types or the kernel's; None
    if there is no such constant.

    Raises DError D_IDENT_AMBIG.
    """
    try:
        enumerator = scope.types.enumerator(node.name)
    except AmbiguousNameError as error:
        raise DError(error.message, node.span, "D_IDENT_AMBIG", error.hint) from error
    except KinstError:
        return None
    return None if enumerator is None else constant(enumerator[1], enumerator[0], node.span)


def _enumeration_tag(
    type_: EnumType, node: tree.ExprNode, op: str, scope: Scope
) -> typed.Expr | None:
    """Return the enumerator on the right side of a comparison with an enumeration; None if the
    right side is not an enumerator of this enumeration (libdtrace's dt_cook_op2()).

    A same-named enumerator of another enumeration does not matter. Raises DError D_IDENT_AMBIG if a
    variable has the same name.

    Args:
        type_: the enumeration on the left side.
        node: the right side.
        op: the operator, for messages.
    """
    if not isinstance(node, tree.NameNode):
        return None
    value = dict(type_.values).get(node.name)
    if value is None:
        return None
    kind = _other_kind(node.name, scope)
    if kind:
        message = (
            f"ambiguous use of operator {op}: {node.name} is both a {type_} enum tag and a global"
            f" {kind}"
        )
        raise DError(message, node.span, "D_IDENT_AMBIG")
    return constant(value, type_, node.span)


def _other_kind(name: str, scope: Scope) -> str:
    """Return the kind of a name that is not an enumerator ("scalar", "associative array", ...); ""
    for an unknown name.
    """
    variable = scope.variables.get(name)
    if variable is not None:
        return "associative array" if variable.keys or variable.length else "scalar"
    if name in scope.inlines or name in scope.bound or name in scope.environment.registers:
        return "scalar"
    return scope.kind_of(name) or ""


def _cast_to(node: tree.CastNode, scope: Scope, check: Check) -> typed.Expr:
    """Check (type)operand; return the converted operand. Raises DError D_CAST_INVAL and the errors
    of the type.
    """
    type_ = scope.resolve(node.type)
    operand = check(node.operand, scope)
    source = operand.type
    if isinstance(type_, VoidType):
        return typed.Cast(type_, node.span, operand)
    if isinstance(operand, Translation):
        message = f'invalid cast expression: "{source}" to "{type_}": it is a translation'
        raise DError(message, node.span, "D_CAST_INVAL", "cast one of its members")
    if isinstance(type_, StructType) and same(source, type_):
        return operand
    if is_string(type_) and (is_scalar(source) or is_string(source)):
        return replace(to_string(operand), span=node.span)
    if is_scalar(type_) and is_scalar(source):
        return replace(cast(operand, type_), span=node.span)
    message = f'invalid cast expression: "{source}" to "{type_}"'
    raise DError(message, node.span, "D_CAST_INVAL")


def _local_variable(node: tree.TypedNode, operand: typed.Expr) -> typed.Expr:
    """Convert the value of a local variable of the traced kernel to the variable's type, or its
    address to a pointer to this type.

    Args:
        node: the node that kinst.sugar has made for locals->NAME.
        operand: typed tree of the variable's address if node.pointer is set, otherwise of its
            value.
    """
    return cast(operand, PointerType(node.type) if node.pointer else node.type)


_SIZE_T = typedef("size_t")


def check(node: tree.ExprNode, scope: Scope) -> typed.Expr:
    """Check an expression and return its typed tree. Raises DError."""
    expr = with_size(node, _HANDLERS[type(node)](node, scope))
    type_ = scope.types.defined(expr.type)
    return expr if type_ is expr.type else replace(expr, type=type_)


def with_size(node: tree.ExprNode, expr: typed.Expr) -> typed.Expr:
    """Return `expr`, but raise DError D_OP_INCOMPLETE if it is *p or p[i] and its type is a
    structure that is declared but not defined, so that its size is unknown.

    A structure that is defined with size 0 is accepted, such as struct lock_class_key in a kernel
    that does not check locks.

    Args:
        node: the syntax tree of the expression.
        expr: its typed tree.
    """
    if isinstance(node, tree.PrefixNode | tree.IndexNode) and isinstance(expr, typed.Load):
        need_definition("*", expr.type, expr.span)
    return expr


def undecayed(node: tree.ExprNode, scope: Scope) -> typed.Expr:
    """Check an operand of sizeof, trace() or print(), and return its typed tree. Unlike check(), do
    not convert an array in memory to a pointer.
    """
    lvalue: typed.Expr | None = None
    if isinstance(node, tree.MemberNode):
        lvalue = _member_lvalue(node, scope)
    elif isinstance(node, tree.IndexNode):
        lvalue = _element_lvalue(node, scope)
    elif isinstance(node, tree.PrefixNode) and node.op == "*":
        lvalue = _pointed(node, check(node.operand, scope))
    elif isinstance(node, tree.NameNode) and "`" in node.name:
        lvalue = members.symbol(node.name, node.span, scope)
    elif isinstance(node, tree.NameNode) and variables.array_named(node, scope) is not None:
        lvalue = variables.read(
            variables.VariableReference(node.name, "global", None, node.span), scope, check
        )
    else:
        return check(node, scope)
    array = isinstance(lvalue.type, ArrayType) and lvalue.type.count
    return lvalue if array and not members.is_char_array(lvalue.type) else members.value(lvalue)


def truth(node: tree.ExprNode, scope: Scope) -> typed.Expr:
    """Check an expression that is used as a condition, and return its typed tree. An array in
    memory is returned as an array, not as a pointer. The caller then refuses it, because an array
    is no scalar (libdtrace's dt_node_is_scalar()).
    """
    expr = check(node, scope)
    if not isinstance(expr.type, PointerType):
        return expr
    whole = undecayed(node, scope)
    return whole if isinstance(whole.type, ArrayType) else expr


def _integer(node: tree.IntegerNode, scope: Scope) -> typed.Expr:
    return constant(node.literal.value, literal_type(node.literal, node.span), node.span)


def _string(node: tree.StringNode, scope: Scope) -> typed.Expr:
    return typed.StrConst(StringType(len(node.value) + 1), node.span, node.value)


def _name(node: tree.NameNode, scope: Scope) -> typed.Expr:
    if node.name in scope.bound or node.name in scope.inlines:
        return inline_value(node, None, scope, check)
    if node.name in scope.variables:
        reference = variables.VariableReference(node.name, "global", None, node.span)
        return members.value(variables.read(reference, scope, check))
    if node.name == _ERRNO:
        return _errno(node.span, scope)
    if node.name in builtins.VARIABLES:
        type_ = builtins.VARIABLES[node.name].type
        if node.name == "curthread":
            type_ = members.current_thread(scope)
        return typed.Builtin(type_, node.span, node.name)
    if node.name in scope.environment.registers:
        return constant(scope.environment.registers[node.name], INT, node.span)
    number = variables.constant_named(node.name, scope)
    if number is not None:
        return constant(number, INT, node.span)
    if node.name == "NULL":
        return constant(0, INT, node.span)  # libdtrace: inline long NULL = 0, a clone of this 0
    scope.refuse_builtin(node.name, node.span, "scalar", variable_hint(node.name))
    if "`" in node.name:
        return members.value(members.symbol(node.name, node.span, scope))
    enumerator = _enumerator(node, scope)
    if enumerator is not None:
        return enumerator
    raise scope.unknown(node.name, node.span)


def _aggregation(node: tree.AggregationNode, scope: Scope) -> typed.Expr:
    if node.name not in scope.aggregations:
        message = f"failed to resolve @{node.name[:80]}: Unknown variable name"
        raise DError(message, node.span, "D_IDENT_UNDEF")
    message = f"aggregation @{node.name} may not be used in an expression"
    raise DError(message, node.span, "D_OP_DYN", "print it with printa()")


def _index(node: tree.IndexNode, scope: Scope) -> typed.Expr:
    return members.value(_element_lvalue(node, scope))


def _element_lvalue(node: tree.IndexNode, scope: Scope) -> typed.Expr:
    if isinstance(node.base, tree.AggregationNode):
        return _aggregation(node.base, scope)
    if is_inline_array(node.base, scope):
        return inline_value(node.base, node, scope, check)
    if isinstance(node.base, tree.NameNode) and node.base.name == "args":
        return _probe_argument(node, scope, check)
    reference = variables.reference_of(node, scope)
    if reference is not None:
        return variables.read(reference, scope, check)
    pointer, index = _base_and_index(node, scope)
    if isinstance(pointer, typed.RegisterRead):
        return pointer
    return load(move("+", pointer, index, node.span), node.span)


def _base_and_index(node: tree.IndexNode, scope: Scope) -> tuple[typed.Expr, typed.Expr]:
    """Check base[index]; return the typed trees of `base` and `index`. For regs[index] and
    uregs[index], return the typed tree of the whole expression twice. Raises DError.
    """
    base = node.base
    if isinstance(base, tree.NameNode) and base.name not in scope.variables:
        if base.name in ("regs", "uregs"):
            read = _register(base.name, node, scope)
            return read, read
        if builtins.is_not_yet(base.name):
            raise DError(f"{base.name}[ ] is not supported yet", base.span, "D_UNKNOWN")
    pointer = members.as_pointer(check(base, scope))
    if len(node.arguments) != 1:
        name = base.name if isinstance(base, tree.NameNode) else "this expression"
        message = f"cannot access {name} as an associative array"
        raise DError(message, node.span, "D_ARR_BADREF")
    index = check(node.arguments[0], scope)
    if not isinstance(pointer.type, PointerType) and not isinstance(index.type, PointerType):
        raise DError("cannot dereference non-pointer type", node.span, "D_DEREF_NONPTR")
    return pointer, index


def _register(name: str, node: tree.IndexNode, scope: Scope) -> typed.Expr:
    """Check regs[constant] or uregs[constant]; return the expression that reads the register
    (Dynamic Tracing Guide, "regs"; errors as in dt_idcook_regs).
    """
    count = len(node.arguments)
    if count != 1:
        message = f"{name}[ ] prototype mismatch: {count} args passed, 1 expected"
        raise DError(message, node.span, "D_PROTO_LEN")
    index = check(node.arguments[0], scope)
    if not isinstance(index, typed.IntConst):
        raise DError(
            f"{name}[ ] argument #1 is incompatible with prototype: prototype: integer constant, "
            f"argument: {index.type}",
            index.span,
            "D_PROTO_ARG",
        )
    registers = scope.environment.registers
    if index.value < 0 or (registers and index.value not in registers.values()):
        message = f"index {index.value} is out of range for array {name}"
        raise DError(message, index.span, "D_REGS_IDX", "use a register's name, such as R_PC")
    return typed.RegisterRead(UINT64, node.span, index, name == "uregs")


def _call(node: tree.CallNode, scope: Scope) -> typed.Expr:
    return calls.call(node, scope, check)


def _refuse_members_of_args(node: tree.MemberNode, scope: Scope) -> None:
    """Raise DError D_IDENT_BADREF if the expression is args->NAME, for which the program probably
    means locals->NAME, or at a tracepoint an element of args[].
    """
    if isinstance(node.base, tree.NameNode) and node.base.name == "args":
        message = "associative array 'args' may not be referenced as scalar"
        named = f"by its name, locals->{node.name}"
        providers = scope.environment.providers
        if not all(
            providers[one.provider].has_locals
            for one in scope.patterns
            if one.provider in providers
        ):
            named = "kinst -l -v lists all with their types"
        hint = f"args[0] is the first argument; {named}"
        raise DError(message, node.base.span, "D_IDENT_BADREF", hint)


def _member(node: tree.MemberNode, scope: Scope) -> typed.Expr:
    return members.value(_member_lvalue(node, scope))


def _member_lvalue(node: tree.MemberNode, scope: Scope) -> typed.Expr:
    reference = variables.reference_of(node, scope)
    if reference is not None:
        return variables.read(reference, scope, check)
    _refuse_members_of_args(node, scope)
    base = check(node.base, scope)
    if isinstance(base, Translation):
        return translated_member(node, base, scope, check)
    try:
        return members.lvalue_of_member(node, base, scope)
    except DError as error:
        if error.hint or not (hint := _hint_of_argument(node, base.type, scope)):
            raise
        raise DError(error.message, error.span, error.tag, hint) from error


def _hint_of_argument(node: tree.MemberNode, type_: DType, scope: Scope) -> str:
    """Return a hint for an error about an unknown member in args[N]->member: the type of args[N],
    and the first argument of the probe that has this member. Return "" for any other expression.

    Args:
        type_: the type of args[N].
    """
    base = node.base
    if node.op != "->" or not isinstance(base, tree.IndexNode) or not scope.patterns:
        return ""
    if not isinstance(base.base, tree.NameNode) or base.base.name != "args":
        return ""
    index, types_of = base.arguments[0], scope.environment.arguments
    if not isinstance(index, tree.IntegerNode) or types_of is None:
        return ""
    hint = f"args[{index.literal.value}] is of type {type_}"
    for number, other in enumerate(types_of(scope.patterns[0]) or ()):
        if not isinstance(other, PointerType) or not isinstance(other.to, StructType):
            continue
        with suppress(KinstError):  # a structure without a definition
            if scope.types.lookup(other.to).member(node.name) is not None:
                return f"{hint}; did you mean args[{number}]->{node.name}?"
    return hint


def _pointed(node: tree.PrefixNode, operand: typed.Expr) -> typed.Expr:
    """Return *operand as an lvalue."""
    if isinstance(operand, Translation) and isinstance(operand.type, PointerType):
        return replace(operand, type=operand.type.to, span=node.span)
    return load(members.as_pointer(operand), node.span)


def _prefix(node: tree.PrefixNode, scope: Scope) -> typed.Expr:
    if node.op in ("++", "--"):
        return _step(node, scope, post=False)
    if node.op == "&":
        return _address_of(node, scope)
    array = variables.array_named(node.operand, scope) if node.op == "sizeof" else None
    if array is not None:
        size = size_of(array.type, scope.environment.strsize) * array.length
        return _sizeof(size, node.span)
    checked = {"sizeof": undecayed, "!": truth}.get(node.op, check)
    operand = checked(node.operand, scope)
    span, type_ = node.span, operand.type
    if node.op == "*":
        return members.value(_pointed(node, operand))
    if node.op == "sizeof":
        return _sizeof(members.size_of_operand(operand, scope, span), span)
    if node.op == "stringof":
        if not is_scalar(type_) and not is_string(type_):
            message = f"cannot apply stringof to a value of type {type_}"
            raise DError(message, span, "D_STRINGOF_TYPE")
        return to_string(operand)
    if node.op == "!":
        if not is_scalar(type_):
            message = "operator ! requires an operand of scalar type"
            raise DError(message, span, "D_OP_SCALAR")
        return unary("!", operand, INT, span)
    if not isinstance(type_, IntType):
        kind, tag = ("integral", "D_OP_INT") if node.op == "~" else ("arithmetic", "D_OP_ARITH")
        raise DError(f"operator {node.op} requires an operand of {kind} type", span, tag)
    operand = of_field(operand)
    assert isinstance(operand.type, IntType)
    operand = cast(operand, promoted(operand.type))
    return operand if node.op == "+" else unary(node.op, operand, operand.type, span)


def _address_of(node: tree.PrefixNode, scope: Scope) -> typed.Expr:
    """Check &operand; return the address. &*p is p, and &p[i] is p + i. Raises DError D_ADDROF_VAR
    for a dynamic variable, which has no address.
    """
    inner = node.operand
    reference = variables.reference_of(inner, scope)
    if reference is not None:
        element = variables.element_address(reference, scope, check)
        if element is not None:
            return element
        variables.read(reference, scope, check)
        raise DError("cannot take address of dynamic variable", node.span, "D_ADDROF_VAR")
    if isinstance(inner, tree.PrefixNode) and inner.op == "*":
        address = check(inner.operand, scope)
        load(address, node.span)
        return address
    if isinstance(inner, tree.IndexNode) and not isinstance(inner.base, tree.AggregationNode):
        pointer, index = _base_and_index(inner, scope)
        if isinstance(pointer, typed.RegisterRead):
            message = "cannot take address of dynamic variable"
            raise DError(message, node.span, "D_ADDROF_VAR")
        if isinstance(pointer, typed.Cast) and is_string(pointer.operand.type):
            message = "cannot take address of a string's character"
            raise DError(message, node.span, "D_ADDROF_VAR", "a string has no one address in kinst")
        return move("+", pointer, index, node.span)
    if isinstance(inner, tree.NameNode) and "`" in inner.name:
        return members.address_of(members.symbol(inner.name, inner.span, scope), node.span)
    if isinstance(inner, tree.NameNode | tree.AggregationNode):
        if isinstance(inner, tree.NameNode):
            check(inner, scope)
        raise DError("cannot take address of dynamic variable", node.span, "D_ADDROF_VAR")
    return members.address_of(check(inner, scope), node.span)


def _sizeof(size: int, span: Span) -> typed.Expr:
    if not size:
        message = "cannot apply sizeof to an operand of unknown size"
        raise DError(message, span, "D_SIZEOF_TYPE")
    return constant(size, _SIZE_T, span)


def _sizeof_type(node: tree.SizeofTypeNode, scope: Scope) -> typed.Expr:
    type_ = scope.resolve(node.type)
    if isinstance(type_, StructType):
        type_ = scope.types.lookup(type_)
    return _sizeof(size_of(type_, scope.environment.strsize), node.span)


def _postfix(node: tree.PostfixNode, scope: Scope) -> typed.Expr:
    return _step(node, scope, post=True)


def _step(node: tree.PrefixNode | tree.PostfixNode, scope: Scope, *, post: bool) -> typed.Expr:
    return variables.step(node, scope, check, post=post)


def _assignment(node: tree.AssignmentNode, scope: Scope) -> typed.Expr:
    if isinstance(node.left, tree.AggregationNode):
        return _aggregation(node.left, scope)
    return variables.assignment(node, scope, check)


def _infix(node: tree.InfixNode, scope: Scope) -> typed.Expr:
    if node.op == ",":
        return _comma(node, scope)
    if node.op in ("&&", "||", "^^"):
        sides = truth(node.left, scope), truth(node.right, scope)
        return operate(node.op, *sides, node.span, shown=node.op)
    left = check(node.left, scope)
    tag = None
    if node.op in COMPARISONS and isinstance(left.type, EnumType):
        tag = _enumeration_tag(left.type, node.right, node.op, scope)
    right = tag if tag is not None else check(node.right, scope)
    result = members.arithmetic(node.op, left, right, node.span)
    return result or operate(node.op, left, right, node.span, shown=node.op)


def _comma(node: tree.InfixNode, scope: Scope) -> typed.Expr:
    for side in (node.left, node.right):
        if is_aggregation(side):
            message = "operator , operands cannot be of dynamic type"
            raise DError(message, side.span, "D_OP_DYN")
    left, right = check(node.left, scope), check(node.right, scope)
    for expr in (left, right):
        if isinstance(expr, calls.ActionCall):
            raise DError("operator , operands cannot be actions", expr.span, "D_OP_ACT")
    return typed.Comma(right.type, node.span, without_void(left), right)


def without_void(expr: typed.Expr) -> typed.Expr:
    """Return x for (void)x, and any other expression unchanged."""
    while isinstance(expr, typed.Cast) and isinstance(expr.type, VoidType):
        expr = expr.operand
    return expr


def is_aggregation(node: tree.ExprNode) -> bool:
    return isinstance(node, tree.AggregationNode) or (
        isinstance(node, tree.IndexNode) and is_aggregation(node.base)
    )


def _conditional_action(span: Span) -> DError:
    message = "action cannot be used in a conditional context"
    return DError(message, span, "D_OP_ACT", "use a predicate")


def _ternary(node: tree.TernaryNode, scope: Scope) -> typed.Expr:
    for side in (node.then, node.otherwise):
        if is_aggregation(side):
            message = "operator ?: operands cannot be of dynamic type"
            raise DError(message, side.span, "D_OP_DYN")
        if calls.is_valued_action(side):
            raise _conditional_action(side.span)
    condition = truth(node.condition, scope)
    left, right = check(node.then, scope), check(node.otherwise, scope)
    if not is_scalar(condition.type):
        message = "operator ?: expression must be of scalar type"
        raise DError(message, condition.span, "D_OP_SCALAR")
    if isinstance(left, calls.ActionCall) and isinstance(right.type, VoidType):
        raise _conditional_action(left.span)
    return choose(condition, left, right, node.span)


_HANDLERS: dict[type, Callable[[Any, Scope], typed.Expr]] = {
    tree.IntegerNode: _integer,
    tree.StringNode: _string,
    tree.NameNode: _name,
    tree.AggregationNode: _aggregation,
    tree.IndexNode: _index,
    tree.CallNode: _call,
    tree.MemberNode: _member,
    tree.PrefixNode: _prefix,
    tree.PostfixNode: _postfix,
    tree.InfixNode: _infix,
    tree.AssignmentNode: _assignment,
    tree.TernaryNode: _ternary,
    tree.CastNode: lambda node, scope: _cast_to(node, scope, check),
    tree.TypedNode: lambda node, scope: _local_variable(node, check(node.operand, scope)),
    tree.SizeofTypeNode: _sizeof_type,
    tree.OffsetOfNode: members.offset_of,
    tree.XlateNode: lambda node, scope: xlate(node, scope, check),
}
