"""Displaced and refused instructions, row by row of the tables at the start of the modules
`refuse`; GNU as assembles them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.displaced import Refused, Relocated
from kinst.isa import load
from tests.isa.gnu_assembler import assembled

STRIDE = 32
TEXT = 0xFFFFFFFF_80000000
NEAR = TEXT + (1 << 19)

HEADS = {"amd64": ".intel_syntax noprefix", "arm64": ".arch_extension sve\n.arch_extension sve2",
         "riscv64": ".option norvc\n.option arch, +zawrs, +svinval, +zicbom, +h"}  # fmt: skip

# A word of the reason; "" for a displaced instruction.
AMD64 = {
    "unmap": "mov cr0, rax; mov cr2, rcx; mov cr3, rax; mov cr4, rbx; mov cr8, rax",
    "gs": "swapgs; wrgsbase rax; wrgsbase eax; rdgsbase rax; mov gs, eax; mov gs, [rbx]; pop gs; "
    "lgs eax, [rbx]",
    "enters or leaves": "syscall; sysretq; .byte 0x0f, 7; sysenter; .byte 0x0f, 0x35; sysexitq; "
    "iretd; iretq; iretw; .byte 0xf3, 0x0f, 1, 0xca; .byte 0xf2, 0x0f, 1, 0xca",
    "code segment": "lret; retfq; lret 8; jmp fword ptr [rax]; call fword ptr [rbx]; "
    "rex.W jmp fword ptr [rax]",
    "looks up": "int 0x80; int 3; int3; int1; ud0 eax, ecx; ud1 eax, [rbx]; .byte 0xd6",
    "indirect calls": "endbr64; endbr32",
    "slept": "hlt; mwait; mwaitx; umwait ecx",
    "holds back": "mov ss, eax; mov ss, [rbx]; lss eax, [rbx]",
    "transaction": "xbegin .+100; xend; xabort 3",
    "goes on": "vmlaunch; vmresume; vmrun; skinit; getsec; enclu; rsm; seamret",
    # rdmsr and wrmsrns with an immediate, a reserved no-operation, APX.
    "one known": ".byte 0xc4, 0xe7, 0x7b, 0xf6, 0xc0, 1, 0, 0, 0xc0; "
    ".byte 0xc4, 0xe7, 0x7a, 0xf6, 0xc0, 1, 0, 0, 0xc0; .byte 0x0f, 0x1f, 0xc8; "
    ".byte 0xd5, 8, 1, 0xc0; .byte 0x62, 0xf4, 0x7c, 0x18, 1, 0xc0",
    "": "cli; popfq; pushfq; cld; std; stac; clac; rdmsr; wrmsr; cpuid; rdtsc; rdpmc; rdrand rax; "
    "xgetbv; in al, dx; out 0x80, al; pause; mfence; prefetcht0 [rax]; clflush [rax]; wbinvd; "
    "invlpg [rax]; invpcid rax, [rbx]; monitor; fld st(1); fxsave [rax]; xsave [rax]; "
    "lgdt [rax]; lidt [rax]; lldt ax; ltr ax; sgdt [rax]; sidt [rax]; str ax; mov rax, cr0; "
    "mov rax, cr3; mov rax, dr7; mov dr7, rax; vmcall; vmmcall; encls; ret; push rax; rep movsb; "
    "lock inc dword ptr [rax]; mov fs:[rax], rbx; nop; ud2; mov es, eax; mov ds, [rbx]; "
    "mov fs, eax; pop fs; wrfsbase rax; rdfsbase rax; lfs eax, [rbx]; vaddps ymm1, ymm2, ymm3; "
    "sti; vzeroupper; jmp rax; call rax; jmp [rbx]",
}
ARM64 = {
    "exception level": "svc #0; svc #0xffff; dcps1; dcps2; dcps3 #9",
    "leaves the kernel": "eret; eretaa; eretab; drps",
    "looks up": "brk #0; brk #0x801; brk #0x7ff; brk #0xffff; hlt #0; hlt #0xffff; udf #0; "
    "udf #0xffff",
    "indirect branches": "bti; bti c; bti j; bti jc",
    "about an exception": "; ".join(
        f"{text}"
        for name in ("esr", "far", "elr", "spsr")
        for level in ("el1", "el2", "el12")
        for text in (f"mrs x3, {name}_{level}", f"msr {name}_{level}, x30")
    ),
    "unmap": "; ".join(
        [
            f"msr {name}_{level}, x5"
            for name in ("sctlr", "ttbr1", "tcr", "mair")
            for level in ("el1", "el2", "el12")
        ]
        + ["msr hcr_el2, x0"]
    ),
    "per-CPU": "msr tpidr_el1, x1; msr tpidr_el2, xzr",
    "transaction": ".inst 0xd5233065; .inst 0xd503307f; .inst 0xd4600020",
    # DDI 0487, "Exception generation": op2 and LL of svc, brk, hlt, tcancel and dcps leave these.
    "one known": ".inst 0xffffffff; .inst 0x00010000; "
    + "; ".join(
        f".inst {0xD4000000 | opc << 21 | low:#x}"
        for opc, lows in enumerate(((0, 4, 8, 16), *((1, 2, 3, 4, 8, 16),) * 3, (), (0, 4, 8, 16)))
        for low in lows
    ),
    "": "brk #0x800; hvc #0; hvc #0xffff; smc #1; paciasp; autiasp; pacibsp; nop; hint #30; "
    "msr nzcv, x0; mrs x0, nzcv; msr daif, x1; mrs x1, daif; msr spsel, #1; msr pan, #1; "
    "msr uao, #0; msr ssbs, #1; msr dit, #1; msr daifset, #3; msr daifclr, #15; "
    "mrs x0, sctlr_el1; mrs x0, tcr_el1; mrs x0, ttbr1_el1; mrs x0, ttbr0_el1; mrs x0, mair_el1; "
    "msr ttbr0_el1, x1; mrs x9, tpidr_el1; mrs x9, tpidr_el2; msr tpidr_el0, x0; "
    "msr tpidrro_el0, x0; msr sp_el0, x0; mrs x0, hcr_el2; msr vbar_el1, x0; msr cntv_ctl_el0, x0; "
    "dc cvau, x0; ic ivau, x0; at s1e1r, x0; tlbi vmalle1; tlbi vae1is, x0; dsb ish; dmb ishst; "
    "isb; sb; csdb; esb; wfi; wfe; sev; sevl; yield; clrex; ldxr x0, [x1]; ldaxp x0, x2, [x1]; "
    "casp x0, x1, x2, x3, [x4]; ldadd x0, x1, [x2]; swp x0, x1, [x2]; add v0.4s, v1.4s, v2.4s; "
    "fadd d0, d1, d2; br x3; braa x1, x2; ret; ret x1; retaa; retab; blr x3",
}
RISCV64 = {
    "reserved": ".insn 4, 0x0000000b; .insn 4, 0x0000007b; .insn 4, 0x00002063; "
    ".insn 4, 0x00003063; .insn 4, 0x00001067; .half 0x8002; .half 0x9000",
    "reservation": "lr.w a0, (a1); lr.d.aq a0, (a1); sc.w a0, a1, (a2); sc.d.rl a0, a1, (a2)",
    "waits": "wrs.nto; wrs.sto",
    "leaves the kernel": "sret; mret; .insn 4, 0x70200073; dret",
    "stack pointer": "jalr sp, 0(a0); jalr x0, 0(sp); jalr ra, 8(sp); jal sp, .+16; c.jr sp; "
    "c.jalr sp",
    "breakpoint overwrites": "; ".join(
        text for csr in ("sepc", "scause", "stval", "sscratch", "stvec")
        for text in (f"csrr a0, {csr}", f"csrw {csr}, a0", f"csrs {csr}, a1", f"csrci {csr}, 3")
    ),
    "return from a trap": "csrw sstatus, a0; csrrw a0, sstatus, a1; csrrwi a0, sstatus, 2",
    "unmap": "csrw satp, a0; csrrw a0, satp, x0; csrs satp, a0; csrrci a0, satp, 1; csrwi satp, 0",
    "": "csrr a0, satp; csrs sstatus, a0; csrc sstatus, a0; csrsi sstatus, 2; csrci sstatus, 2; "
    "csrrs a0, sstatus, a1; csrr a0, sstatus; csrw sie, a0; csrc sip, a0; csrw stimecmp, a0; "
    "csrr a0, time; csrr a0, cycle; csrw scounteren, a0; csrw fcsr, a0; fence; fence.tso; "
    "fence.i; sfence.vma; sfence.vma a0, a1; sfence.w.inval; sinval.vma a0, a1; hfence.vvma; "
    "ecall; ebreak; wfi; amoadd.w a0, a1, (a2); amoswap.d a0, a1, (a2); cbo.clean (a0); "
    "hlv.w a0, (a1); fadd.d fa0, fa1, fa2; addi sp, sp, -16; jalr a0; jalr x0, 0(ra); "
    "jal ra, .+16; beq a0, a1, .+16; auipc a0, 4; ld a0, 0(sp)",
}  # fmt: skip
TABLES = {"amd64": AMD64, "arm64": ARM64, "riscv64": RISCV64}


def cases(name: str, folder: Path) -> Iterator[tuple[str, bytes, str]]:
    """Return (text, code, a word of the reason)."""
    rows = [(text.strip(), why) for why, all_ in TABLES[name].items() for text in all_.split(";")]
    lines = [HEADS[name]]
    for number, (text, _) in enumerate(rows):
        made = f".option rvc\n{text}\n.option norvc" if text.startswith("c.") else text
        lines += [f".org {number * STRIDE}", f".long 9f - 8f\n8: {made}\n9:"]
    code = assembled(name, "\n".join([*lines, f".org {len(rows) * STRIDE}"]), folder)
    for number, (text, why) in enumerate(rows):
        at = number * STRIDE
        size = int.from_bytes(code[at : at + 4], "little")
        if name == "riscv64":  # the assembler leaves that to the linker: by the lowest bits
            size = 4 if code[at + 4] & 3 == 3 else 2
        yield text, code[at + 4 : at + 4 + size], why


@pytest.mark.parametrize("name", sorted(TABLES))
def test_rows_of_the_table(name: str, tmp_path: Path) -> None:
    isa, wrong = load(name), []
    for text, code, why in cases(name, tmp_path):
        made = isa.displace(code, TEXT, NEAR)
        if isinstance(made, Relocated) == bool(why):
            wrong.append((text, code.hex(), why))
        elif isinstance(made, Refused) and why not in made.reason:
            wrong.append((text, made.reason, why))
    assert wrong == []
