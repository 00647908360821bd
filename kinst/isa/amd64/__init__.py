"""The instruction set amd64 (x86-64); kinst.isa finds it by its name.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kinst.core.errors import KinstError

ELF_MACHINE = 62  # EM_X86_64


def __getattr__(name: str) -> Any:
    """Import the value ISA when it is first used (PEP 562), since checking a program needs
    registers.py alone."""
    if name != "ISA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f"{__name__}.isa").ISA
    except ModuleNotFoundError as error:
        if error.name != "iced_x86":
            raise
        raise KinstError(
            "to trace amd64 kernels and programs, kinst needs the Python package iced-x86",
            "pip install 'iced-x86>=1.21,<2', which needs Rust on hosts that are not x86-64",
        ) from None
