"""Instruction sets (ISAs), one file or folder each; only this package uses disassemblers.

An instruction set is a module or package in this package that has a value `ISA`. kinst finds an
instruction set by the name of the file or folder, so nothing else lists them (core/isa.py).

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from kinst.core.errors import KinstError
from kinst.core.members import member_names

if TYPE_CHECKING:
    from kinst.core.isa import Isa
    from kinst.core.registers import RegisterNames


def names() -> tuple[str, ...]:
    """Return the names of all instruction sets, sorted."""
    return tuple(name for name in member_names(__path__) if not name.startswith("_"))


def load(name: str) -> Isa:
    """Import and return the instruction set with this name. Raises KinstError if no instruction set
    has the name, or a Python package that it needs is missing."""
    _check(name)
    isa: Isa = importlib.import_module(f"{__name__}.{name}").ISA
    return isa


def load_later(name: str) -> Isa:
    """Return the instruction set with this name. If it is a package, return a stand-in that imports
    the package's modules when they are used.

    Raises KinstError if no instruction set has the name.
    """
    _check(name)
    package = importlib.import_module(f"{__name__}.{name}")
    return cast("Isa", _LaterIsa(name)) if hasattr(package, "__path__") else load(name)


class _LaterIsa:
    """Stand-in for an instruction set. `name` imports nothing; `board` and the attributes of
    RegisterNames import one module each. Any other attribute imports the whole instruction set,
    which takes a tenth of a second."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return an attribute, and set it, so that this method is not called for it again."""
        if attribute == "board":
            value: Any = importlib.import_module(f"{__name__}.{self.name}.board")
        else:
            named: Any = load_registers(self.name)
            value = getattr(named if hasattr(named, attribute) else load(self.name), attribute)
        setattr(self, attribute, value)
        return value


def load_registers(name: str) -> RegisterNames:
    """Return the register names of the instruction set with this name. If the instruction set is a
    package, only its module `registers` is imported.

    Raises KinstError if no instruction set has the name.
    """
    _check(name)
    package = importlib.import_module(f"{__name__}.{name}")
    if not hasattr(package, "__path__"):
        return load(name)
    named: RegisterNames = importlib.import_module(f"{__name__}.{name}.registers").NAMED
    return named


def _check(name: str) -> None:
    """Raise KinstError unless an instruction set has this name; the hint names similar ones."""
    every_name = names()
    if name not in every_name:
        close = get_close_matches(name, every_name, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(every_name)}"
        raise KinstError(f"no instruction set is called {name!r}", hint)


def name_of_machine(machine: int) -> str:
    """Return the name of the instruction set for an ELF file's e_machine; "" if kinst has none for
    it.

    Each package's value ELF_MACHINE is compared. If a package has no such value, its ISA is
    imported for the comparison.
    """
    for name in names():
        package = importlib.import_module(f"{__name__}.{name}")
        known = getattr(package, "ELF_MACHINE", None)
        if machine == (package.ISA.elf_machine if known is None else known):
            return name
    return ""


def register_hint(isa: RegisterNames, name: str) -> str:
    """Return a hint for a register name that D does not know; "" if there is no hint.

    If the name is another spelling of a register of `isa`, the hint says what to type in D. If the
    name is a register of another instruction set, the hint names that instruction set. If functions
    take an argument in that register, the hint also names the register of `isa` for the same
    argument.

    Args:
        isa: registers of the traced kernel's instruction set.
        name: the register as the user typed it, in another tool's spelling (rdx, %rdx, X2).
    """
    bare = name.removeprefix("R_").lstrip("%").upper()
    if d_name := _named_register(isa, bare):
        return f"in D: regs[{d_name}]"
    for other in (load_registers(one) for one in names() if one != isa.name):
        foreign = _named_register(other, bare)
        if not foreign:
            continue
        slot = next(r.slot for r in other.registers if r.d_name == foreign)
        same = ""
        if slot in other.argument_slots:
            number = other.argument_slots.index(slot)
            if number < len(isa.argument_slots):
                at = isa.argument_slots[number]
                here = next(r.d_name for r in isa.registers if r.slot == at)
                same = f"; argument {number} of a function is in {here} here"
        return f"{foreign} is a register of {other.name}, this kernel is {isa.name}{same}"
    return ""


def _named_register(isa: RegisterNames, bare: str) -> str:
    """Return the D name of a register of this instruction set; "" if it has no such register.

    Args:
        bare: the name in D or gdb, in upper case and without R_.
    """
    names_of = {one.gdb_name.upper(): one.d_name for one in reversed(isa.registers)}
    names_of |= {one.d_name.removeprefix("R_"): one.d_name for one in isa.registers}
    return names_of.get(bare, "")
