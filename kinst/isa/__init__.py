"""Rank 1: one file or folder for each instruction set; the only user of the disassembler.

An instruction set is a module (or package) of this package that has a value `ISA`: it is
found by its name, so adding one is adding one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kinst.core.errors import KinstError

if TYPE_CHECKING:
    from kinst.core.isa import Isa


def names() -> tuple[str, ...]:
    """Names of every instruction set there is, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(name: str) -> Isa:
    """The instruction set called `name`.  Raises KinstError when there is none."""
    known = names()
    if name not in known:
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
        raise KinstError(f"no instruction set is called {name!r}", hint)
    isa: Isa = importlib.import_module(f"{__name__}.{name}").ISA
    return isa


def of_machine(machine: int) -> Isa | None:
    """The instruction set of an ELF file's e_machine, or None when there is none."""
    for name in names():
        isa: Isa | None = getattr(importlib.import_module(f"{__name__}.{name}"), "ISA", None)
        if isa is not None and isa.elf_machine == machine:
            return isa
    return None
