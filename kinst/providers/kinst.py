"""The kinst provider: a probe for each instruction that a description names (dtrace_kinst(4)).

kinst::<function>: means every instruction of the function. kinst::<function>:<offset> means the
instruction at that offset, in bytes from the function's start. Functions may be globs. A
description without the provider or without a function matches nothing, so `-l -P kinst` and `:::`
list no instructions.

Tested by tests/providers/test_providers.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from kinst.core.errors import AbsentError, KinstError
from kinst.core.kernel import Found, Kernel, Provider, no_function
from kinst.core.probe import Function, ProbeInterface, ProbeName, ProbePattern, Site
from kinst.core.stability import stability_of

# The hint for a description that asks for all instructions of the kernel.
EVERYWHERE = (
    "kinst::FUNCTION: names its instructions; kinst::*: those of all functions, which"
    " -x batch=10s plants in parts"
)
BATCH = 512  # functions that are decoded at once


def _offset(text: str, *, hexadecimal: bool = False) -> int | None:
    """Return the offset that a probe name stands for; None if the name is not a number.

    Args:
        text: the name; 0x before a number means a hexadecimal one.
        hexadecimal: whether numbers without 0x are hexadecimal, too.
    """
    try:
        return int(text, 16) if hexadecimal or text[:2] in ("0x", "0X") else int(text, 10)
    except ValueError:
        return None


def _nearest(function: Function, kernel: Kernel, offset: int, form: str) -> KinstError:
    """Return the error for an offset at which no instruction of a function starts. The message
    names the nearest instructions, the function's size, or the gap that contains the offset.

    Args:
        form: Python's format for an offset in the message.
    """
    instructions = kernel.instructions(function)
    offsets = [i.address - function.address for i in instructions]
    gap = next((g for g in kernel.gaps([function]) if g.offset <= offset < g.end), None)
    if gap is not None:
        return KinstError(
            f"{function.name}{offset:{form}} is not decoded: {gap}",
            f"the last instruction before it is {max(o for o in offsets if o < gap.offset):{form}}"
            if offsets and offsets[0] < gap.offset
            else "",
        )
    if not offsets:
        return KinstError(f"{function.name} has no instructions that decode")
    end = offsets[-1] + instructions[-1].size
    if offset < 0 or offset >= end:
        return KinstError(
            f"{function.name}{offset:{form}} is outside the function",
            f"it is {end} bytes long; its last instruction is {offsets[-1]:{form}}",
        )
    after = bisect_left(offsets, offset)
    near = [f"{o:{form}}" for o in offsets[max(0, after - 1) : after + 1]]
    are = "nearest are" if len(near) > 1 else "nearest is"
    return KinstError(
        f"{function.name}{offset:{form}} is inside an instruction",
        f"the {are} {' and '.join(near)}",
    )


class KinstProvider(Provider):
    """The provider of a probe for each instruction, found in the live text of the running
    kernel."""

    name = "kinst"
    names_functions = True
    stability = stability_of(
        "Evolving/Evolving/Common", "Private/Private/Unknown", "Private/Private/ISA",
        "Evolving/Evolving/Common", "Private/Private/ISA",
    )  # fmt: skip
    interface = ProbeInterface(all_plain=True, by_offset=True)
    usage = "kinst::FUNCTION: names all instructions, kinst::FUNCTION:OFFSET one"

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterable[Found]:
        if pattern.provider != self.name:
            return []
        if kernel is None and not pattern.function:
            raise AbsentError(f"{pattern} names no function", EVERYWHERE)
        if kernel is None or not pattern.function:
            return []
        functions = kernel.find(pattern.module, pattern.function)
        if not functions:
            if any(c in pattern.function for c in "*?["):
                return []
            raise no_function(kernel, pattern.module, pattern.function)
        return self._probes(pattern, functions, kernel)

    def _probes(
        self, pattern: ProbePattern, functions: Sequence[Function], kernel: Kernel
    ) -> Iterator[Found]:
        if pattern.name in ("entry", "return"):
            # In programs, kinst.sugar has replaced these names before.
            raise KinstError(
                f"{pattern.name} is no instruction of a function",
                f"fbt::{pattern.function}:{pattern.name}",
            )
        yield from instruction_probes(self.name, pattern.name, functions, kernel)


def instruction_probes(
    provider: str,
    name: str,
    functions: Sequence[Function],
    kernel: Kernel,
    *,
    hexadecimal: bool = False,
) -> Iterator[Found]:
    """Yield a probe for each instruction of functions at the offsets that a probe name means.
    Raises KinstError if there is only one function and it has no instruction at the offset.

    Args:
        provider: name of the provider in the probes' full names.
        name: an offset, a glob for offsets, or "" for all offsets.
        hexadecimal: whether the offsets in probe names are hexadecimal, without 0x. Otherwise, they
            are decimal.
    """
    offset = _offset(name, hexadecimal=hexadecimal) if name else None
    form = "x" if hexadecimal else "d"
    if offset is None:
        for low in range(0, len(functions), BATCH):
            yield from _all_of(provider, functions[low : low + BATCH], kernel, name, form)
        return
    for function in functions:
        instructions = kernel.instructions(function)
        address = function.address + offset
        exact = [i for i in instructions if i.address == address]
        if exact:
            named = ProbeName(provider, function.module, function.name, f"{offset:{form}}")
            yield Found(named, Site(function, offset, exact[0].code))
        elif len(functions) == 1:
            raise _nearest(function, kernel, offset, "+#x" if hexadecimal else "+d")


def _all_of(
    provider: str, functions: Sequence[Function], kernel: Kernel, glob: str, form: str
) -> Iterator[Found]:
    """Yield a probe for each instruction of the functions whose offset matches a glob.

    Args:
        provider: name of the provider in the probes' full names.
        glob: pattern for the offset as text; "" matches all offsets.
        form: Python's format that makes this text, "x" or "d".
    """
    scanned = kernel.columns(functions)
    bounds, row = scanned.bounds.tolist(), scanned.columns.code.tobytes()
    width = scanned.columns.code.shape[1]
    starts, sizes = scanned.columns.address.tolist(), scanned.columns.size.tolist()
    # Offsets and their texts. Functions share these objects, since most offsets occur in many.
    shared: dict[int, tuple[int, str]] = {}
    for function, low, high in zip(functions, bounds, bounds[1:], strict=False):
        for k in range(low, high):
            offset = starts[k] - function.address
            offset, text = shared.get(offset) or shared.setdefault(
                offset, (offset, f"{offset:{form}}")
            )
            if not glob or fnmatchcase(text, glob):
                name = ProbeName(provider, function.module, function.name, text)
                yield Found(name, Site(function, offset, row[width * k : width * k + sizes[k]]))


PROVIDER = KinstProvider()
