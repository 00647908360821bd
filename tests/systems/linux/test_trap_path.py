"""Functions that a riscv64 kernel executes between a breakpoint and kinst's hook, and after it.

A breakpoint in them would never end, so it is refused.  objdump of the entry code shows which
functions those are.
"""

from __future__ import annotations

import re
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from kinst.image.elf import open_elf
from kinst.image.function_table import FunctionTable
from kinst.kernels.fetch import Prepared, prepare, prepared
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.refusals import KernelRules
from kinst.systems.linux.riscv64 import LINUX
from kinst.systems.linux.system import MODULE, PADDING
from kinst.systems.linux.tables import KernelTables

pytestmark = pytest.mark.vm  # it needs a kernel


def called(kernel: Prepared) -> set[str]:
    """Return the functions that the ways into an exception and out of it call directly."""
    found = set[str]()
    for part in ("handle_exception", "ret_from_exception"):
        command = ["riscv64-linux-gnu-objdump", f"--disassemble={part}", str(kernel.debug)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found.update(re.findall(r"\bjalr\t.*<(\w+)>$", shown, re.M))
    return found


@pytest.mark.parametrize(
    ("asked", "least"), [("", 1), pytest.param("7.2", 3, marks=pytest.mark.slow)]
)
def test_what_the_entry_code_calls_is_refused(asked: str, least: int) -> None:
    kernel = prepared("riscv64", asked) or prepare("riscv64", lambda what, part: None, asked)
    elf = open_elf(kernel.debug)
    unread: Any = SimpleNamespace()
    table = FunctionTable(elf, 0, MODULE, PADDING)
    refusals = KernelRules(LinuxMemory(unread, elf, 0), KernelTables(elf, 4), table, unread, LINUX)
    names = called(kernel)
    assert len(names) >= least, names
    planted = {
        name for name in names for function in table.lookup(name)
        if not refusals.function(function)
    }  # fmt: skip
    assert not planted
