"""Flow of control: every branch against an emulator, other instructions against values written by
hand."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase

import pytest
import unicorn
from unicorn import x86_const as x86

from kinst.core.instruction import Flow, Instruction
from kinst.isa import load
from tests.fake_kernel import ISA, evaluate
from tests.tiers import draws

CODE = 0x10000
ARITHMETIC = 0x8D5  # CF PF AF ZF SF OF


def goes(code: bytes, flags: int, rcx: int) -> int:
    """Return where the emulator is after one instruction."""
    machine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    machine.mem_map(CODE & ~0xFFF, 0x2000)
    machine.mem_write(CODE + 0x100, code)
    machine.reg_write(x86.UC_X86_REG_EFLAGS, flags | 2)
    machine.reg_write(x86.UC_X86_REG_RCX, rcx)
    machine.emu_start(CODE + 0x100, CODE + 0x1000, count=1)
    return int(machine.reg_read(x86.UC_X86_REG_RIP))


FORMS = {
    **{f"jcc8 {c:x}": bytes((0x70 | c, 0x20)) for c in range(16)},
    **{f"jcc32 {c:x}": bytes((0x0F, 0x80 | c, 0x20, 0, 0, 0)) for c in range(16)},
    "jrcxz": b"\xe3\x20", "jecxz": b"\x67\xe3\x20", "loop": b"\xe2\x20",
    "loope": b"\xe1\x20", "loopne": b"\xe0\x20", "loop ecx": b"\x67\xe2\x20",
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("form", FORMS)
def test_branches_as_the_emulator_takes_them(form: str) -> None:
    code = FORMS[form]
    address = CODE + 0x100
    flow = ISA.flow(code, address)
    assert flow.kind == "branch" and flow.falls_through
    assert flow.target == address + len(code) + 0x20
    rng = random.Random(form)
    seen = set()
    for _ in range(draws(25, 60)):
        flags = rng.getrandbits(12) & ARITHMETIC
        rcx = rng.choice((0, 1, 2, 1 << 32, (1 << 32) + 1, (1 << 64) - 1))
        where = goes(code, flags, rcx)
        assert where in (flow.target, address + len(code))
        registers = {"RFL": flags | 2, "RCX": rcx}
        assert evaluate(flow.condition, registers) == (where == flow.target)
        assert evaluate(flow.otherwise, registers) == (where != flow.target)
        seen.add(where)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("code", "kind", "falls", "target"),
    [
        ("90", "next", True, None), ("4889e5", "next", True, None),
        ("f30f1efa", "landing", True, None),
        # Linux seals them with two forms; a nop of the assembler.
        ("660f1f00", "landing", True, None),
        ("0f1f40d6", "landing", True, None),
        ("0f1f4000", "next", True, None),
        ("e910000000", "jump", False, 0x1015), ("ebfe", "jump", False, 0x1000),
        ("2ee910000000", "jump", False, 0x1016),
        ("e810000000", "call", True, 0x1015), ("ffd0", "call", True, None),
        ("ff1500000000", "call", True, None),
        ("c3", "return", False, None), ("f3c3", "return", False, None),
        ("c20800", "return", False, None),
        ("48cf", "indirect", False, None), ("480f07", "indirect", False, None),
        ("0f0b", "trap", True, None), ("cc", "trap", False, None), ("0fb9c0", "trap", True, None),
        ("c5f877", "next", True, None), ("0f1f440000", "next", True, None),
    ],
)  # fmt: skip
def test_kinds(code: str, kind: str, falls: bool, target: int | None) -> None:
    flow = ISA.flow(bytes.fromhex(code), 0x1000)
    assert (flow.kind, flow.falls_through, flow.target) == (kind, falls, target)


@pytest.mark.parametrize(
    ("code", "destination"),
    [
        ("ffe0", "regs[R_RAX]"), ("41ffe3", "regs[R_R11]"), ("3effe2", "regs[R_RDX]"),
        ("ff642408", "*(uint64_t *)(regs[R_RSP] + 0x8)"),
        ("ff2425e0000000", "*(uint64_t *)(0xe0)"),
        ("ff24c5000000ff", "*(uint64_t *)(regs[R_RAX] * 8 + 0xffffffffff000000)"),
        ("42ff64a1f0", "*(uint64_t *)(regs[R_RCX] + regs[R_R12] * 4 + 0xfffffffffffffff0)"),
        ("ff25ff000000", "*(uint64_t *)(0x1105)"),
        ("65ff242500010000", ""), ("ff28", ""),
    ],
)  # fmt: skip
def test_destinations_of_indirect_jumps(code: str, destination: str) -> None:
    flow = ISA.flow(bytes.fromhex(code), 0x1000)
    assert (flow.kind, flow.destination) == ("indirect", destination)


@pytest.mark.parametrize(
    ("name", "kind", "destination"),
    [
        ("__x86_return_thunk", "return", ""), ("srso_alias_return_thunk", "return", ""),
        ("its_return_thunk", "return", ""),
        ("__x86_indirect_thunk_rax", "indirect", "regs[R_RAX]"),
        ("__x86_indirect_jump_thunk_r15", "indirect", "regs[R_R15]"),
    ],
)  # fmt: skip
def test_thunks(name: str, kind: str, destination: str) -> None:
    flow = ISA.thunk(name)
    assert flow is not None
    assert (flow.kind, flow.destination, flow.falls_through) == (kind, destination, False)
    assert any(fnmatchcase(name, pattern) for pattern in ISA.thunks)


@pytest.mark.parametrize("name", ["preempt_schedule_thunk", "__x86_indirect_thunk_array", "f"])
def test_what_is_no_thunk(name: str) -> None:
    assert ISA.thunk(name) is None


@pytest.mark.parametrize(
    ("upper", "lower", "flow"),
    [
        # __schedule() of Linux for riscv64: auipc ra, 0xffffc; jalr -676(ra) is a call of
        # __stack_chk_fail, by the addresses that objdump shows.
        ("97c0ffff", "e780c0d5", Flow("call", True, 0xFFFFFFFF80A69F76)),
        # The same with jalr x0: a tail call; with another register; after another instruction.
        ("97c0ffff", "6780c0d5", Flow("jump", False, 0xFFFFFFFF80A69F76)),
        ("97c0ffff", "e70003d6", None),
        ("13000000", "e780c0d5", None),
    ],
)
def test_riscv64_calls_in_two_instructions(upper: str, lower: str, flow: Flow | None) -> None:
    isa = load("riscv64")
    at = 0xFFFFFFFF80A6E21A
    before = Instruction(at, bytes.fromhex(upper), "")
    assert isa.pair_flow(before, Instruction(before.end, bytes.fromhex(lower), "")) == flow
