"""Addresses to names, as dtrace(1) prints them: module`function+0x13."""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.target import Personality


def symboliser(personality: Personality | None) -> Callable[[int], str]:
    """A function from an address to module`function+offset, or to hexadecimal outside of all."""

    def symbolise(address: int) -> str:
        function = personality.function_at(address) if personality is not None else None
        if function is None:
            return f"{address:#x}"
        offset = address - function.address
        return f"{function.module}`{function.name}" + (f"+{offset:#x}" if offset else "")

    return symbolise
