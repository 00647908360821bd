"""Checker of variables and assignments: global, thread-local (self->) and clause-local (this->)
variables, associative and scalar arrays, and stores to memory (*p, p->m, p[i], v.m) (Dynamic
Tracing Guide, "Variables").

Every DError has libdtrace's tag and, except for line breaks, its words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    INT64,
    ArrayType,
    DType,
    FunctionType,
    IntType,
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
from kinst.dlang.check.expansions import as_pointer, as_structure, is_inline_array
from kinst.dlang.check.members import decayed
from kinst.dlang.check.scope import Check, Scope, Translation
from kinst.dlang.syntax import tree
from kinst.dlang.typed import BaseAddress, Before, Shared, Store, root_of
from kinst.dlang.types.conversions import (
    cast,
    common,
    constant,
    is_integer,
    is_scalar,
    is_string,
    is_string_like,
    is_void_pointer,
    is_zero,
    same,
    to_string,
)
from kinst.dlang.types.operators import (
    converted,
    incompatible,
    move,
    operate,
    step_of,
    wider_string,
)
from kinst.dlang.vocabulary.constants import CONSTANTS
from kinst.dlang.vocabulary.type_names import typedef

SCOPES = ("self", "this")


@dataclass(frozen=True, slots=True)
class VariableReference:
    """A reference to a variable in the program: name, self->name, this->name or name[keys]. The
    variable need not exist yet.
    """

    name: str  # with self-> or this->
    scope: str
    keys: tuple[tree.ExprNode, ...] | None  # None if the reference has no [ ]
    span: Span


def _root(node: tree.ExprNode) -> tuple[str, str] | None:
    """Return name and scope of the variable that name, self->name or this->name refers to; None for
    any other expression.
    """
    if isinstance(node, tree.NameNode):
        return node.name, "global"
    if not isinstance(node, tree.MemberNode) or node.op != "->":
        return None
    base = node.base
    if isinstance(base, tree.NameNode) and base.name in SCOPES:
        return f"{base.name}->{node.name}", base.name
    return None


def constant_named(name: str, scope: Scope) -> int | None:
    """Return the value of a constant of D or of the system's dialect; None for any other name."""
    if name in CONSTANTS:
        return CONSTANTS[name]
    # The names of a system's constants are in capitals.
    return scope.environment.dialect().constants.get(name) if name[:1].isupper() else None


def _is_taken(name: str, scope: Scope) -> bool:
    """Return whether a name without self-> or this-> has a meaning, so that no variable can have
    this name: a built-in, a register, an inline, a parameter, a constant or a kernel symbol.
    """
    return (
        scope.kind_of(name) is not None
        or name in scope.environment.registers
        or name in scope.inlines
        or name in scope.bound
        or (name not in scope.variables and constant_named(name, scope) is not None)
        or "`" in name
    )


def reference_of(node: tree.ExprNode, scope: Scope) -> VariableReference | None:
    """If an expression is a variable or an element of an array variable, return a reference to it;
    for any other expression (a built-in, an inline, p[i] with a pointer p), return None.
    """
    keys: tuple[tree.ExprNode, ...] | None = None
    root = _root(node)
    if isinstance(node, tree.IndexNode):
        root, keys = _root(node.base), node.arguments
    if root is None:
        return None
    name, where = root
    if where == "global" and _is_taken(name, scope):
        return None
    variable = scope.variables.get(name)
    if keys is not None and variable is not None and not (variable.keys or variable.length):
        return None
    return VariableReference(name, where, keys, node.span)


def array_named(node: tree.ExprNode, scope: Scope) -> typed.Variable | None:
    """Return the scalar array that an expression names without an index; None for any other
    expression.
    """
    reference = reference_of(node, scope)
    variable = (
        scope.variables.get(reference.name)
        if reference is not None and reference.keys is None
        else None
    )
    return variable if variable is not None and variable.length else None


def read(reference: VariableReference, scope: Scope, check: Check) -> typed.Expr:
    """Return the value of a variable; for a scalar array, the array as an lvalue. Raises DError
    D_VAR_UNDEF, D_IDENT_UNDEF, D_IDENT_BADREF, and the errors of keys.
    """
    variable = _existing(reference, scope)
    if reference.keys is None:
        if variable.length and _is_in_one_piece(variable):
            return _whole(variable, reference.span)
        _refuse_array(reference, variable)
        return typed.GlobalRead(variable.type, reference.span, variable)
    keys = _keys_of(reference, variable, scope, check)
    value = typed.KeyedRead(variable.type, reference.span, variable, keys)
    if isinstance(variable.type, ArrayType):
        return typed.Load(
            variable.type,
            reference.span,
            typed.Cast(PointerType(variable.type), reference.span, value),
        )
    return value


def _is_in_one_piece(variable: typed.Variable) -> bool:
    """Return whether the elements of a scalar array are contiguous in memory, as in C."""
    return not variable.is_dynamic and not isinstance(variable.type, StringType)


def _whole(variable: typed.Variable, span: Span) -> typed.Expr:
    """Return a scalar array as an lvalue."""
    array = ArrayType(variable.type, variable.length)
    address = typed.Cast(PointerType(array), span, typed.GlobalRead(array, span, variable))
    return typed.Load(array, span, address)


def element_address(reference: VariableReference, scope: Scope, check: Check) -> typed.Expr | None:
    """Return the address of an element of a scalar array, if the array is contiguous in memory
    (_is_in_one_piece()); None for any other reference. As in C, the index may be one past the last
    element.
    """
    variable = scope.variables.get(reference.name)
    if reference.keys is None or variable is None or not variable.length:
        return None
    if not _is_in_one_piece(variable):
        return None
    (index,) = _keys_of(reference, variable, scope, check)
    return move("+", decayed(_whole(variable, reference.span)), index, reference.span)


def _existing(reference: VariableReference, scope: Scope) -> typed.Variable:
    variable = scope.variables.get(reference.name)
    if variable is not None:
        return variable
    if reference.scope == "global":
        raise scope.unknown(reference.name, reference.span)
    declared = f"{reference.scope} int64_t {reference.name.partition('->')[2]}"
    message = f"{reference.name} has not yet been declared or assigned"
    raise DError(
        message, reference.span, "D_VAR_UNDEF", f"{declared}; before the clauses declares it"
    )


def _refuse_array(reference: VariableReference, variable: typed.Variable) -> None:
    if variable.keys:
        message = f"associative array '{reference.name}' may not be referenced as scalar"
        raise DError(message, reference.span, "D_IDENT_BADREF", f"write {reference.name}[...]")
    if variable.length:
        message = f"array {reference.name} needs an index here"
        raise DError(message, reference.span, "D_UNKNOWN", f"write {reference.name}[0]")


def _checked_keys(reference: VariableReference, scope: Scope, check: Check) -> list[typed.Expr]:
    """Check the keys of a reference and return them, not yet converted. Raises DError
    D_KEY_TYPE.
    """
    keys: list[typed.Expr] = []
    for number, node in enumerate(reference.keys or (), 1):
        base = node.base if isinstance(node, tree.IndexNode) else node
        kind = "aggregation" if isinstance(base, tree.AggregationNode) else ""
        if not kind:
            key = check(node, scope)
            whole = isinstance(key.type, StructType) and not isinstance(key, Translation)
            if is_scalar(key.type) or is_string(key.type) or whole:
                keys.append(key)
                continue
            kind = str(key.type)
        message = f"{kind} expression may not be used as associative array index: key #{number}"
        raise DError(message, node.span, "D_KEY_TYPE")
    return keys


def _keys_of(
    reference: VariableReference, variable: typed.Variable, scope: Scope, check: Check
) -> tuple[typed.Expr, ...]:
    """Check the keys of a reference and return them converted to the types of the variable's keys.
    Raises DError D_PROTO_LEN, D_PROTO_ARG, D_ARR_BADREF.
    """
    keys = _checked_keys(reference, scope, check)
    if variable.length:
        return _index_of(reference, variable, keys)
    if len(keys) != len(variable.keys):
        message = (
            f"{reference.name}[ ] prototype mismatch: {counted(len(keys), 'arg')} passed, "
            f"{len(variable.keys)} expected"
        )
        raise DError(message, reference.span, "D_PROTO_LEN")
    key_types = scope.keys.setdefault(reference.name, variable.keys)
    merged = []
    for number, (key, want) in enumerate(zip(keys, key_types, strict=True), 1):
        type_ = _merged(want, key)
        if type_ is None:
            message = (
                f"{reference.name}[ ] argument #{number} is incompatible with prototype: "
                f"prototype: {want}, argument: {key.type}"
            )
            raise DError(message, key.span, "D_PROTO_ARG")
        merged.append(type_)
    scope.keys[reference.name] = tuple(merged)
    return tuple(_as_key(k, t) for k, t in zip(keys, variable.keys, strict=True))


def _index_of(
    reference: VariableReference, variable: typed.Variable, keys: Sequence[typed.Expr]
) -> tuple[typed.Expr, ...]:
    if len(keys) != 1:
        message = f"cannot access {reference.name} as an associative array"
        raise DError(message, reference.span, "D_ARR_BADREF")
    (index,) = keys
    if not is_integer(index.type):
        message = f"cannot use {index.type} as an index of {reference.name}"
        raise DError(message, index.span, "D_ARR_BADREF", "an integer is wanted")
    return (cast(index, INT64),)


def _merged(before: DType, key: typed.Expr) -> DType | None:
    """Return a type for an associative array's key that can hold the keys of type `before` and one
    more key; None if no type can.

    Args:
        before: the key's type so far.
        key: the additional key.
    """
    now = key.type
    if isinstance(before, IntType) and isinstance(now, IntType):
        return before if same(before, now) else common(before, now)
    if is_string(before) and is_string_like(now):
        return wider_string(before, now if is_string(now) else StringType())
    if isinstance(before, PointerType):
        if isinstance(now, PointerType):
            void = is_void_pointer(before) or is_void_pointer(now)
            return before if void or same(before, now) else None
        return before if is_zero(key) else None
    if isinstance(before, StructType) and same(before, now):
        return before
    return None


def _as_key(key: typed.Expr, type_: DType) -> typed.Expr:
    """Convert a key to its type in the array. A structure stays as it is: all its bytes are
    compared, padding included.
    """
    if isinstance(type_, StructType):
        return key
    return to_string(key) if is_string(type_) else cast(key, type_)


def reference_to_change(
    node: tree.ExprNode, op: str, scope: Scope, check: Check
) -> VariableReference:
    """Return the reference to the variable that an assignment or ++ changes.

    Raises DError D_OP_WRITE, D_OP_LVAL, D_OP_ARRFUN, D_OP_SCALAR, D_IDENT_BADREF.
    """
    reference = reference_of(node, scope)
    if reference is not None:
        if reference.keys is None and reference.name in scope.variables:
            variable = scope.variables[reference.name]
            if variable.length and op == "=":
                type_ = ArrayType(variable.type, variable.length)
                message = f'operator = may not be applied to operand of type "{type_}"'
                raise DError(message, reference.span, "D_OP_ARRFUN", f"write {reference.name}[0]")
            if variable.length and op in ("++", "--"):
                message = f"operator {op} requires operand of scalar type"
                raise DError(message, reference.span, "D_OP_SCALAR", f"write {reference.name}[0]")
            _refuse_array(reference, variable)
        return reference
    if isinstance(node, tree.NameNode):
        scope.refuse_builtin(node.name, node.span, "scalar")
    else:
        check(node, scope)
        if not isinstance(node, tree.IndexNode):
            message = f"operator {op} requires modifiable lvalue as an operand"
            raise DError(message, node.span, "D_OP_LVAL")
    message = f"operator {op} can only be applied to a writable variable"
    hint = "== compares" if op == "=" else ""
    if isinstance(node, tree.NameNode) and re.fullmatch(r"arg\d|args", node.name):
        hint = "-w: regs[R_NAME] = VALUE changes a register, return(VALUE) returns at once"
    raise DError(message, node.span, "D_OP_WRITE", hint)


def _create(
    reference: VariableReference, type_: DType, keys: Sequence[typed.Expr], scope: Scope
) -> typed.Variable:
    """Create the variable that a reference names; return it. Raises DError D_ARR_LOCAL.

    Args:
        keys: keys of the first assignment, whose types become the types of the array's keys.
    """
    if reference.keys is None:
        return scope.create(reference.name, type_, reference.scope)
    if reference.scope == "this":
        raise no_clause_local_array(reference.name, reference.span, "D_ARR_LOCAL")
    types = scope.keys.setdefault(reference.name, tuple(k.type for k in keys))
    return scope.create(reference.name, type_, reference.scope, types)


def no_clause_local_array(name: str, span: Span, tag: str) -> DError:
    message = f"clause-local variables may not be associative arrays: {name}"
    return DError(message, span, tag, "self-> variables may, and int x[5] is an array")


def _step_variable(
    node: tree.PrefixNode | tree.PostfixNode, scope: Scope, check: Check, *, post: bool
) -> typed.Expr:
    """Check ++ or -- of a variable. A variable without a type becomes an int64_t of value 0, as in
    libdtrace.

    Args:
        post: whether the operator is after its operand, so that the result is the old value.
    """
    reference = reference_to_change(node.operand, node.op, scope, check)
    variable = scope.variables.get(reference.name)
    if variable is None:
        new_keys = _checked_keys(reference, scope, check)
        variable = scope.variables.get(reference.name)
        variable = variable or _create(reference, typedef("int64_t"), new_keys, scope)
    type_, span = scope.types.defined(variable.type), node.span
    by = step_of(node, type_, scope.environment.strsize)
    if reference.keys is None:
        return typed.Step(type_, span, variable, by, post)
    keys = _keys_of(reference, variable, scope, check)
    return typed.KeyedStep(type_, span, variable, keys, by, post)


def _assign_variable(node: tree.AssignmentNode, scope: Scope, check: Check) -> typed.Expr:
    """Check `variable = value` or `variable op= value`. The first assignment gives a variable its
    type.
    """
    reference = reference_to_change(node.left, node.op, scope, check)
    span = node.span
    keys: tuple[typed.Expr, ...] = ()
    variable = scope.variables.get(reference.name)
    if variable is not None:
        keys = _keys_of(reference, variable, scope, check) if reference.keys is not None else ()
        value = _assignable(check(node.right, scope), reference, scope, check)
        if node.op != "=":
            old = _old(reference, variable, keys)
            old = replace(old, type=scope.types.defined(old.type))
            value = compound(node.op, old, value, span)
        return _stored(
            reference, variable, keys, assigned(value, variable.type, node.op, span), span
        )
    scope.begin_assignment(reference.name)
    if node.op != "=":
        raise scope.unknown(reference.name, reference.span)
    written = _checked_keys(reference, scope, check)
    value = _assignable(check(node.right, scope), reference, scope, check)
    scope.end_assignment()
    type_ = StringType() if is_string(value.type) else value.type
    if isinstance(type_, VoidType):
        raise incompatible(type_, "=", value.type, span)
    # The right-hand side may have created the variable: x = x++.
    variable = scope.variables.get(reference.name) or _create(reference, type_, written, scope)
    keys = _keys_of(reference, variable, scope, check) if reference.keys is not None else ()
    return _stored(reference, variable, keys, converted(value, type_, "=", span), span)


def _assignable(
    value: typed.Expr, reference: VariableReference, scope: Scope, check: Check
) -> typed.Expr:
    """Convert a value to a form that a variable can hold.

    A pointer to a translated structure can be held only by a clause-local variable, because the
    structure exists only until the clause ends. Raises DError D_OP_DYN for any other variable.
    """
    if isinstance(value, Translation) and isinstance(value.type, PointerType):
        if reference.scope != "this":
            message = f"a translation to {value.type} may not be assigned to {reference.name}"
            hint = f"assign xlate < {value.type.to} > (...), which copies the structure"
            raise DError(message, value.span, "D_OP_DYN", hint)
        return as_pointer(value, scope, check)
    return as_structure(value, scope, check)


def assigned(value: typed.Expr, type_: DType, op: str, span: Span) -> typed.Expr:
    """Convert a value for an assignment to a variable of `type_`. The constant 0, which frees a
    string variable, stays as it is.
    """
    if is_string(type_) and is_zero(value) and op == "=":
        return value
    return converted(value, type_, op, span)


def _old(
    reference: VariableReference, variable: typed.Variable, keys: tuple[typed.Expr, ...]
) -> typed.Expr:
    if reference.keys is None:
        return typed.GlobalRead(variable.type, reference.span, variable)
    return typed.OldValue(variable.type, reference.span, variable)


def _stored(
    reference: VariableReference,
    variable: typed.Variable,
    keys: tuple[typed.Expr, ...],
    value: typed.Expr,
    span: Span,
) -> typed.Expr:
    if reference.keys is None:
        return typed.Assign(variable.type, span, variable, value)
    return typed.KeyedAssign(variable.type, span, variable, keys, value)


def compound(op: str, old: typed.Expr, value: typed.Expr, span: Span) -> typed.Expr:
    """Return the new value of a compound assignment, such as old + value for +=. Raises DError.

    Args:
        op: the assignment's operator, such as "+=".
    """
    if op in ("+=", "-="):
        if is_string(old.type) or is_string(value.type):
            raise incompatible(old.type, op, value.type, span)
        both = is_integer(old.type) and is_integer(value.type)
        if not both and (not isinstance(old.type, PointerType) or is_void_pointer(old.type)):
            message = f"operator {op} requires left-hand scalar operand of known size"
            raise DError(message, span, "D_OP_VFPTR")
        if not is_integer(value.type):
            raise incompatible(old.type, op, value.type, span)
    return operate(op[:-1], old, value, span, shown=op)


_ARRAYS = ("regs", "args", "uregs")  # built-in arrays, whose elements are not in memory


def _is_memory(node: tree.ExprNode, scope: Scope) -> bool:
    """Return whether the operand of an assignment or ++ is an lvalue in memory, rather than a
    variable or an element of an array variable.
    """
    if reference_of(node, scope) is not None:
        return False
    if isinstance(node, tree.PrefixNode):
        return node.op == "*"
    if isinstance(node, tree.IndexNode):
        base = node.base
        named = isinstance(base, tree.NameNode) and base.name in _ARRAYS
        return not named and not isinstance(base, tree.AggregationNode) and not is_inline_array(
            base, scope
        )  # fmt: skip
    if isinstance(node, tree.NameNode):
        return "`" in node.name
    return isinstance(node, tree.MemberNode)


def _stored_lvalue(
    node: tree.ExprNode, op: str, scope: Scope, check: Check
) -> typed.Load | typed.BitField:
    """Check an operand that is stored to, and return it as an lvalue. A char array is returned as a
    string. Raises DError D_OP_LVAL and the errors of expressions.
    """
    lvalue = members.char_array_of(check(node, scope))
    if isinstance(lvalue, typed.Load) and isinstance(lvalue.type, ArrayType):
        whole = lvalue.type
        if is_char(whole.of) and whole.count:
            return typed.Load(StringType(whole.count), lvalue.span, lvalue.address)
    fixed = isinstance(lvalue.type, ArrayType | FunctionType)
    if fixed or not isinstance(lvalue, typed.Load | typed.BitField):
        message = f"operator {op} requires modifiable lvalue as an operand"
        raise DError(message, node.span, "D_OP_LVAL")
    return lvalue


def _store_to(
    node: tree.ExprNode,
    lvalue: typed.Load | typed.BitField,
    value: typed.Expr,
    post: bool,
) -> typed.Expr:
    bit, bits = (lvalue.bit, lvalue.bits) if isinstance(lvalue, typed.BitField) else (0, 0)
    root = root_of(lvalue.address)
    variable = root.variable if isinstance(root, typed.GlobalRead | typed.KeyedRead) else None
    address = lvalue.address
    if variable is None or not variable.is_dynamic:
        return Store(lvalue.type, node.span, address, value, bit, bits, post, variable)
    if root is not None and isinstance(root.type, StringType):
        message = f"characters of {variable.name} cannot be assigned"
        raise DError(message, node.span, "D_UNKNOWN", "use a global or this-> variable")
    assert root is not None
    address = _from_root(address)
    return Store(lvalue.type, node.span, address, value, bit, bits, post, variable, root)


def _from_root(address: typed.Expr) -> typed.Expr:
    """Return a copy of the address of a part of a structure, with a BaseAddress in place of the
    expression that reads the whole structure (self->s, a[key], or a translated structure). So the
    generated code finds the structure only once.
    """
    if isinstance(address.type, StructType):
        return BaseAddress(PointerType(address.type), address.span)
    if isinstance(address, typed.Cast | Shared):
        return replace(address, operand=_from_root(address.operand))
    assert isinstance(address, typed.Binary)
    return replace(address, left=_from_root(address.left))


def _assign_memory(node: tree.AssignmentNode, scope: Scope, check: Check) -> typed.Expr:
    """Check `lvalue = value` or `lvalue op= value` for an lvalue in memory. The generated code
    computes the address once.
    """
    lvalue = _stored_lvalue(node.left, node.op, scope, check)
    value = as_structure(check(node.right, scope), scope, check)
    if node.op != "=":
        old = Before(scope.types.defined(lvalue.type), node.left.span)
        value = compound(node.op, old, value, node.span)
    if isinstance(lvalue.type, StringType) and is_zero(value):
        value = typed.StrConst(StringType(1), value.span, b"")
    return _store_to(node, lvalue, converted(value, lvalue.type, node.op, node.span), False)


def _step_memory(
    node: tree.PrefixNode | tree.PostfixNode, scope: Scope, check: Check, *, post: bool
) -> typed.Expr:
    """Check ++ or -- of an lvalue in memory. Raises DError D_OP_SCALAR, D_OP_VFPTR.

    Args:
        post: whether the operator is after its operand, so that the result is the old value.
    """
    lvalue = _stored_lvalue(node.operand, node.op, scope, check)
    type_, span = scope.types.defined(lvalue.type), node.span
    old = Before(type_, node.operand.span)
    number = constant(step_of(node, type_, scope.environment.strsize), type_, span)
    return _store_to(node, lvalue, typed.Binary(type_, span, "+", old, number), post)


def assignment(node: tree.AssignmentNode, scope: Scope, check: Check) -> typed.Expr:
    """Check an assignment to anything but an aggregation; return its typed tree."""
    assign = _assign_memory if _is_memory(node.left, scope) else _assign_variable
    return assign(node, scope, check)


def step(
    node: tree.PrefixNode | tree.PostfixNode, scope: Scope, check: Check, *, post: bool
) -> typed.Expr:
    """Check ++ or -- of any operand; return its typed tree.

    Args:
        post: whether the operator is after its operand, so that the result is the old value.
    """
    change = _step_memory if _is_memory(node.operand, scope) else _step_variable
    return change(node, scope, check, post=post)
