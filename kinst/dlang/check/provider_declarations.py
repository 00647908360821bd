"""provider declarations: the interface of a provider, checked as libdtrace does (dt_parser.c,
dt_decl.c) and kept for what the program says of it elsewhere.

They describe probes that a program carries itself.  kinst traces no such programs, so a
declaration makes no probe: as in dtrace(1) without the program, descriptions that name one match
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.core.dtypes import DType, VoidType
from kinst.core.errors import DError, Span
from kinst.dlang.check.scope import Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import is_integer, is_string_like, same

MOST_PARAMETERS = 255
LONGEST_PROVIDER = 63  # DTRACE_PROVNAMELEN - 1
LONGEST_PROBE = 63  # DTRACE_NAMELEN - 1
# What a program may declare anew of the providers that are there: the probes without arguments.
_OF_DTRACE = ("BEGIN", "END")

Interface = Mapping[str, tuple[Sequence[DType], Sequence[DType] | None]]


def declare_provider(node: tree.Provider, scope: Scope) -> None:
    """Note the probes of a provider.  Raises DError D_PROV_BADNAME, D_PROV_PRDUP,
    D_PROV_PRARGLEN, D_PROV_PRXLATOR, D_PROV_INCOMPAT, D_DECL_PROTO_* and those of types."""
    _check_name("provider", node.name, LONGEST_PROVIDER, node.span)
    if node.name[-1].isdigit():
        message = f"provider name may not end with a digit: {node.name}"
        raise DError(message, node.span, "D_PROV_BADNAME", "the process's id is put behind it")
    known = _known(node.name, scope)
    made: dict[str, tuple[Sequence[DType], Sequence[DType] | None]] = {}
    for probe in node.probes:
        name = probe.name.replace("__", "-")
        _check_name("probe", name, LONGEST_PROBE, probe.span)
        inputs, outputs = _prototypes(probe, name, scope)
        if known is not None:
            _compare(node.name, name, known, (inputs, outputs), probe.span)
        elif name in made:
            message = f"probe redeclared: {node.name}:::{name}"
            raise DError(message, probe.span, "D_PROV_PRDUP")
        _check_translators(node.name, name, probe, scope)
        made[name] = inputs, outputs
    if known is None:
        scope.declared_providers[node.name] = made


def _check_name(kind: str, name: str, longest: int, span: Span) -> None:
    if "`" in name:
        message = f"{kind} name may not contain scoping operator: {name}"
        raise DError(message, span, "D_PROV_BADNAME")
    if len(name) > longest:
        message = f"{kind} name may not exceed {longest} characters: {name}"
        raise DError(message, span, "D_PROV_BADNAME")


def _known(name: str, scope: Scope) -> Interface | None:
    """The probes of a provider that is there already, None where there is none of this name."""
    if name in scope.declared_providers:
        return scope.declared_providers[name]
    if name not in scope.environment.providers:
        return None
    return dict.fromkeys(_OF_DTRACE, ((), None)) if name == "dtrace" else {}


def _prototypes(
    probe: tree.ProbeDeclaration, name: str, scope: Scope
) -> tuple[Sequence[DType], Sequence[DType] | None]:
    inputs = _types(probe.inputs, probe.inputs, "probe input", probe.span, scope)
    outputs: Sequence[DType] | None = None
    if probe.outputs is not None:
        outputs = _types(probe.outputs, probe.inputs, "probe output", probe.span, scope)
    for kind, types in (("input", inputs), ("output", outputs or ())):
        if len(types) > MOST_PARAMETERS:
            message = (
                f"probe {name} {kind} prototype exceeds {MOST_PARAMETERS} parameters:"
                f" {len(types)} params used"
            )
            raise DError(message, probe.span, "D_PROV_PRARGLEN")
    return inputs, outputs


def _types(
    given: tree.Prototype, formal: tree.Prototype, kind: str, span: Span, scope: Scope
) -> Sequence[DType]:
    """The types of a prototype; formal: the one with the parameters that may be named."""
    found: list[DType] = []
    names: set[str] = set()
    formals = {p.name for p in formal.parameters if p.name}
    for number, one in enumerate(given.parameters, 1):
        type_ = scope.resolve(one.type)
        found.append(type_)
        void = isinstance(type_, VoidType)
        if void and one.name:
            message = f"void parameter may not have a name: {one.name}"
            raise DError(message, one.span, "D_DECL_PROTO_NAME")
        if one.name:
            wrong = one.name in names if given is formal else one.name not in formals
            if wrong:
                how = "already" if given is formal else "not"
                message = f"parameter is {how} declared in {kind} prototype: {one.name}"
                message += f", parameter #{number}"
                raise DError(message, one.span, "D_DECL_PROTO_FORM")
            names.add(one.name)
        elif not void and given is not formal:
            message = f"parameter declaration requires a name: parameter #{number}"
            raise DError(message, one.span, "D_DECL_PROTO_NAME")
    if given.variadic:
        message = f"{kind} prototype may not use a variable-length argument list"
        raise DError(message, span, "D_DECL_PROTO_VARARGS")
    if any(isinstance(t, VoidType) for t in found):
        if len(found) > 1:
            raise DError("void must be sole parameter", span, "D_DECL_PROTO_VOID")
        return ()
    return found


def _compare(
    provider: str,
    name: str,
    known: Interface,
    now: tuple[Sequence[DType], Sequence[DType] | None],
    span: Span,
) -> None:
    """Raise DError D_PROV_INCOMPAT unless a probe declared anew is as it was."""
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
    provider: str, name: str, probe: tree.ProbeDeclaration, scope: Scope
) -> None:
    """Raise DError D_PROV_PRXLATOR where an output is not what its input is nor made of it."""
    inputs = {p.name: scope.resolve(p.type) for p in probe.inputs.parameters if p.name}
    given = probe.outputs.parameters if probe.outputs is not None else ()
    for number, one in enumerate(given, 1):
        if one.name not in inputs:
            continue
        source, made = inputs[one.name], scope.resolve(one.type)
        if _alike(source, made):
            continue
        target = getattr(made, "to", made)
        if any(same(t.source, source) and same(t.made, target) for t in scope.translators):
            continue
        message = (
            f"translator for {provider}:::{name} output argument #{number} from {source} to"
            f" {made} is not defined"
        )
        raise DError(message, one.span, "D_PROV_PRXLATOR")


def _alike(source: DType, made: DType) -> bool:
    """Whether an argument of one type may be passed as one of the other."""
    both_integers = is_integer(source) and is_integer(made)
    both_strings = is_string_like(source) and is_string_like(made)
    return both_integers or both_strings or same(source, made)
