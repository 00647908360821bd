"""Checker of declarations of variables, types and providers (Dynamic Tracing Guide, "Variables",
"Statically Defined Tracing"; errors as in libdtrace's dt_decl.c and dt_parser.c).

A provider declaration describes probes that a user program contains. kinst checks the declaration
but makes no probes from it. A probe description that names such a probe matches nothing, as in
dtrace(1) while the user program is not running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kinst.core.dtypes import ArrayType, DType, StructType, VoidType
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.check.scope import Scope
from kinst.dlang.check.variables import no_clause_local_array
from kinst.dlang.syntax import tree
from kinst.dlang.types.conversions import (
    is_declaration,
    is_integer,
    is_scalar,
    is_string,
    is_string_like,
    same,
)

MOST_ELEMENTS = 1 << 20


def declare_type(node: tree.TypeDeclarationNode, scope: Scope) -> None:
    """Check and add a declaration of a structure, an enumeration or a typedef.

    Raises DError D_DECL_IDRED if a variable has the same name, and the errors of Types.declare().
    """
    if node.name and _is_global(node.name, scope):
        message = f"global variable identifier redeclared: {node.name}"
        raise DError(message, node.span, "D_DECL_IDRED")
    body = node.type.body
    for enumerator in body.enumerators if isinstance(body, tree.EnumBodyNode) else ():
        if scope.kind_of(enumerator.name) is not None or _is_global(enumerator.name, scope):
            raise DError(
                f"identifier redeclared: {enumerator.name}", enumerator.span, "D_DECL_IDRED"
            )
    scope.types.declare(node)


def _is_global(name: str, scope: Scope) -> bool:
    return name in scope.variables or name in scope.inlines


def declare(
    node: tree.DeclarationNode, scope: Scope, check: Callable[[tree.ExprNode, Scope], typed.Expr]
) -> None:
    """Check and add a declaration of a variable.

    Raises DError D_DECL_IDRED, D_DECL_VOIDOBJ, D_DECL_INCOMPLETE, D_DECL_LOCASSC, D_DECL_ARRSUB,
    D_DECL_ARRBIG, D_DECL_PROTO_TYPE and the errors of type names.
    """
    type_ = scope.resolve(node.type)
    if node.scope == "extern":
        _declare_only(node.name, type_, node.span, scope)
        return
    name = f"{node.scope}->{node.name}" if node.scope else node.name
    taken = scope.kind_of(name) is not None or name in scope.environment.registers
    if scope.types.is_typedef(name):
        raise DError(f"typedef identifier redeclared: {name}", node.span, "D_DECL_IDRED")
    if taken or name in scope.inlines:
        kind = "built-in identifier" if taken else "identifier"
        raise DError(f"{kind} redeclared: {name}", node.span, "D_DECL_IDRED")
    if isinstance(type_, VoidType):
        raise DError(f"cannot have void object: {name}", node.span, "D_DECL_VOIDOBJ")
    if isinstance(type_, StructType) and is_declaration(scope.types.lookup(type_)):
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


def _array(
    node: tree.DeclarationNode, type_: ArrayType, length: int, name: str
) -> tuple[DType, int]:
    """Return element type and number of elements of a variable that is declared as `foo_t x` or
    `foo_t x[5]`, where foo_t is an array type. Raises DError D_UNKNOWN.

    Args:
        type_: the array type, foo_t.
        length: number of elements in the declarator, 5 for x[5]; 0 for x.
        name: name of the variable, for messages.
    """
    if node.keys is None and not length and type_.count:
        type_of, length = type_.of, type_.count
        if not isinstance(type_of, ArrayType):
            return type_of, length
        type_ = type_of
    if node.keys is not None or node.scope == "self" or not length or not type_.count:
        message = f"{name} may not be of type {type_}"
        hint = "arrays of arrays are global or this->; or use a key for each dimension"
        raise DError(message, node.span, "D_UNKNOWN", hint)
    return type_, length


def _declare_only(name: str, type_: DType, span: Span, scope: Scope) -> None:
    """Check an extern declaration against earlier extern declarations of the same name, and keep
    its type for later checks. Raises DError D_DECL_IDRED.

    An extern declaration makes no variable. It does not declare a symbol of the kernel either: a
    program writes a backquote before the name of such a symbol.
    """
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


def _keys(node: tree.DeclarationNode, name: str, scope: Scope) -> tuple[DType, ...]:
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
    node: tree.DeclarationNode, scope: Scope, check: Callable[[tree.ExprNode, Scope], typed.Expr]
) -> int:
    """Return the number of elements in the declaration of a scalar array, such as 5 for `int a[5]`;
    0 for the declaration of any other variable. Raises DError D_DECL_ARRSUB, D_DECL_ARRBIG.
    """
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


MOST_PARAMETERS = 255

LONGEST_PROVIDER = 63  # DTRACE_PROVNAMELEN - 1

LONGEST_PROBE = 63  # DTRACE_NAMELEN - 1

Interface = Mapping[str, tuple[Sequence[DType], Sequence[DType] | None]]


def declare_provider(node: tree.ProviderNode, scope: Scope) -> None:
    """Check and add a declaration of a provider and its probes.

    Raises DError D_PROV_BADNAME, D_PROV_PRDUP, D_PROV_PRARGLEN, D_PROV_PRXLATOR, D_PROV_INCOMPAT,
    D_DECL_PROTO_* and the errors of types.
    """
    _check_provider_name("provider", node.name, LONGEST_PROVIDER, node.span)
    if node.name[-1].isdigit():
        message = f"provider name may not end with a digit: {node.name}"
        raise DError(message, node.span, "D_PROV_BADNAME", "dtrace(1) adds the process's id to it")
    existing = _known_probes(node.name, scope)
    interface: dict[str, tuple[Sequence[DType], Sequence[DType] | None]] = {}
    for probe in node.probes:
        name = probe.name.replace("__", "-")
        _check_provider_name("probe", name, LONGEST_PROBE, probe.span)
        inputs, outputs = _prototypes(probe, name, scope)
        if existing is not None:
            _compare_probe(node.name, name, existing, (inputs, outputs), probe.span)
        elif name in interface:
            message = f"probe redeclared: {node.name}:::{name}"
            raise DError(message, probe.span, "D_PROV_PRDUP")
        _check_translators(node.name, name, probe, scope)
        interface[name] = inputs, outputs
    if existing is None:
        scope.declared_providers[node.name] = interface


def _check_provider_name(kind: str, name: str, longest: int, span: Span) -> None:
    if "`" in name:
        message = f"{kind} name may not contain scoping operator: {name}"
        raise DError(message, span, "D_PROV_BADNAME")
    if len(name) > longest:
        message = f"{kind} name may not exceed {longest} characters: {name}"
        raise DError(message, span, "D_PROV_BADNAME")


def _known_probes(name: str, scope: Scope) -> Interface | None:
    """Return the probes of a provider that exists or was declared earlier; None for a new
    provider's name.
    """
    if name in scope.declared_providers:
        return scope.declared_providers[name]
    interface = scope.environment.providers.get(name)
    return None if interface is None else dict.fromkeys(interface.redeclared, ((), None))


def _prototypes(
    probe: tree.ProbeDeclarationNode, name: str, scope: Scope
) -> tuple[Sequence[DType], Sequence[DType] | None]:
    inputs = _prototype_types(probe.inputs, probe.inputs, "probe input", probe.span, scope)
    outputs: Sequence[DType] | None = None
    if probe.outputs is not None:
        outputs = _prototype_types(probe.outputs, probe.inputs, "probe output", probe.span, scope)
    for kind, types in (("input", inputs), ("output", outputs or ())):
        if len(types) > MOST_PARAMETERS:
            message = (
                f"probe {name} {kind} prototype exceeds {MOST_PARAMETERS} parameters:"
                f" {len(types)} params used"
            )
            raise DError(message, probe.span, "D_PROV_PRARGLEN")
    return inputs, outputs


def _prototype_types(
    prototype: tree.PrototypeNode, inputs: tree.PrototypeNode, kind: str, span: Span, scope: Scope
) -> Sequence[DType]:
    """Return the types of the parameters of a probe's prototype. Raises DError D_DECL_PROTO_*.

    Args:
        prototype: the prototype, of a probe's inputs or outputs.
        inputs: the prototype of the probe's inputs. Each output must have the name of an input.
        kind: "probe input" or "probe output", for messages.
    """
    types: list[DType] = []
    names: set[str] = set()
    formals = {p.name for p in inputs.parameters if p.name}
    for number, parameter in enumerate(prototype.parameters, 1):
        type_ = scope.resolve(parameter.type)
        types.append(type_)
        void = isinstance(type_, VoidType)
        if void and parameter.name:
            message = f"void parameter may not have a name: {parameter.name}"
            raise DError(message, parameter.span, "D_DECL_PROTO_NAME")
        if parameter.name:
            wrong = (
                parameter.name in names if prototype is inputs else parameter.name not in formals
            )
            if wrong:
                how = "already" if prototype is inputs else "not"
                message = f"parameter is {how} declared in {kind} prototype: {parameter.name}"
                message += f", parameter #{number}"
                raise DError(message, parameter.span, "D_DECL_PROTO_FORM")
            names.add(parameter.name)
        elif not void and prototype is not inputs:
            message = f"parameter declaration requires a name: parameter #{number}"
            raise DError(message, parameter.span, "D_DECL_PROTO_NAME")
    if prototype.variadic:
        message = f"{kind} prototype may not use a variable-length argument list"
        raise DError(message, span, "D_DECL_PROTO_VARARGS")
    if any(isinstance(t, VoidType) for t in types):
        if len(types) > 1:
            raise DError("void must be sole parameter", span, "D_DECL_PROTO_VOID")
        return ()
    return types


def _compare_probe(
    provider: str,
    name: str,
    known: Interface,
    now: tuple[Sequence[DType], Sequence[DType] | None],
    span: Span,
) -> None:
    """Check that a new declaration of a probe equals the probe's earlier declaration. Raises DError
    D_PROV_INCOMPAT.

    Args:
        known: the provider's probes in the earlier declaration.
        now: types of inputs and outputs in the new declaration.
    """
    if name not in known:
        message = (
            f"provider interface mismatch: {provider}: current: probe {provider}:::{name} defined,"
            f" previous: probe {provider}:::{name} not defined"
        )
        raise DError(message, span, "D_PROV_INCOMPAT")
    before = known[name]
    old_outputs, new_outputs = (
        made if made is not None else given for given, made in (before, now)
    )
    pairs = [("output", old_outputs, new_outputs)]
    if before[1] is not None and now[1] is not None:
        pairs.append(("input", before[0], now[0]))
    for kind, old, new in pairs:
        if len(old) != len(new):
            message = (
                f"probe {provider}:::{name} {kind} prototype mismatch: current: {len(new)} args,"
                f" previous: {len(old)} args"
            )
            raise DError(message, span, "D_PROV_INCOMPAT")
        for number, (was, is_) in enumerate(zip(old, new, strict=True), 1):
            if not same(was, is_):
                message = (
                    f"probe {provider}:::{name} {kind} prototype argument #{number} mismatch:"
                    f" current: {is_}, previous: {was}"
                )
                raise DError(message, span, "D_PROV_INCOMPAT")


def _check_translators(
    provider: str, name: str, probe: tree.ProbeDeclarationNode, scope: Scope
) -> None:
    """Check that each output of a probe can be made from the probe's input of the same name: the
    types are compatible, or the program has a translator from one to the other. Raises DError
    D_PROV_PRXLATOR.
    """
    inputs = {p.name: scope.resolve(p.type) for p in probe.inputs.parameters if p.name}
    outputs = probe.outputs.parameters if probe.outputs is not None else ()
    for number, parameter in enumerate(outputs, 1):
        if parameter.name not in inputs:
            continue
        source, type_ = inputs[parameter.name], scope.resolve(parameter.type)
        if _may_be_passed_as(source, type_):
            continue
        target = getattr(type_, "to", type_)
        if any(same(t.source, source) and same(t.target, target) for t in scope.translators):
            continue
        message = (
            f"translator for {provider}:::{name} output argument #{number} from {source} to"
            f" {type_} is not defined"
        )
        raise DError(message, parameter.span, "D_PROV_PRXLATOR")


def _may_be_passed_as(source: DType, target: DType) -> bool:
    """Return whether a value of type `source` may be passed for a parameter of type `target`."""
    both_integers = is_integer(source) and is_integer(target)
    both_strings = is_string_like(source) and is_string_like(target)
    return both_integers or both_strings or same(source, target)
