"""The fbt provider: entries and returns of functions (Dynamic Tracing Guide, ch. 20).

fbt::<function>:entry is at the first instruction. arg0 to arg9 are the function's arguments by the
C calling convention.

fbt::<function>:return is one probe with several sites: every instruction by which control leaves
the function. These are returns, and jumps to other functions (tail calls); a conditional jump fires
the probe only if it is taken. A function includes its .cold part. arg0 is the offset of the
instruction in the function, arg1 the returned value. At a tail call, this value is not known yet:
reading arg1 there is an error (dtrace:::ERROR).

Functions may be globs, or left out: `fbt:::entry` and `:::entry` match every function of the
kernel. But `:::` matches no function: `-l -n :::` lists only the probes that exist without a
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kinst.core.dtypes import INT, DType, VoidType
from kinst.core.errors import KinstError
from kinst.core.instruction import Flow, Instruction
from kinst.core.kernel import Exits, Found, Kernel, Provider, no_function
from kinst.core.layout import (
    ARGUMENT_CONSTANT,
    ARGUMENT_NONE,
    ARGUMENT_SLOT,
    ARGUMENT_STACK,
    ARGUMENTS,
)
from kinst.core.probe import Argument, Function, ProbeInterface, ProbeName, ProbePattern, Site
from kinst.core.stability import stability_of
from kinst.core.types import TypeSource
from kinst.core.words import COLD, stem_of

if TYPE_CHECKING:
    from kinst.core.isa import Isa

NAMES = ("entry", "return")
WORD = 8


def entry_site(function: Function, kernel: Kernel) -> Instruction | None:
    """Return a function's first instruction or, if that is a landing pad (endbr64, bti), the next
    one, because a landing pad cannot be displaced. Return None if no instruction decodes."""
    isa = kernel.isa
    return next(
        (
            one
            for one in kernel.beginning(function)
            if isa.flow(one.code, one.address).kind != "landing"
        ),
        None,
    )


def entry_probe_site(function: Function, kernel: Kernel) -> Instruction | None:
    """Return the instruction at which to plant a function's entry probe; None if no instruction of
    the function decodes.

    Usually, this is entry_site(). With -x plant=no-callsite, kinst does not plant the instruction
    that calls the kernel's own function tracer. If entry_site() is that instruction, return the
    first instruction after it, which runs as often.

    If a branch of the function leads to this later instruction, it may run more often. Then return
    entry_site(), which kinst will refuse to plant.
    """
    first = entry_site(function, kernel)
    if first is None or not kernel.left_to_tracer([(first.address, len(first.code))])[0]:
        return first
    later = [one for one in kernel.beginning(function) if one.address > first.address]
    left = kernel.left_to_tracer([(one.address, len(one.code)) for one in later])
    for one, is_left in zip(later, left, strict=True):
        if not is_left:
            parts = kernel.parts(function)
            targets = {flow.target for part in parts for flow in kernel.flows(part)}
            return first if one.address in {*targets, *kernel.computed(parts)} else one
    return first


def entry_arguments(isa: Isa) -> tuple[Argument, ...]:
    """Return where arg0 to arg9 are at a function's first instruction, by the C calling
    convention."""
    registers = [Argument(ARGUMENT_SLOT, slot) for slot in isa.argument_slots]
    return (*registers, *(
        Argument(ARGUMENT_STACK, isa.stack_arguments + WORD * k)
        for k in range(ARGUMENTS - len(registers))
    ))  # fmt: skip


def ways_out(exits: Exits, kernel: Kernel) -> Iterator[tuple[Function, Instruction, str, bool]]:
    """Yield every instruction by which control leaves a function, for the function's return probe.

    Args:
        exits: the function's parts, and the instructions by which control may leave them.

    Yields:
        (part, instruction, condition, has_result): the part of the function that has the
            instruction (such as its cold part), the instruction, the condition in D on which
            control leaves ("" for always), and whether the function's result is known at the
            instruction.
    """
    parts = exits.parts
    start = entry_site(parts[0], kernel)
    starts = {parts[0].address, start.address if start else parts[0].address}
    for part, instruction, flow in exits.leaving:
        condition = leaves(flow, instruction.end, parts, starts)
        if condition is not None:
            yield part, instruction, condition, flow.kind == "return"


def sites(
    probe: ProbeName,
    function: Function,
    kernel: Kernel,
    entry: tuple[Argument, ...],
    exits: Exits | None,
) -> Iterator[Found]:
    """Yield a function's entry or return probe at each of its sites.

    Args:
        probe: full name of the probe; its last part is "entry" or "return".
        entry: where arg0, arg1, ... are at the function's first instruction.
        exits: instructions by which control may leave the function; None for an entry probe.
    """
    if probe.name == "entry":
        first = entry_probe_site(function, kernel)
        if first is not None:
            site = Site(function, first.address - function.address, first.code)
            yield Found(probe, site, arguments=entry)
        return
    assert exits is not None
    result = Argument(ARGUMENT_SLOT, kernel.isa.result_slot), Argument(ARGUMENT_NONE)
    for part, one, condition, has_result in ways_out(exits, kernel):
        site = Site(part, one.address - part.address, one.code)
        constant = Argument(ARGUMENT_CONSTANT, one.address - function.address)
        arguments = (constant, result[not has_result])
        yield Found(probe, site, arguments=arguments, condition=condition)


def leaves(flow: Flow, end: int, parts: Sequence[Function], starts: set[int]) -> str | None:
    """Return the condition, in D, on which an instruction leaves its function: "" if it always
    does, None if it never does.

    Args:
        flow: where control goes from the instruction.
        end: the address after the instruction.
        parts: all parts of the function, such as its cold part.
        starts: addresses to which a jump counts as leaving the function, because it is a tail call
            of the function itself: the address of the first instruction and, if that is a landing
            pad, of the next one.
    """

    def outside(address: int) -> bool:
        return not any(p.address <= address < p.address + p.size for p in parts)

    if flow.kind == "return":
        return ""
    if flow.kind == "indirect":
        place = flow.destination
        return " && ".join(
            f"({place} < {p.address:#x} || {place} >= {p.address + p.size:#x})" for p in parts
        ) if place else ""  # fmt: skip
    target = flow.target if flow.kind in ("jump", "branch") else None
    taken = target is not None and (target in starts or outside(target))
    # A function in assembly may fall through into the next one, but not after a call or a trap.
    falls_through = flow.kind in ("next", "branch", "landing") and outside(end)
    if not taken and not falls_through:
        return None
    if flow.kind != "branch" or (taken and falls_through):
        return ""
    return flow.condition if taken else flow.otherwise


class FbtProvider(Provider):
    """The provider of entry and return probes of functions of the running kernel, found by its
    symbols and live text."""

    name = "fbt"
    names_functions = True
    stability = stability_of(
        "Evolving/Evolving/Common", "Private/Private/Unknown", "Private/Private/ISA",
        "Evolving/Evolving/Common", "Private/Private/ISA",
    )  # fmt: skip
    interface = ProbeInterface(returns=("return",), of_functions=True)
    usage = "fbt::FUNCTION:entry and fbt::FUNCTION:return name functions, fbt:::entry all"

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        """Return the types of args[] at the probe that a description names; None if the description
        does not name one function and one probe of it.

        At entry, these are the types of the function's parameters. At return, they are the type of
        the offset and, unless the function is void, the type of the result.

        Raises KinstError if the kernel's types do not have the function.
        """
        name = pattern.function.split("@")[0]
        plain = name and not any(c in pattern.function + pattern.module for c in "*?[")
        if pattern.provider not in ("", self.name) or not plain or pattern.name not in NAMES:
            return None
        signature = types.function(name, pattern.module)
        if signature is None and stem_of(name) not in ("", name):
            raise KinstError(
                f"the compiler has made {name} of {stem_of(name)} and may have removed parameters",
                "locals->NAME is a parameter by its name",
            )
        if signature is None:
            raise KinstError(f"the kernel's types have no function {name}")
        if pattern.name == "entry":
            return signature.parameters
        return (INT,) if isinstance(signature.result, VoidType) else (INT, signature.result)

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Sequence[Found]:
        if pattern.provider not in ("", self.name) or kernel is None or str(pattern) == ":::":
            return []
        names = [n for n in NAMES if fnmatchcase(n, pattern.name or "*")]
        if not names:
            return []
        glob = not pattern.function or any(c in pattern.function for c in "*?[")
        functions = kernel.find(pattern.module, pattern.function or "*")
        if not functions and not glob:
            raise no_function(kernel, pattern.module, pattern.function)
        if glob:
            functions = [f for f in functions if COLD not in f.name]
        kernel.fetch(functions)
        entry = entry_arguments(kernel.isa)
        exits = kernel.exits(functions) if "return" in names else [None] * len(functions)
        return [
            one
            for f, leaving in zip(functions, exits, strict=True)
            for n in names
            for one in sites(ProbeName(self.name, f.module, f.name, n), f, kernel, entry, leaving)
        ]


PROVIDER = FbtProvider()
