"""The instruction set riscv64 (RV64GC); kinst.isa finds it by its name.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

ELF_MACHINE = 243  # EM_RISCV


def __getattr__(name: str) -> Any:
    """Import the value ISA when it is first used (PEP 562), since checking a program needs
    registers.py alone."""
    if name != "ISA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.isa").ISA
