"""Addresses that only the traced kernel knows: of symbols, of a CPU, of a thread; and machines
that lack one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from kinst.codegen.code_machine import CodeMachine
from kinst.core.dtypes import CHAR, STRING, UINT64, PointerType
from kinst.core.errors import KinstError
from kinst.core.layout import STATE_ERRORS
from kinst.core.system import Access, PerCpu
from kinst.dlang import typed as t
from tests.codegen.codegen_rig import (
    BUILTINS,
    CPU_AT,
    GS_BASE,
    SPAN,
    TASK_AT,
    TargetRig,
    builtin,
    program,
    trace,
)

THREAD = GS_BASE + TASK_AT
JIFFIES, MAX = 0xFFFF_FFFF_8246_8000, (1 << 64) - 1
SYMBOLS = {("vmlinux", "jiffies"): JIFFIES, ("ext4", "jiffies"): MAX}


def machine_with(**fields: object) -> type[TargetRig]:
    class Changed(TargetRig):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), **fields)  # type: ignore[arg-type]

    return Changed


def traced(kind: type[TargetRig], *values: t.Expr) -> list[int]:
    run = kind(program([trace(value) for value in values]), {1: (0,)})
    run.fire(1)
    (record,) = run.records(0)
    return [int.from_bytes(run.fields(record, k)[0], "little") for k in range(len(values))]


def test_symbols_are_where_the_kernel_has_them() -> None:
    kind = machine_with(symbols=SYMBOLS)
    address = PointerType(CHAR)
    found = [t.SymbolAddress(address, SPAN, module, name) for module, name in SYMBOLS]
    assert traced(kind, *found) == [JIFFIES, MAX]
    for module, name in (("vmlinux", "tick"), ("xfs", "jiffies")):
        with pytest.raises(KinstError, match=f"the address of {module}`{name} is not known"):
            traced(kind, t.SymbolAddress(address, SPAN, module, name))


@pytest.mark.parametrize("per_cpu", [None, PerCpu(None)])
def test_a_machine_that_has_nothing_for_each_cpu(per_cpu: PerCpu | None) -> None:
    with pytest.raises(KinstError, match="addresses per-CPU data"):
        traced(machine_with(per_cpu=per_cpu), builtin("cpu"))
    builtins = BUILTINS | {"cpu": Access(None, (CPU_AT,), 4, address=GS_BASE)}
    thread = builtins | {"curthread": Access(None, (), 8, thread=True)}
    with pytest.raises(KinstError, match="knows no register in which"):
        traced(machine_with(per_cpu=per_cpu, builtins=thread), builtin("curthread"))


# By a segment register, and by the result of an instruction; the thread is in a register, too.
BASES = (PerCpu(256), PerCpu(None, f"movabsq $$0x{GS_BASE:x}, $0", f"movabsq $$0x{THREAD:x}, $0"))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("per_cpu", BASES)
def test_data_are_read_as_wide_as_they_are(per_cpu: PerCpu, size: int) -> None:
    """core/system.py Access: data of the CPU itself, at the end of a chain, at an address, of the
    thread."""
    places = {
        "pid": Access(0x700, (), size), "tid": Access(0x708, (0x10, 0x18), size),
        "uid": Access(None, (0x20,), size, address=THREAD),
        "gid": Access(None, (0x28, 0x18), size, thread=True),
    }  # fmt: skip
    if not per_cpu.thread_asm:
        del places["gid"]
    numbers = {name: 0xF1E2_D3C4_B5A6_9788 + k * 0x1111 for k, name in enumerate(places)}
    there = {
        GS_BASE + 0x700: numbers["pid"], GS_BASE + 0x708: THREAD, THREAD + 0x10: THREAD + 0x100,
        THREAD + 0x118: numbers["tid"], THREAD + 0x20: numbers["uid"],
        THREAD + 0x28: THREAD + 0x200, THREAD + 0x218: numbers.get("gid", 0),
    }  # fmt: skip

    class Kind(TargetRig):
        def target_machine(self) -> CodeMachine:
            builtins = {"cpu": BUILTINS["cpu"]} | places
            return replace(super().target_machine(), per_cpu=per_cpu, builtins=builtins)

        def start(self) -> None:
            super().start()
            for address, word in there.items():
                self.emulator.mem_write(address, struct.pack("<Q", word))

    found = traced(Kind, *(builtin(name, UINT64) for name in places))
    assert found == [number & (1 << 8 * size) - 1 for number in numbers.values()]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16])
def test_no_byte_behind_a_text_is_read(size: int) -> None:
    """A name fills its memory, without a NUL, at the end of the last page."""
    name = bytes(range(65, 65 + size))

    class Kind(TargetRig):
        def target_machine(self) -> CodeMachine:
            there = Access(None, (0x1000 - size,), size, string=True, address=GS_BASE)
            builtins = {"cpu": BUILTINS["cpu"], "execname": there}
            return replace(super().target_machine(), builtins=builtins)

        def start(self) -> None:
            super().start()
            self.emulator.mem_write(GS_BASE + 0x1000 - size, name)

    run = Kind(program([trace(builtin("execname", STRING))]), {1: (0,)})
    run.fire(1)
    (record,) = run.records(0)
    assert run.fields(record)[0].split(b"\0")[0] == name
    assert run.state(STATE_ERRORS, 0) == 0
