"""Expansion of probes that D libraries declare to the probes at which they fire.

A library (`provider NAME { ... };` in NAME.d) declares probes that fire at other probes. Such a
declaration has the arguments of the other probes (the inputs), the arguments of the library's own
probe (the outputs), and descriptions of the other probes:

    probe wakeup(struct thread *t) : (lwpsinfo_t *t, psinfo_t *t) = fbt::wake:entry;

If this is in sched.d, a clause of sched:::wakeup becomes a clause of fbt::wake:entry. In it,
args[1] is replaced by xlate < psinfo_t * > ((struct thread *)arg0), and the name of the probe is
still sched:::wakeup (ProbePattern.library). The function in this name is the kernel's function in
which the probe fires: sched:vmlinux:wake:wakeup.

A library may declare a probe several times, for different kernels. kinst uses all declarations
whose inputs have the types that the traced kernel has there. If two of these describe the same
probe of the kernel, kinst uses this description only in the first of them.

Tested by tests/sugar/test_library_probes.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import chain

from kinst.core.dataclass import dataclass
from kinst.core.dialect import Library
from kinst.core.dtypes import DType
from kinst.core.errors import DError, KinstError
from kinst.core.probe import LibraryProbe, ProbeName
from kinst.core.types import KERNEL, TypeSource
from kinst.dlang.check.library import provider_of
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.unparse import unparse_type
from kinst.dlang.types.conversions import same
from kinst.dlang.types.program_types import Types
from kinst.dlang.vocabulary.type_names import STARTS_TYPE
from kinst.dlang.walk import replaced
from kinst.providers import argument_types, interfaces

_GLOB = re.compile(r"[*?\[]")
_ARGUMENT = re.compile(r"arg([0-9])\Z")
_INT64 = "int64_t"


@dataclass(frozen=True, slots=True)
class _Declared:
    """All declarations of one probe of a library."""

    name: ProbeName
    versions: tuple[tree.ProbeDeclarationNode, ...]


class LibraryProbes:
    """Probes that fire at other probes, as D libraries declare them. Programs may declare such
    probes themselves, in the same form.
    """

    def __init__(
        self,
        programs: Sequence[tree.ProgramNode],
        libraries: Callable[[], Sequence[Library]],
        types: TypeSource | None,
    ) -> None:
        """Begin without reading a library.

        Args:
            programs: all programs of the request.
            libraries: returns the D libraries of the system and of the user.
            types: the types of the traced kernel; None if there is no kernel.
        """
        self._libraries, self._types = libraries, types
        self._own = {
            item.name: item
            for program in programs
            for item in program.items
            if isinstance(item, tree.ProviderNode) and _is_over_others(item)
        }

    def expand(self, program: tree.ProgramNode) -> tree.ProgramNode:
        """Return a program in which each description of a library's probe is replaced by
        descriptions of the probes at which the library's probe fires.

        Raises DError D_PDESC_ZERO or D_PDESC_INVAL for a probe that the library does not declare,
        or that this system or kernel does not have.
        """
        items: list[tree.ItemNode] = []
        for item in program.items:
            if isinstance(item, tree.ClauseNode):
                items += self._clause(item)
            elif not isinstance(item, tree.ProviderNode) or item.name not in self._own:
                items.append(item)
        changed = len(items) != len(program.items) or any(
            a is not b for a, b in zip(items, program.items, strict=True)
        )
        return replace(program, items=tuple(items)) if changed else program

    def _clause(self, clause: tree.ClauseNode) -> list[tree.ClauseNode]:
        """Return the clauses that replace a clause. The first has those descriptions that may match
        probes of kinst's own providers; if there are none, it is left out. Then come one or more
        clauses for each probe of a library that a description matches.
        """
        plain: list[tree.DescriptionNode] = []
        clauses: dict[tuple[ProbeName, str], list[tree.ClauseNode]] = {}
        for one in clause.descriptions:
            found = list(self._matching(one))
            if not found or _names_own(one.pattern.provider):
                plain.append(one)
            failure: DError | None = None
            for declared in found:
                alone = len(found) == 1 and one.pattern.name == declared.name.name
                try:
                    key = declared.name, one.pattern.function
                    clauses.setdefault(key, self._made(clause, one, declared, alone))
                except DError as error:
                    failure = failure or error
            if failure and not (clauses or plain):
                raise failure
        if not clauses:
            return [clause]
        rest = [replace(clause, descriptions=tuple(plain))] if plain else []
        return [*rest, *chain.from_iterable(clauses.values())]

    def _matching(self, description: tree.DescriptionNode) -> Iterator[_Declared]:
        """Yield the probes of libraries that a description matches.

        A description without a provider matches probes of libraries only if it has no module, and
        no probe of kinst's own providers has its name. A function in a description is compared
        later, when the sites are known.
        """
        pattern = description.pattern
        if pattern.id or pattern.library or pattern.provider in interfaces():
            return
        if pattern.module and not fnmatchcase(KERNEL, pattern.module):
            exact = pattern.provider and not _GLOB.search(pattern.provider)
            if exact and next(self._named(pattern.provider), None) is not None:
                message = f"probe description {pattern} does not match any probes"
                hint = (
                    f"probes of {pattern.provider} have no module but {KERNEL}:"
                    f" {pattern.provider}::{pattern.function}:{pattern.name}"
                )
                raise DError(message, description.span, "D_PDESC_ZERO", hint)
            return
        if not pattern.provider and (pattern.module or not _may_be_library_s(pattern.name)):
            return
        for provider in self._named(pattern.provider or "*"):
            names = dict.fromkeys(_name(probe) for probe in provider.probes)
            matched = [name for name in names if fnmatchcase(name, pattern.name or "*")]
            if not matched and pattern.provider == provider.name:
                message = f"probe description {pattern} does not match any probes"
                near = get_close_matches(pattern.name, names, 1)
                hint = f"probes of {provider.name}: {', '.join(names)}"
                if near:
                    hint = f"did you mean {provider.name}:::{near[0]}?"
                raise DError(message, description.span, "D_PDESC_ZERO", hint)
            for name in matched:
                versions = tuple(one for one in provider.probes if _name(one) == name)
                yield _Declared(ProbeName(provider.name, KERNEL, "", name), versions)

    def _named(self, pattern: str) -> Iterator[tree.ProviderNode]:
        """Yield the providers, of the program and of libraries, whose names match a glob."""
        own = [one for name, one in self._own.items() if fnmatchcase(name, pattern)]
        yield from own
        for library in self._libraries():
            if library.provider not in self._own and fnmatchcase(library.provider, pattern):
                provider = provider_of(library)
                if provider is not None:
                    yield provider

    def _made(
        self,
        clause: tree.ClauseNode,
        description: tree.DescriptionNode,
        declared: _Declared,
        alone: bool,
    ) -> list[tree.ClauseNode]:
        """Return the clauses that replace a clause for one probe of a library. There is one for
        each of the probe's declarations that fit the traced kernel. Raises DError if none fits, or
        if the clause uses an argument that the probe does not have.

        Args:
            description: the clause's description that matches the probe.
            alone: whether the description names this probe; False if a glob matches it.
        """
        marked = LibraryProbe(declared.name, alone, description.pattern.function)
        return [
            self._of_version(clause, description, probe, marked)
            for probe in self._versions(description, declared)
        ]

    def _of_version(
        self,
        clause: tree.ClauseNode,
        description: tree.DescriptionNode,
        probe: tree.ProbeDeclarationNode,
        marked: LibraryProbe,
    ) -> tree.ClauseNode:
        """Return the clause that replaces a clause for one declaration of a library's probe. Raises
        DError if the clause uses an argument that the probe does not have.

        Args:
            clause: the clause that has the description.
            description: the description that matches the library's probe.
            probe: the declaration.
            marked: the library's probe, under whose name the new clause fires.
        """
        body = _Body(marked.name, probe)
        marked = replace(marked, types=body.types)
        predicate = None if clause.predicate is None else body.of(clause.predicate)
        if probe.predicate is not None:
            own = body.inputs(probe.predicate)
            predicate = own if predicate is None else tree.InfixNode(
                predicate.span, "&&", own, predicate
            )  # fmt: skip
        return replace(
            clause,
            descriptions=tuple(
                replace(one, pattern=replace(one.pattern, library=marked), span=description.span)
                for one in probe.descriptions
            ),
            predicate=predicate,
            statements=tuple(map(body.of, clause.statements)),
        )

    def _versions(
        self, description: tree.DescriptionNode, declared: _Declared
    ) -> list[tree.ProbeDeclarationNode]:
        """Return the declarations of a library's probe that fit the traced kernel, each without the
        probe descriptions that an earlier one has as well. A declaration with refuse() does not
        fit. Without a kernel, return only the first declaration that fits.

        Raises DError with the reason if no declaration fits.
        """
        reason, taken = "", set[str]()
        versions: list[tree.ProbeDeclarationNode] = []
        for version in declared.versions:
            texts = {one.pattern.text for one in version.descriptions}
            if version.descriptions and texts <= taken:
                continue
            why = version.refusal or self._misfit(version)
            reason = reason or why
            if why:
                continue
            rest = [one for one in version.descriptions if one.pattern.text not in taken]
            versions.append(replace(version, descriptions=tuple(rest)))
            taken |= texts
            if self._types is None:  # nothing is known of later declarations
                break
        if not versions:
            message = f"there is no {declared.name}: {reason}"
            raise DError(message, description.span, "D_PDESC_ZERO")
        return versions

    def _misfit(self, version: tree.ProbeDeclarationNode) -> str:
        """Return why a declaration does not fit the traced kernel: the kernel does not have one of
        the functions that it describes, or a described probe has too few arguments or an argument
        of another type. "" if the declaration fits.

        Also "" if kinst cannot tell: there is no kernel, a description has a glob, or the types of
        a described probe's arguments are not known.
        """
        inputs = version.inputs.parameters
        if self._types is None:
            return ""
        for one in version.descriptions:
            try:
                types = argument_types(one.pattern, self._types)
            except KinstError as error:
                return error.message
            if types is None:
                continue
            text = one.pattern.text
            if len(types) < len(inputs):
                return f"{text} has {len(types)} arguments in this kernel, not {len(inputs)}"
            for number, (parameter, type_) in enumerate(zip(inputs, types, strict=False)):
                if not self._is_type(parameter.type, type_):
                    return f"argument {number} of {text} is of type {type_} in this kernel"
        return ""

    def _is_type(self, written: tree.TypeNode, type_: DType) -> bool:
        """Return whether a type in a declaration is compatible with a type of the kernel."""
        try:
            return same(Types(self._types).resolve(written), type_)
        except KinstError:
            return False


def probe_names(libraries: Iterable[Library]) -> list[ProbeName]:
    """Return the names of all probes that D libraries declare.

    Raises DError for a syntax error in a library.
    """
    providers = filter(None, map(provider_of, libraries))
    declared = [
        (provider.name, _name(probe)) for provider in providers for probe in provider.probes
    ]
    return [ProbeName(provider, KERNEL, "", name) for provider, name in dict.fromkeys(declared)]


def _is_over_others(provider: tree.ProviderNode) -> bool:
    return any(probe.is_over_others for probe in provider.probes)


def _name(probe: tree.ProbeDeclarationNode) -> str:
    return probe.name.replace("__", "-")


def _names_own(provider: str) -> bool:
    """Return whether a glob of providers matches the name of one of kinst's own providers."""
    return bool(provider) and any(fnmatchcase(one, provider) for one in interfaces())


def _may_be_library_s(name: str) -> bool:
    """Return whether a description that has only a name may mean a library's probe: the name begins
    with a letter, and no probe of kinst's own providers has it.
    """
    own = [glob for one in interfaces().values() for glob in (*one.plain, *one.returns, "entry")]
    return name[:1].isalpha() and not any(fnmatchcase(name, glob) for glob in own)


class _Body:
    """Rewriter of a clause's expressions for one declaration of a library's probe. The rewriter
    replaces the arguments of the library's probe (outputs) by expressions over the arguments of the
    probe that the declaration describes (inputs).
    """

    def __init__(self, name: ProbeName, probe: tree.ProbeDeclarationNode) -> None:
        self._name = name
        self._inputs = {
            one.name: (k, one.type) for k, one in enumerate(probe.inputs.parameters) if one.name
        }
        outputs = probe.outputs if probe.outputs is not None else probe.inputs
        self._outputs = outputs.parameters

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the library's probe's args[], as D writes them."""
        return tuple(unparse_type(one.type) for one in self._outputs)

    def of(self, node: tree.ExprNode) -> tree.ExprNode:
        """Return an expression of the clause in which args[N] and arg0 to arg9 are replaced by the
        arguments of the library's probe (outputs).
        """
        return replaced(node, self._argument)

    def inputs(self, node: tree.ExprNode) -> tree.ExprNode:
        """Return an expression of the declaration in which the names of inputs are replaced by arg0
        to arg9.
        """
        return replaced(node, self._input)

    def _argument(self, node: object) -> tree.ExprNode | None:
        if isinstance(node, tree.NameNode) and (match := _ARGUMENT.match(node.name)):
            number = int(match[1])
            if number >= len(self._outputs):
                raise self._no_argument(node, node.name, "D_ARGS_NONE")
            value, _ = self._value(number)
            return tree.CastNode(node.span, tree.TypeNode((_INT64,), 0, node.span), value)
        if not isinstance(node, tree.IndexNode) or not isinstance(node.base, tree.NameNode):
            return None
        if node.base.name != "args" or len(node.arguments) != 1:
            return None
        index = node.arguments[0]
        if not isinstance(index, tree.IntegerNode):
            return None
        if not index.literal.value < len(self._outputs):
            raise self._no_argument(node, f"args[{index.literal.value}]", "D_ARGS_IDX")
        type_ = self._outputs[index.literal.value].type
        value, source = self._value(index.literal.value)
        if source is not None and _alike(source, type_):
            return value
        if type_.stars == 1 and len(type_.words) == 1 and type_.words[0] not in STARTS_TYPE:
            return tree.XlateNode(node.span, replace(type_, span=node.span), value)
        if type_.words == ("string",):
            return value
        return tree.CastNode(node.span, replace(type_, span=node.span), value)

    def _no_argument(self, node: tree.ExprNode, text: str, tag: str) -> DError:
        most = len(self._outputs)
        hint = f"it has {most}" if most else "it has no arguments"
        return DError(f"{text} means nothing at {self._name}", node.span, tag, hint)

    def _value(self, number: int) -> tuple[tree.ExprNode, tree.TypeNode | None]:
        """Return an expression for an argument of the library's probe, and the expression's type.

        A declaration gives an output either as the name of an input, or as `type = value`, with a D
        expression as value. In the second case the returned type is None.

        Args:
            number: index of the argument, from 0.
        """
        output = self._outputs[number]
        if output.value is not None:
            return self.inputs(output.value), None
        if output.name not in self._inputs:
            message = f"parameter is not declared in probe input prototype: {output.name}"
            raise DError(message, output.span, "D_DECL_PROTO_FORM", "type = value gives a value")
        return self.inputs(tree.NameNode(output.span, output.name)), self._inputs[output.name][1]

    def _input(self, node: object) -> tree.ExprNode | None:
        if isinstance(node, tree.NameNode) and node.name in self._inputs:
            number, type_ = self._inputs[node.name]
            argument: tree.ExprNode = tree.NameNode(node.span, f"arg{number}")
            if type_.words[-1] in ("bool", "_Bool") and not type_.stars:
                # Only the low byte of a bool is passed (System V psABI).
                argument = tree.CastNode(
                    node.span, tree.TypeNode(("uint8_t",), 0, node.span), argument
                )
            return tree.CastNode(node.span, type_, argument)
        return None


def _alike(left: tree.TypeNode, right: tree.TypeNode) -> bool:
    return (left.words, left.stars, left.derived) == (right.words, right.stars, right.derived)
