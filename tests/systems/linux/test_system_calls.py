"""Functions of Linux's system calls, against the kernel's own table and the headers for programs
(asm/unistd_64.h, asm/ptrace-abi.h)."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from kinst.core.layout import ARGUMENT_POINTED, ARGUMENT_SLOT
from kinst.core.probe import Argument, pointed_at
from kinst.image.btf import open_btf
from kinst.image.elf import open_elf
from kinst.image.function_table import FunctionTable
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.isafacts import CallNames, facts_of
from kinst.systems.linux.system import MODULE, PADDING
from kinst.systems.linux.system_calls import system_calls

HEADERS = Path("/usr/include/x86_64-linux-gnu/asm")
SLOTS = load("amd64").argument_slots


def test_the_functions_are_those_of_the_kernel_s_table(prepared: Prepared, tmp_path: Path) -> None:
    elf = open_elf(prepared.debug)
    btf = open_btf(elf, tmp_path)
    assert btf is not None
    table = FunctionTable(elf, 0, MODULE, PADDING)
    found = {c.name: c for c in system_calls(table, btf, facts_of("amd64").system_calls, SLOTS)}
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", (HEADERS / "unistd_64.h").read_text()))
    start = elf.address("sys_call_table")
    assert start is not None and numbers["read"] == "0"
    entries = {
        name: struct.unpack("<Q", elf.read(start + 8 * int(number), 8))[0]
        for name, number in numbers.items()
    }
    # Numbers without a call have these functions.
    nothing = table.lookup("__x64_sys_ni_syscall")[0].address
    there = {name: entry for name, entry in entries.items() if entry != nothing}
    assert len(there) > 250
    assert there == {name: found[name].function.address for name in there}
    assert "ni_syscall" not in found
    # Offsets at which programs that trace others find the registers (ptrace(2)).
    offsets = dict(re.findall(r"#define (R\w+) (\d+)", (HEADERS / "ptrace-abi.h").read_text()))
    order = [int(offsets[name]) for name in ("RDI", "RSI", "RDX", "R10", "R8", "R9")]
    assert found["read"].arguments == tuple(pointed_at(SLOTS[0], offset) for offset in order)
    assert found["read"].arguments[0].kind == ARGUMENT_POINTED


def test_functions_of_older_kernels_have_the_arguments_themselves(prepared: Prepared) -> None:
    """Arguments follow the C calling convention if there is no structure of registers."""
    elf = open_elf(prepared.debug)
    table = FunctionTable(elf, 0, MODULE, PADDING)
    layouts = (CallNames("no_such_prefix_", (("di", 0),)), CallNames("ksys_", ()))
    found = {c.name: c for c in system_calls(table, None, layouts, SLOTS)}  # type: ignore[arg-type]
    assert found["read"].function.name == "ksys_read"
    assert found["read"].arguments == tuple(Argument(ARGUMENT_SLOT, slot) for slot in SLOTS[:6])
