"""Clauses compile to plain riscv64 code: only instructions, and nothing to relocate."""

from __future__ import annotations

from collections.abc import Iterable

from kinst.codegen.code_machine import target_machine
from kinst.codegen.compile import ProgramEntries, compile_target
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core.dtypes import STRING, UINT64
from kinst.core.system import Access, Facts, PerCpu
from kinst.dlang import typed as t
from kinst.isa import load
from tests.codegen.codegen_rig import (
    BASE,
    BUILTINS,
    CLOCK,
    NOFAULT,
    builtin,
    integer,
    program,
    scratch,
    string,
)
from tests.codegen.codegen_rig import trace as trace_of

THREAD = {
    name: Access(None, (0x10,), access.size, access.signed, access.string, thread=True)
    for name, access in BUILTINS.items()
} | {"curthread": Access(None, (), 8, thread=True)}
FACTS = Facts(
    "Linux",
    "test",
    cpus=2,
    builtins=THREAD,
    nofault_read=NOFAULT,
    clock=CLOCK,
    per_cpu=PerCpu(None, "", "%tp"),
)
# 64-bit constants that LLVM would rather load from a section of their own.
VALUES = (0x123456789ABCDEF0, 0x8080808080808080, 11400714819323198485)


def words(code: bytes) -> Iterable[tuple[int, bytes]]:
    isa = load("riscv64")
    return ((i.address, i.code) for i in isa.decode(code, BASE))


def test_nothing_but_code() -> None:
    actions: list[t.Action] = [trace_of(integer(value, UINT64)) for value in VALUES]
    actions += [trace_of(builtin(name)) for name in ("timestamp", "pid", "curthread", "cpu")]
    actions += [trace_of(builtin("execname", STRING)), trace_of(string(b"text"))]
    made = program(actions)
    isa, places = load("riscv64"), scratch()
    layout = lay_out_program(made, [], 64, places.agg_size)
    entries = ProgramEntries(made, layout, [(0,)], (), BASE + places.sites)
    code = compile_target(entries, target_machine(isa, FACTS, places), BASE + places.text)
    found = list(words(code.code))
    assert sum(len(c) for _, c in found) == len(code.code)
    everything = [int.from_bytes(c, "little") for _, c in found]
    assert 0xC0102573 & ~0xF80 in {w & ~0xF80 for w in everything}  # rdtime, into any register
    moved = [w for w in everything if w & 0xF003 == 0x8002 and w >> 2 & 31 == 4]
    through_tp = [w for w in everything if w & 0x7F == 0x03 and w >> 15 & 31 == 4]
    assert moved or through_tp
