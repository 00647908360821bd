"""Flow of the instructions of several functions at once, against the flow of each function by
itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kinst.core.columns import FLOW_KINDS
from kinst.core.probe import Function
from kinst.isa import load
from kinst.session.kernel import RunningKernel
from tests.isa.gnu_assembler import assembled
from tests.patch.small_functions import SOURCES
from tests.tiers import ISAS

BASE = 0xFFFF_FFFF_8100_0000
MORE = {  # a warning that is fatal, one that is not, thunks, an access that may fault
    "amd64": """
.intel_syntax noprefix
endbr64; push rax; inc dword ptr [rax]; call rax; ud2; ud2; call thunk; je g; loop g; jrcxz g
g: jmp thunk
ret; iretq; int3; lea rax, [rip + g]; lea rax, [rax*8 + 0x100]; notrack jmp [rax*8 + 0x100]
.balign 64, 0xcc
thunk: jmp rax
""",
    "arm64": "nop; blr x1; br x2; bl g; brk #1; g: cbz x0, g; ret; eret",
    "riscv64": """
call far; tail far; auipc t1, 1; nop; jalr ra, 4(t1); c.jr ra; c.ebreak; beq a0, a1, .; ret; mret
.balign 4096
far: nop
""",
}


@dataclass
class Kernel:
    """The parts of a system and of a target that RunningKernel uses."""

    text: bytes
    thunk: int
    fixups: frozenset[int]
    fatal: frozenset[int]

    def code(self, address: int, size: int) -> bytes:
        return self.text[address - BASE : address - BASE + size]

    read = code

    def glob(self, pattern: str) -> list[Function]:
        found = Function("vmlinux", "__x86_indirect_thunk_rax", self.thunk, 2)
        return [found] if self.thunk and "indirect" in pattern else []

    def fixup(self, address: int) -> int | None:
        return BASE if address in self.fixups else None

    def is_fatal(self, address: int) -> bool:
        return address in self.fatal

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        return [""] * len(sites)


@pytest.mark.parametrize("name", ISAS)
def test_columns_say_the_same(name: str, tmp_path: Path) -> None:
    isa = load(name)
    first = assembled(name, SOURCES[name], tmp_path)
    (tmp_path / "more").mkdir()
    first += bytes(-len(first) % 64)
    text = first + assembled(name, MORE[name], tmp_path / "more")
    two = [
        Function("vmlinux", "f", BASE, len(first)),
        Function("vmlinux", "g", BASE + len(first), len(text) - len(first)),
    ]
    places = [one.address for one in isa.decode(text[len(first) :], two[1].address)]
    warnings = [at for at in places if text[at - BASE :][:2] == b"\x0f\x0b"]
    thunk = two[1].address + 64 if name == "amd64" else 0
    world = Kernel(text, thunk, frozenset(places[1:3]), frozenset(warnings[:1]))
    kernel = RunningKernel(world, world, isa)  # type: ignore[arg-type]
    scanned, flows = kernel.flow_columns(two)
    alone = [flow for function in two for flow in kernel.flows(function)]
    instructions = [one for function in two for one in kernel.instructions(function)]
    assert scanned.columns.address.tolist() == [one.address for one in instructions]
    kinds = [FLOW_KINDS[k] for k in flows.kind.tolist()]
    assert [kind.replace("landing", "next") for kind in kinds] == [
        flow.kind.replace("landing", "next") for flow in alone
    ]
    assert {"next", "branch", "call", "return"} <= set(kinds)
    assert flows.falls.tolist() == [flow.falls_through for flow in alone]
    assert flows.target.tolist() == [flow.target or 0 for flow in alone]
    assert flows.fault.tolist() == [flow.fault is not None for flow in alone]
    if name == "amd64":
        assert kinds.count("indirect") >= 3 and flows.falls[np.array(kinds) == "trap"].any()
        makers = isa.may_make_tables(scanned.columns)
        some = [one for one, may in zip(instructions, makers.tolist(), strict=True) if may]
        assert isa.jump_tables(some) == isa.jump_tables(instructions) != []
        assert len(some) < len(instructions)
