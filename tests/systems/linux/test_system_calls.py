"""Functions of Linux's system calls, against the kernel's own table and the headers for programs
(asm/unistd_64.h, asm/ptrace-abi.h)."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from kinst.core.layout import ARGUMENT_POINTED, ARGUMENT_SLOT
from kinst.core.probe import Argument, pointed_at
from kinst.core.system import SystemCall
from kinst.image.btf import open_btf
from kinst.image.elf import Elf, open_elf
from kinst.image.function_table import FunctionTable
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from kinst.systems.linux.isafacts import CallNames, facts_of
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.system import MODULE, PADDING
from kinst.systems.linux.system_calls import calls_of_kernel, system_calls

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


@dataclass(frozen=True)
class FileMemory:
    """The memory of a kernel that runs where it was linked, as its file has it."""

    elf: Elf

    def read(self, address: int, size: int) -> bytes:
        return self.elf.read(address, size)


def calls_in_file(isa: str, folder: Path) -> tuple[Elf, list[SystemCall]]:
    kernel = prepared_kernel(isa)
    if kernel is None:
        pytest.fail(f"no {isa} kernel is there: run `make setup-all`")
    elf = open_elf(kernel.debug)
    btf = open_btf(elf, folder)
    assert btf is not None
    memory = LinuxMemory(FileMemory(elf), elf, 0)  # type: ignore[arg-type]
    table = FunctionTable(elf, 0, MODULE, PADDING)
    return elf, calls_of_kernel(memory, table, btf, facts_of(isa), load(isa))


def test_results_are_selected_by_the_numbers_of_the_header(tmp_path: Path) -> None:
    _, calls = calls_in_file("amd64", tmp_path)
    text = (HEADERS / "unistd_64.h").read_text()
    numbers = {name: int(n) for name, n in re.findall(r"#define __NR_(\w+) (\d+)", text)}
    native = {call.name: call for call in calls if call.module == "vmlinux"}
    assert len(native) > 300 and len(set(native) & set(numbers)) > 250
    for name, call in native.items():
        (result,) = call.results
        assert numbers.get(name, result.selection.values[0]) in result.selection.values, name
    assert {value for c in native.values() for value in c.results[0].selection.values} >= {
        number for name, number in numbers.items() if name in native
    }
    compat = {call.name for call in calls if call.module == "compat"}
    assert {"ioctl", "read", "socketcall"} <= compat and "getpid" not in compat
    ending = {name for name, call in native.items() if call.never_returns}
    assert ending == {"exit", "exit_group"}


def test_results_are_known_where_they_are_stored_or_after_that(tmp_path: Path) -> None:
    """At the only store of rax in pt_regs that comes after a call, if it has room for a jump, and
    otherwise where the kernel leaves for the program, in binutils' disassembly."""
    elf, calls = calls_in_file("amd64", tmp_path)
    (place,) = {r.address for c in calls for r in c.results if c.module == "vmlinux"}
    words = ["objdump", "-d", "--no-show-raw-insn", "--disassemble=do_syscall_64", str(elf.path)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = [line for line in out.splitlines() if re.match(r" *[0-9a-f]+:", line)]
    at = [int(line.split(":")[0], 16) for line in lines]
    (store,) = [
        k + 1
        for k, (before, line) in enumerate(pairwise(lines))
        if re.search(r"\tmov +%rax,0x50\(%r\w+\)", line) and "\tcall " in before
    ]
    if at[store + 1] - at[store] < 5:
        (store,) = [k for k, line in enumerate(lines) if "<syscall_exit_to_user_mode>" in line]
    assert at[store] == place


def test_functions_of_older_kernels_have_the_arguments_themselves(prepared: Prepared) -> None:
    """Arguments follow the C calling convention if there is no structure of registers."""
    elf = open_elf(prepared.debug)
    table = FunctionTable(elf, 0, MODULE, PADDING)
    layouts = (CallNames("no_such_prefix_", (("di", 0),)), CallNames("ksys_", ()))
    found = {c.name: c for c in system_calls(table, None, layouts, SLOTS)}  # type: ignore[arg-type]
    assert found["read"].function.name == "ksys_read"
    assert found["read"].arguments == tuple(Argument(ARGUMENT_SLOT, slot) for slot in SLOTS[:6])
