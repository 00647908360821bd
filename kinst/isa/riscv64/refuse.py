"""Which riscv64 instructions are displaced and which are refused: a table of decisions.

A displaced instruction runs at another address with the original registers, stack and interrupt
state, and then control goes where the original instruction sends it.  But at a trap-planted site
a trap has been taken and returned from. That overwrites sepc, scause, stval and the bits SPP and
SPIE of sstatus, and drops a reservation of lr; the way back (relocate.py) overwrites the same
state.  Nothing else differs.

| instruction | decision |
|---|---|
| integer, bit manipulation, floating point, vector | copied: no address in them; clauses use no floating-point or vector registers |
| loads, stores, amo*, cbo.*, hlv, hsv | copied; a fault is reported at the original address (Relocated.original_at) |
| auipc, jal, jalr, branches, and their compressed forms | rewritten (relocate.py) |
| fence, fence.tso, pause, fence.i | copied: a fetch or a read after the copy is after the fence |
| sfence.vma, sfence.*.inval, sinval.vma, hfence.*, hinval.* | copied: they know no address of code |
| csrs, csrc (and immediate forms) to sstatus | copied: SIE, SUM and FS are the original's when the copy runs, and stay as it leaves them |
| csr* to sie, sip, stimecmp, time, cycle, hpmcounter*, senvcfg, scounteren, fcsr, vector, seed and other state | copied |
| csrrw to sstatus | refused: it sets what a return from a trap takes, and the way back is one |
| csr* to sepc, scause, stval, sscratch, stvec, and all of a function that writes one of them or has an sret | refused: a trap there overwrites the state that the function works on |
| csr* to satp | refused when it writes: it can unmap the trampoline.  Reading is copied |
| ecall | copied: the firmware returns after the copy, and takes its arguments in registers |
| ebreak | copied, to trap at its copy: the bug hook makes the kernel look up the original address (Facts.bug_hook; without one the system refuses it) |
| wfi | copied: it ends when an interrupt is pending, taken or not, so the CPU sleeps through none |
| wrs.nto, wrs.sto | refused: they wait on the reservation of the lr before them |
| lr, sc, and the instructions between them | refused: a trap, and the stores of a trampoline, end the reservation, and the loop around them would never end |
| sret, mret | refused: they leave the kernel |
| c.unimp (two zero bytes) | refused: it is a trap, or data |
| every encoding that encodings.py does not name: reserved, a vendor's own, newer than kinst | refused: not known |
| instructions of more than 32 bits | refused |

For comparison: Linux's kprobes (arch/riscv/kernel/probes/decode-insn.c) refuse SYSTEM and FENCE
instructions; FreeBSD's kinst (riscv/kinst_isa.c) refuses lr, sc and the instructions between, and sret.

Tested by tests/isa/test_refused.py.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kinst.core.instruction import Instruction
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.control import flow
from kinst.isa.riscv64.encode import SEPC, SP, SSTATUS

_SYSTEM, _ATOMIC = 0x73, 0x2F  # opcodes
_SATP, _STVEC, _SSCRATCH, _SCAUSE, _STVAL = 0x180, 0x105, 0x140, 0x142, 0x143
_TRAP_STATE = frozenset((SEPC, _STVEC, _SSCRATCH, _SCAUSE, _STVAL))
_WRS = frozenset((0x00D0_0073, 0x01D0_0073))  # wrs.nto, wrs.sto
_TRAP_RETURNS = frozenset((0x10200073, 0x30200073, 0x70200073, 0x7B200073))  # s, m, mn, d

_UNKNOWN = "its encoding is not known: reserved, a vendor's own, or newer than kinst"
_UNIMP = "it is all zeros, which are defined to be an illegal instruction"
_RESERVATION = "a trap or a store between lr and sc ends their reservation"
_WAITS = "it waits on the reservation of the lr before it"
_LEAVES = "it leaves the kernel"
_STATUS = "it sets what a return from a trap takes"
_PAGING = "it can unmap the trampoline that runs it"
_TRAPS = "a breakpoint overwrites the trap state that it works on"
_HANDLER = "its function works on the trap state, which a breakpoint overwrites"
_STACK = "it links into the stack pointer, or jumps to it"


def _atomic(parsed: p.Riscv64Instruction) -> int:
    """Return the field funct5 of an atomic instruction; -1 for other instructions."""
    return parsed.word >> 27 if parsed.kind == p.AMO else -1


def _csr(parsed: p.Riscv64Instruction) -> tuple[int, bool, bool] | None:
    """Return (number of the control and status register, whether it is written, whether all of its
    bits are written) for a csr* instruction; None for other instructions."""
    if parsed.kind != p.SYSTEM or parsed.funct3 & 3 == 0:
        return None
    whole = parsed.funct3 & 3 == 1
    return parsed.word >> 20, whole or parsed.rs1 != 0, whole


def refusal(parsed: p.Riscv64Instruction) -> str:
    """Return why an instruction cannot be displaced; "" if it can be displaced."""
    if parsed.kind == p.UNKNOWN:
        return _UNKNOWN
    if parsed.kind == p.UNIMP:
        return _UNIMP
    if _atomic(parsed) in (p.LR, p.SC):
        return _RESERVATION
    if parsed.word in _WRS:
        return _WAITS
    if parsed.word in _TRAP_RETURNS:
        return _LEAVES
    if parsed.kind == p.JALR and SP in (parsed.rd, parsed.rs1):
        return _STACK
    if parsed.kind == p.JAL and parsed.rd == SP:
        return _STACK
    csr = _csr(parsed)
    if csr is None:
        return ""
    register, writes, whole = csr
    if register in _TRAP_STATE:
        return _TRAPS
    if register == SSTATUS and whole:
        return _STATUS
    return _PAGING if register == _SATP and writes else ""


def has_sequences(code: bytes) -> bool:
    """Return whether code may have a system or an atomic instruction, so that unsafe() must look at
    it."""
    opcode = np.frombuffer(code[: len(code) & -2], "<u2") & 0x7F
    return bool(((opcode == _SYSTEM) | (opcode == _ATOMIC)).any())


def unsafe(instructions: Sequence[Instruction]) -> Mapping[int, str]:
    """Return the instructions of a function that cannot be planted because of other instructions in
    it. The result maps the address of each to the reason.

    If the function writes a register of the trap state (such as sepc) or returns from a trap
    (sret), these are all its instructions: a trap would overwrite that state. Otherwise, these are
    each lr and sc, and the instructions on a path from an lr to an sc.
    """
    marks = dict[int, int]()
    for i in instructions:
        if i.code[0] & 0x7F not in (_SYSTEM, _ATOMIC):
            continue
        parsed = p.parse(i.code)
        if parsed is None:
            continue
        csr = _csr(parsed)
        if parsed.word in _TRAP_RETURNS or (csr and csr[0] in _TRAP_STATE and csr[1]):
            return {every.address: _HANDLER for every in instructions}
        if _atomic(parsed) in (p.LR, p.SC):
            marks[i.address] = _atomic(parsed)
    if not marks:
        return {}
    return dict.fromkeys(_between(instructions, marks), _RESERVATION)


def _between(instructions: Sequence[Instruction], marks: Mapping[int, int]) -> set[int]:
    """Return the addresses of the instructions on a path from an lr to an sc, the lr and the sc
    included.

    Args:
        instructions: of a function.
        marks: p.LR or p.SC, by the address of each lr and sc.
    """
    after: dict[int, list[int]] = {i.address: [] for i in instructions}
    before: dict[int, list[int]] = {i.address: [] for i in instructions}
    for i in instructions:
        control = flow(i.code, i.address)
        targets = [i.end] if control.falls_through else []
        if control.target is not None and control.kind in ("jump", "branch"):
            targets.append(control.target)
        for target in targets:
            if target in after:
                after[i.address].append(target)
                before[target].append(i.address)
    loads = {address for address, kind in marks.items() if kind == p.LR}
    stores = marks.keys() - loads
    forward = _reached(loads, after, loads | stores)
    backward = _reached(stores, before, loads | stores)
    return (forward & backward) | loads | stores


def _reached(starts: Iterable[int], edges: Mapping[int, Sequence[int]], ends: set[int]) -> set[int]:
    """Return every address that the edges lead to from the starts, in one step or more. The search
    does not continue after an address in `ends`.

    Args:
        edges: addresses that each address leads to.
    """
    reached: set[int] = set()
    open_ = [target for start in starts for target in edges[start]]
    while open_:
        here = open_.pop()
        if here not in reached:
            reached.add(here)
            if here not in ends:
                open_ += edges[here]
    return reached
