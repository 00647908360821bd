"""Addresses to names, as dtrace(1) prints them: module`function+0x13, module`variable."""

from __future__ import annotations

from dataclasses import replace

from kinst.consumer.symbols import NO_NAMES, Names, Symbol
from kinst.core.errors import KinstError
from kinst.core.inline import SourcePlace
from kinst.core.system import System
from kinst.session.user import user_names
from kinst.session.values import TracedMachine


def _symbol(personality: System, address: int) -> Symbol | None:
    """The function or the variable that holds an address of the kernel."""
    function = personality.function_at(address)
    if function is not None:
        return Symbol(function.module, function.name, function.address)
    variable = personality.variable_at(address)
    return None if variable is None else Symbol(*variable)


def names_of(traced: TracedMachine) -> Names:
    """Names for recorded addresses."""
    personality = traced.personality
    if personality is None:
        return NO_NAMES

    modules: dict[str, int] = {}

    def kernel(address: int) -> Symbol | None:
        found = _symbol(personality, address)
        if found is None:
            return None
        return replace(found, base=modules.setdefault(found.module, found.start))

    def copies(address: int) -> list[str]:
        """Of the kernel proper, when its index was made before: it is never made for this."""
        image = traced.images.kernel if traced.images is not None else None
        index = image.debug.made_index if image is not None else None
        linked = image.back(address) if image is not None else None
        if index is None or linked is None:
            return []
        return [c.function for c in index.copies_at(linked)]

    def place(module: str, address: int) -> SourcePlace | None:
        """From indexes that were made before, too; damaged ones say nothing."""
        try:
            return traced.images.place(module, address) if traced.images is not None else None
        except KinstError:
            return None

    return Names(kernel, user_names(traced.programs), copies, place)
