"""The kernel's types in a session: which files they come from, and where symbols are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.types import KERNEL, TypeSource
from kinst.dlang import typed
from kinst.dlang.walk import find
from kinst.image.debug_info import DebugFiles
from kinst.image.type_files import FileTypes, Places
from kinst.kernels.kmod import module_name
from kinst.session.modules import find_file
from kinst.session.request import Files
from kinst.session.values import TracedMachine

MASK = (1 << 64) - 1


def open_types(
    files: Callable[[], Files], folders: Callable[[], Sequence[Path]], debug: DebugFiles
) -> TypeSource:
    """The types of the traced kernel; no file is looked for before one is asked for.

    folders: where debug files of modules are.  debug: opens them."""

    def modules() -> Mapping[str, Path]:
        found = {module_name(path): path for path in files().modules}
        for name in found:
            debug = find_file(name, files().folders)
            found[name] = debug or found[name]
        return found

    def module_debug(name: str) -> Path | None:
        return find_file(name, folders())

    return FileTypes(Places(lambda: files().debug, modules, debug, module_debug))


def symbols_in(program: typed.Program) -> set[tuple[str, str]]:
    """(module, name) of the kernel's symbols that a program uses."""
    return {(symbol.module, symbol.name) for symbol in find(program, typed.SymbolAddress)}


def running_addresses(
    program: typed.Program, types: TypeSource | None, traced: TracedMachine
) -> dict[tuple[str, str], int]:
    """Where the symbols of a program are in the running kernel.

    Raises KinstError for a symbol of a module that is not loaded.
    """
    found: dict[tuple[str, str], int] = {}
    wanted = symbols_in(program)
    if not wanted or types is None or traced.personality is None:
        return found
    slide = traced.personality.facts.slide
    loaded = {m.name: m for m in traced.personality.modules()}
    for module, name in sorted(wanted):
        symbol = types.symbol(name, module)
        if symbol is None:
            continue
        if module == KERNEL:
            found[module, name] = symbol.address + slide & MASK
            continue
        sections = {s.name: s.address for s in loaded[module].sections} if module in loaded else {}
        if symbol.section not in sections:
            raise KinstError(
                f"{module}`{name}: module {module} is not loaded", f"--module {module}"
            )
        found[module, name] = sections[symbol.section] + symbol.address
    return found
