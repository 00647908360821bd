"""Addresses to names, as dtrace(1) prints them: module`function+0x13, module`variable."""

from __future__ import annotations

from dataclasses import replace

from kinst.consumer.symbols import NO_NAMES, Names, Symbol
from kinst.core.paths import cache_folder
from kinst.core.target import Personality
from kinst.image.dwarf.index import Index, open_saved
from kinst.session.user import user_names
from kinst.session.values import TracedMachine


def _symbol(personality: Personality, address: int) -> Symbol | None:
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

    slide = personality.facts.slide
    opened: list[Index | None] = []

    def copies(address: int) -> list[str]:
        """Of the kernel proper, when its index was made before: it is never made for this."""
        if not opened:
            opened.append(open_saved(traced.debug, cache_folder()) if traced.debug else None)
        index = opened[0]
        if index is None:
            return []
        return [c.function for c in index.copies_at(address - slide & (1 << 64) - 1)]

    return Names(kernel, user_names(traced.programs), copies)
