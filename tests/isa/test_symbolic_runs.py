"""Symbolic execution against an emulator: the arguments of a call (symbolic_rig.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.core.layout import ARGUMENT_NONE
from kinst.core.probe import Argument
from kinst.isa import load
from kinst.isa._symbolic import SymbolicCode
from tests.isa.gnu_assembler import assembled
from tests.isa.symbolic_rig import CODE, PROCESSORS, Run, compared

ARGUMENTS = 10  # eight in registers, two on the stack
# By instruction set and name: code before a call, and how many of its arguments are not known.
FORMS = {
    "arm64": {
        "moves": ("mov x0, x19; mov w1, w20; mvn x2, x21; mov x3, sp; mov w4, w4", 0),
        "numbers": ("mov x0, #-1; mov w1, #-2; movz x2, #0x1234, lsl #16; movk x2, #0x5678;"
                    "mov w3, #0x10000; mov x4, #0; adr x5, .+16; adrp x6, .+0x5000", 0),
        "sums": ("add x0, x19, #0x123, lsl #12; sub w1, w20, #9; add x2, x21, x22, lsl #3;"
                 "sub x3, x23, x24, asr #2; add x4, x25, w26, sxtw #2; sub x5, x27, w28, uxtb;"
                 "adds w6, w9, w10, lsr #3; add x7, sp, #0x20", 0),
        "bits": ("and x0, x19, x20; orr w1, w21, w22, lsl #5; eor x2, x23, x24, lsr #7;"
                 "bic x3, x25, x26; ands w4, w27, w28; orn x5, x9, x10, asr #3", 0),
        "fields": ("sxtw x0, w19; sxtb w1, w20; uxth w2, w21; lsl x3, x22, #7; lsr w4, w23, #5;"
                   "asr x5, x24, #9; ubfx x6, x25, #4, #13; sxth x7, w26", 0),
        "loads": ("ldr x0, [x19, #16]; ldr w1, [x20, #4]; ldrb w2, [x21, #3]; ldrh w3, [x22, #6];"
                  "ldrsw x4, [x23, #8]; ldrsb w5, [x24, #1]; ldrsh x6, [x25, #2];"
                  "ldur x7, [x26, #-8]", 0),
        "indexed": ("ldr x0, [x19], #8; mov x1, x19; ldr x2, [x20, #-16]!; mov x3, x20;"
                    "mov w9, #24; ldr x4, [x21, x9]; ldr w5, [x22, w9, uxtw #2];"
                    "ldp x6, x7, [x23, #16]", 0),
        "pairs": ("ldp w0, w1, [x19, #8]; ldpsw x2, x3, [x20, #-8]; ldp x4, x5, [x21], #32;"
                  "mov x6, x21", 0),
        "stores": ("str x19, [sp, #24]; ldr x0, [sp, #24]; stp x20, x21, [sp]; ldr x1, [sp, #8];"
                   "strb w22, [sp, #40]; ldrb w2, [sp, #40]; str wzr, [sp, #48];"
                   "ldr w3, [sp, #48]", 0),
        # The store may have changed any word: the one that is loaded, and those on the stack.
        "other store": ("str x19, [x20]; ldr x0, [x21, #8]", 3),
        "part of a store": ("str x19, [sp, #64]; ldr w0, [sp, #64]; ldr w1, [sp, #68]", 2),
        "not computed": ("mul x0, x19, x20; csel x1, x21, x22, eq; rbit x2, x23; cset w3, ne;"
                         "extr x4, x24, x25, #5; bfi x5, x26, #3, #4", 6),
        "vector": ("ldr q0, [x19]", 3),
        "signed link": ("mov x0, x30; paciasp; mov x1, x30; autiasp", 1),
    },
    "riscv64": {
        "moves": ("mv a0, s1; c.mv a1, s2; not a2, s3; neg a3, s4; sext.w a4, s5; c.addw a5, s0",
                  0),
        "numbers": ("li a0, -1; c.li a1, 5; lui a2, 0x12345; c.lui a3, 0xfffe1; auipc a4, 3;"
                    "lui a5, 0x80000; addi a5, a5, 1; li a6, 0; li a7, 0x123456789abcdef", 0),
        "sums": ("add a0, s1, s2; sub a1, s3, s4; addi a2, s5, -77; addiw a3, s6, 9;"
                 "addw a4, s7, s8; subw a5, s9, s10; c.add a6, s11; c.addi a7, -3", 0),
        "bits": ("and a0, s1, s2; or a1, s3, s4; xor a2, s5, s6; andi a3, s7, 0xff; ori a4, s8, 6;"
                 "xori a5, s9, -1; c.and a5, s0; c.or a4, a5; c.xor a3, s1; c.andi a2, 31", 0),
        "shifts": ("slli a0, s1, 13; srli a1, s2, 40; srai a2, s3, 7; slliw a3, s4, 5;"
                   "srliw a4, s5, 3; sraiw a5, s6, 9; c.slli a6, 33; c.srli a4, 2; c.srai a5, 4",
                   0),
        "counted shifts": ("sll a0, s1, s2; srl a1, s3, s4; sra a2, s5, s6; sllw a3, s7, s8;"
                           "srlw a4, s9, s10; sraw a5, s11, t0", 0),
        "loads": ("ld a0, 16(s1); lw a1, 4(s2); lbu a2, 3(s3); lhu a3, 6(s4); lwu a4, 8(s5);"
                  "lb a5, 1(s6); lh a6, -2(s7); c.lw a1, 8(s0)", 0),
        "compressed loads": ("c.ld a0, 16(s1); c.lw a1, 64(s0); c.ldsp a6, 24(sp);"
                             "c.lwsp a7, 12(sp); c.addi4spn a2, sp, 40; c.ld a3, 8(s1)", 0),
        "stack": ("addi sp, sp, -32; sd s1, 24(sp); ld a0, 24(sp); c.sdsp s2, 8(sp);"
                  "c.ldsp a1, 8(sp); c.sd a2, 16(s0)", 2),
        "stack pointer": ("c.addi16sp sp, -64; sd s1, 0(sp); c.swsp s2, 8(sp); lwu a0, 8(sp)", 1),
        "stores": ("sd s1, 24(sp); ld a0, 24(sp); sb s2, 40(sp); lbu a1, 40(sp);"
                   "sw zero, 48(sp); c.lwsp a2, 48(sp)", 0),
        "other store": ("sd s1, 0(s2); ld a0, 8(s3)", 3),
        "part of a store": ("sd s1, 64(sp); lw a0, 64(sp); lw a1, 68(sp)", 2),
        "comparisons": ("slt a0, s1, s2; sltu a1, s3, s4; slti a2, s5, -3; sltiu a3, s6, -3;"
                        "snez a4, s7; seqz a5, s8; sltz a6, s9; sgtz a7, s10", 0),
        "comparisons of equal values": ("slt a0, s1, s1; sltu a1, s3, s3; li a2, -1; snez a2, a2;"
                                        "li a3, 0; snez a3, a3; li a4, -5; slti a4, a4, -4;"
                                        "li a5, -5; sltiu a5, a5, 4", 0),
        "not computed": ("mul a0, s1, s2; divw a1, s7, s8", 2),
        "atomic": ("amoadd.d a0, s1, (s2)", 3),
    },
}  # fmt: skip
CASES = [(isa, name) for isa, forms in FORMS.items() for name in forms]


@pytest.mark.parametrize(("isa", "name"), CASES)
def test_arguments_are_those_of_an_emulator(isa: str, name: str, tmp_path: Path) -> None:
    body, unknown = FORMS[isa][name]
    code = assembled(isa, f".text\n{body}\n", tmp_path)
    run = load(isa).symbolic_run()
    assert run is not None
    for one in load(isa).decode(code, CODE):
        run.step(one)
    arguments = [run.argument(n) for n in range(ARGUMENTS)]
    assert sum(a.kind == ARGUMENT_NONE and not a.expression for a in arguments) == unknown
    runs: list[tuple[str, Run, list[Argument], list[int]]] = []
    for seed in range(4):
        emulated = Run(PROCESSORS[isa], code, seed)
        there = emulated.arguments(CODE, {CODE + len(code)}, ARGUMENTS)
        runs.append((name, emulated, arguments, there))
    compared(runs, tmp_path)


@pytest.mark.parametrize("isa", FORMS)
def test_a_call_changes_what_c_allows(isa: str) -> None:
    """Registers that a C function preserves are known after a call, others and memory are not."""
    machine = load(isa)
    run = machine.symbolic_run()
    assert isinstance(run, SymbolicCode)
    run.call()
    names = {register.slot: register.d_name for register in reversed(machine.registers)}
    kept = {names[slot] for slot, value in run.registers.items() if value is not None}
    # The global pointer and the thread pointer of RISC-V are not for C code to change.
    assert kept - {"R_GP", "R_TP"} == {*machine.kept_registers, "R_SP"}
    assert run.passed(8) is None
