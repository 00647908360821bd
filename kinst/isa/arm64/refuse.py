"""Which arm64 instructions are displaced and which are refused: a table of decisions.

A displaced instruction runs at another address with the original registers, flags and stack,
and then control goes where the original instruction sends it.  A copy can differ from the
original in these ways only: it shows or uses its own address; its effect depends on the
instructions around it (sequences.py); or state that the probe's work needs or changes (the
exception registers, the per-CPU base) is different.

| instruction | decision |
|---|---|
| b, bl, b.cond, cbz, cbnz, tbz, tbnz, adr, adrp, ldr and ldrsw literal, SIMD literals, prfm literal, blr | rewritten (relocate.py) |
| br, ret, retaa, retab, braa | copied.  Trampolines lie in pages without BTI guard, from where an indirect branch may land on any bti |
| paciasp, autiasp and the like | copied: they sign with x30 and sp, which are the original's |
| bti | refused: if branch targets are guarded, indirect branches must find it there.  (paciasp is such a target too: a kernel that guards its text is refused as a whole, paging.py) |
| msr and mrs of NZCV, DAIF, SPSel, PAN, UAO, SSBS, DIT, TCO; daifset, daifclr | copied: PSTATE is the original's when the copy runs, and nothing is held back for one instruction as on other ISAs |
| hvc, smc | copied: the call below the kernel knows no address, and returns after the copy |
| svc, dcps | refused: they enter another exception level's vectors |
| eret, eretaa, drps | refused: they leave the kernel, by registers that an exception in a clause would change |
| brk #0x800 | copied, to trap at its copy: BUG and WARN look their address up, and the bug hook makes the kernel look up the original address (Facts.bug_hook; without one the system refuses it) |
| other brk, hlt, udf | refused: debuggers, probes, sanitizers, whose handlers look at the address |
| mrs and msr of ESR, FAR, ELR, SPSR | refused: an exception in a clause (a bad pointer) would overwrite the state that an exception left there |
| msr to SCTLR, TCR, TTBR1, MAIR, PIR, POR, HCR and their second halves | refused: they can unmap the trampoline |
| msr to TPIDR_EL1, TPIDR_EL2 | refused: around it per-CPU data is not there, and the probe's own code needs it |
| other system registers; dc, ic, at, tlbi; barriers; sb, csdb, esb | copied: they know no address, and only the time between two instructions changes |
| wfi, wfe, sev, sevl, yield | copied: wfi wakes up by an interrupt that is pending, masked or not; wfe may always wake up early |
| ldxr, its pairs and halves | copied; not to be stepped over by a debugger (sequences.py) |
| stxr, its pairs and halves, and the instructions between | copied after a copy of the ldxr and all up to them, if those may run again (rerun.py); otherwise refused (sequences.py) |
| casp, ldadd, swp and the like (LSE) | copied: each is atomic by itself |
| cpyp, cpym, cpye, setp, setm, sete and their forms (FEAT_MOPS) | refused: the three must stand together, and an exception between them goes back to the first by its distance |
| autiasppc, retaasppc, paciasppc and the like (FEAT_PAuth_LR) | refused: they sign with their own address.  pacm, and the instruction after it: refused, since pacm makes other instructions sign with their own address |
| hints whose number kinst does not know | refused: a hint of today may have an effect tomorrow |
| SIMD, floating point, SVE | copied: clauses use none of these registers.  movprfx, and the instruction after it: refused (sequences.py) |
| transactions (tstart, tcommit, tcancel) | refused: they cannot run through a trampoline |
| anything that does not decode | refused |

For comparison: Linux's kprobes refuse exception generation, eret, most of msr and mrs and hints,
exclusives and the instructions between them (arch/arm64/kernel/probes/decode-insn.c).

Tested by tests/isa/test_refused.py.
"""  # noqa: E501

from __future__ import annotations

_ENTRY = "it enters another exception level"
_LEAVES = "it leaves the kernel by registers that a clause's own fault would change"
_ADDRESS = "the kernel looks up the address it traps at"
_LANDING = "indirect branches must find it there"
_EXCEPTION = "it is about an exception, and a clause's own fault would take its place"
_PAGING = "it can unmap the trampoline that runs it"
_PER_CPU = "around it per-CPU data is not there, and a probe needs it"
_TRANSACTION = "a transaction cannot run through a trampoline"
_TOGETHER = "the three instructions of a memory copy or set must stand together"
_SIGNS = "it signs or authenticates an address with its own"
UNKNOWN = "its bytes are not one known instruction"

_BUG = 0xD4210000  # brk #0x800: Linux, arch/arm64/include/asm/brk-imm.h, BUG_BRK_IMM

# (mask, masked word, reason); the first match counts.
_BY_WORD = (
    (0xFFFFFFFF, _BUG, ""),
    (0xFFE0001F, 0xD4000001, _ENTRY),  # svc
    (0xFFE0001C, 0xD4A00000, _ENTRY),  # dcps
    (0xFFE0001F, 0xD4200000, _ADDRESS),  # brk
    (0xFFE0001F, 0xD4400000, _ADDRESS),  # hlt
    (0xFFFF0000, 0x00000000, _ADDRESS),  # udf
    (0xFFFFF3E0, 0xD69F03E0, _LEAVES),  # eret, eretaa, eretab
    (0xFFFFFFFF, 0xD6BF03E0, _LEAVES),  # drps
    (0xFFFFFF3F, 0xD503241F, _LANDING),  # bti
    (0xFFFFFFE0, 0xD5233060, _TRANSACTION),  # tstart
    (0xFFFFFFFF, 0xD503307F, _TRANSACTION),  # tcommit
    (0xFFE0001F, 0xD4600000, _TRANSACTION),  # tcancel
    (0xFB200C00, 0x19000400, _TOGETHER),  # cpy*, set*
    (0xFFC0001F, 0x5500001F, _SIGNS),  # retaasppc, retabsppc
    (0xFFC0001F, 0xF380001F, _SIGNS),  # autiasppc, autibsppc
    (0xFFFFDBFF, 0xDAC183FE, _SIGNS),  # pacnbiasppc, pacnbibsppc, paciasppc, pacibsppc
)
_HINT, _HINTS = 0xD503201F, 0xFFFFF01F
# CRm:op2 of the hints that DDI 0487 names (C4.1, "Hints"), except bti, which is above, and pacm.
_KNOWN_HINTS = frozenset((
    *range(9), 10, 12, 14, 16, 17, 18, 19, 20, 22, *range(24, 32), 40,
))  # fmt: skip

_MSR, _MRS = 0xD5100000, 0xD5300000
_SYSTEM = 0xFFF00000
# op0:op1:CRn:CRm:op2 of the EL1 registers; EL2's and EL12's differ in op1 alone.
_SCTLR, _TTBR1, _TCR, _MAIR, _HCR_EL2 = 0xC080, 0xC101, 0xC102, 0xC510, 0xE088
_SCTLR2, _TCR2, _MAIR2, _PIR, _POR, _HCRX_EL2 = 0xC083, 0xC103, 0xC511, 0xC513, 0xC514, 0xE092
_ESR, _FAR, _ELR, _SPSR, _TPIDR = 0xC290, 0xC300, 0xC201, 0xC200, 0xC684
_TPIDR_EL2 = 0xE682
_LEVELS = (0, 4 << 11, 5 << 11)  # EL1, EL2, EL12


def _levels(*registers: int) -> frozenset[int]:
    return frozenset(register | level for register in registers for level in _LEVELS)


_OF_EXCEPTIONS = _levels(_ESR, _FAR, _ELR, _SPSR)
_WRITTEN = {
    **dict.fromkeys(_levels(_SCTLR, _TTBR1, _TCR, _MAIR) | {_HCR_EL2}, _PAGING),
    **dict.fromkeys(_levels(_SCTLR2, _TCR2, _MAIR2, _PIR, _POR) | {_HCRX_EL2}, _PAGING),
    **dict.fromkeys((_TPIDR, _TPIDR_EL2), _PER_CPU),
    **dict.fromkeys(_OF_EXCEPTIONS, _EXCEPTION),
}
_READ = dict.fromkeys(_OF_EXCEPTIONS, _EXCEPTION)


def refusal(word: int) -> str:
    """Return why the instruction with this encoding cannot be displaced; "" if it can be."""
    for mask, value, reason in _BY_WORD:
        if word & mask == value:
            return reason
    if word & _HINTS == _HINT and word >> 5 & 0x7F not in _KNOWN_HINTS:
        return UNKNOWN
    group = word & _SYSTEM
    if group in (_MSR, _MRS):
        table = _READ if group == _MRS else _WRITTEN
        return table.get(word >> 5 & 0xFFFF, "")
    return ""
