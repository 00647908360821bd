"""Which amd64 instructions are displaced and which are refused: a table of decisions.

A displaced instruction runs at another address with the original registers, flags and stack,
and then control goes where the original instruction sends it.  A copy can differ from the
original in three ways only: it shows or uses its own address; it acts on the very next
instruction; or what the trampoline needs (its memory, the per-CPU base) is not there when the
copy runs.

| instruction | decision |
|---|---|
| cli, sti, popf, pushf, cld, std, stac, clac | copied: flags are the original ones when the copy runs.  sti delays interrupts by one instruction, which here is the jump back: nothing depends on that but `sti; hlt` and its like, so sti before hlt, mwait, sysexit or iret is refused |
| rdmsr, wrmsr, cpuid, rdtsc, rdpmc, rdrand, xgetbv, in, out | copied: they know no address; a fault is reported at the original address (Relocated.original_at) |
| pause, fences, prefetch, clflush, wbinvd, invlpg, invpcid, tpause, monitor | copied: only the time between two instructions changes |
| x87, SSE, AVX, xsave, xrstor, fxsave | copied: clauses use none of these registers.  The last-x87-instruction pointer becomes that of the copy, which nothing reads but a debugger |
| lgdt, lidt, lldt, ltr, sgdt, sidt, str | copied: nothing of a trampoline depends on the tables |
| mov from cr, mov to and from dr | copied |
| vmcall, vmmcall, encls | copied: the hypervisor or enclave call knows no address |
| ret, push, pop, string instructions with rep, lock, segment overrides, nop | copied.  After a ret the RSB predicts wrongly once |
| endbr64 | refused: with indirect branch tracking on, indirect calls must find it there |
| jmp, jcc, jrcxz, loop, call | rewritten (relocate.py) |
| mov to cr | refused: it can unmap the trampoline or change the processor's mode |
| swapgs, wrgsbase, rdgsbase, mov/pop/lgs to gs | refused: around them gs is not the kernel's, and the probe's own code needs it |
| syscall, sysret, sysenter, sysexit, iret, eretu, erets, retf, far jmp and call | refused: entry to and exit from the kernel |
| ud2 | copied, to trap at its copy: the bug hook makes the kernel look up the original address (Facts.bug_hook; without one the system refuses it) |
| int n, int1, int3, ud0, ud1, udb | refused: the kernel's handler looks their address up (static calls, breakpoints) |
| hlt, mwait, mwaitx, umwait | refused: the CPU would sleep through an interrupt between the check before them and the copy |
| mov ss, pop ss, lss | refused: interrupts and debug traps are held for one instruction, which would be another |
| xbegin, xend, xabort | refused: a transaction cannot run through a trampoline |
| vmlaunch, vmresume, vmrun, skinit, getsec, enclu, rsm, seamret | refused: the machine goes on elsewhere |
| instructions that iced-x86 does not know, and reserved no-operations | refused |

In a user program, endbr64 and syscall are copied: no kernel tracks indirect branches of user programs,
and the kernel restarts an interrupted system call at its copy.

For comparison: Linux's kprobes refuse far jumps, int3, iret and instructions that set ss (arch/x86/kernel/
kprobes/core.c); FreeBSD's kinst refuses sti, popf and jrcxz (kinst_isa.c).

Tested by tests/isa/test_refused.py.
"""  # noqa: E501

from __future__ import annotations

from iced_x86 import Mnemonic

from kinst.isa import _x86
from kinst.isa.amd64.parse import ONE_BYTE, TWO_BYTE, Amd64Instruction

_ENTRY = "it enters or leaves the kernel"
LOOKED_UP = "the kernel looks up the address it traps at"
_LANDING = "indirect calls must find it there"
_SLEEP = "an interrupt just before its copy would be slept over"
_GS = "around it gs is not the kernel's, and a probe needs the kernel's"
_SEGMENT = "it changes the code segment"
_SHADOW = "it holds back interrupts for the one instruction after it"
_TRANSACTION = "a transaction cannot run through a trampoline"
_GUEST = "the machine goes on somewhere else"
_PAGING = "it can unmap the trampoline that runs it"

_REFUSED_MNEMONICS = {
    _ENTRY: "syscall sysret sysretq sysenter sysexit sysexitq iret iretd iretq uiret eretu erets",
    _SEGMENT: "retf",
    LOOKED_UP: "int int1 int3 ud0 ud1",
    _LANDING: "endbr64 endbr32",
    _SLEEP: "hlt mwait mwaitx umwait",
    _GS: "swapgs wrgsbase rdgsbase lgs",
    _SHADOW: "lss",
    _TRANSACTION: "xbegin xend xabort",
    _GUEST: "vmlaunch vmresume vmrun skinit getsec enclu rsm seamret",
}
# Reasons of refusals, by iced-x86's numbers of mnemonics.
BY_MNEMONIC = {
    number: reason for reason, names in _REFUSED_MNEMONICS.items() for number in _x86.numbers(names)
}

_SEGMENT_SS, _SEGMENT_GS = 2, 5
_SHADOW_ENDS = _x86.numbers("hlt mwait mwaitx umwait sysexit sysexitq iret iretd iretq eretu erets")


_COPIED_IN_PROGRAMS = _x86.numbers("endbr64 syscall")


def refusal(parsed: Amd64Instruction | None, mnemonic: int, user: bool = False) -> str:
    """Return why a known instruction cannot be displaced; "" if it can be displaced.

    Args:
        parsed: the instruction, None if it could not be taken apart.
        mnemonic: iced-x86's number.
        user: whether the instruction is of a user program.
    """
    if user and mnemonic in _COPIED_IN_PROGRAMS:
        return ""
    reason = BY_MNEMONIC.get(mnemonic, "")
    if reason or parsed is None:
        return reason
    if parsed.map == TWO_BYTE:
        if parsed.opcode == 0x22:
            return _PAGING
        if parsed.opcode == 0xA9:  # pop gs
            return _GS
    elif parsed.map == ONE_BYTE:
        if parsed.opcode == 0x8E:  # mov to a segment register
            return {_SEGMENT_SS: _SHADOW, _SEGMENT_GS: _GS}.get(parsed.reg, "")
        if parsed.opcode == 0xFF and parsed.reg in (3, 5):
            return _SEGMENT
    return ""


def shadow_refusal(code: bytes, following: bytes, address: int) -> str:
    """Return why an sti cannot be displaced; "" if it can be displaced, and for all other
    instructions.

    An sti delays interrupts until the next instruction has run, but only if that instruction lies
    directly after the sti. If that instruction depends on the delay (hlt, iret and the like), or is
    not known, the sti is refused.

    Args:
        code: the instruction, an sti or another one.
        following: live bytes after the instruction.
        address: address of `following`.
    """
    instruction = _x86.first(code, address - len(code))
    if instruction is None or instruction.mnemonic != Mnemonic.STI:
        return ""
    after = _x86.first(following, address)
    if after is None:
        return "sti delays interrupts, and the instruction after it is not known"
    if after.mnemonic in _SHADOW_ENDS:
        name = _x86.name(after)
        return f"sti protects the {name} after it from interrupts, and only if adjacent"
    return ""
