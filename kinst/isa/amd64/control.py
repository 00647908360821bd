"""Control flow of single amd64 instructions: where control goes from an instruction, and on which
condition.

Source: Intel SDM volume 2 (Jcc, JMP, LOOP, RET, appendix A's opcode maps) and volume 1, 3.4.3
(EFLAGS).

Tested by tests/isa/test_control.py and tests/isa/test_control_flow.py.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from kinst.core.instruction import Flow
from kinst.core.words import MASK
from kinst.isa import _x86
from kinst.isa._x86_length import ADDRESS_SIZE, OPERAND_SIZE
from kinst.isa.amd64.parse import ONE_BYTE, RSP, TWO_BYTE, Amd64Instruction, parse

_FLAGS = "regs[R_RFL]"
_LESS = f"(({_FLAGS} >> 7 ^ {_FLAGS} >> 11) & 0x1)"  # SF != OF
_GENERAL = (
    "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI",
    "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15",
)  # fmt: skip


def _any_of(mask: int) -> tuple[str, str]:
    return f"({_FLAGS} & {mask:#x}) != 0", f"({_FLAGS} & {mask:#x}) == 0"


# D expressions (the condition holds, it does not hold) by the upper three bits of the condition
# code; the lowest bit of the code swaps the two.
_CONDITIONS = (
    _any_of(0x800),  # o: OF
    _any_of(0x001),  # b: CF
    _any_of(0x040),  # e: ZF
    _any_of(0x041),  # be: CF or ZF
    _any_of(0x080),  # s: SF
    _any_of(0x004),  # p: PF
    (f"{_LESS} != 0", f"{_LESS} == 0"),  # l
    (f"{_LESS} != 0 || ({_FLAGS} & 0x40) != 0", f"{_LESS} == 0 && ({_FLAGS} & 0x40) == 0"),  # le
)
_ZERO = _CONDITIONS[2]

NEXT = Flow("next")
LANDING = Flow("landing")
RETURN = Flow("return", falls_through=False)
CALL = Flow("call")
INDIRECT = Flow("indirect", falls_through=False)
# An unknown instruction may go on to the next one, or anywhere else.
ANYWHERE = Flow("indirect")
# The kernel steps over ud2, and since Linux 6.19 over ud1, if it means a warning (WARN).
WARN = Flow("trap")
TRAP = Flow("trap", falls_through=False)

# Flows by iced-x86's numbers of mnemonics.
_NAMED = {
    **dict.fromkeys(_x86.numbers("ret"), RETURN),
    **dict.fromkeys(
        _x86.numbers(
            "retf iret iretd iretq uiret eretu erets sysret sysretq sysexit sysexitq rsm skinit"
        ),
        INDIRECT,
    ),
    # A hypervisor, an enclave or a transaction's start may return elsewhere.
    **dict.fromkeys(
        _x86.numbers("syscall sysenter vmlaunch vmresume enclu getsec seamret xbegin xabort"),
        ANYWHERE,
    ),
    **dict.fromkeys(_x86.numbers("int3 int1 ud0"), TRAP),
    **dict.fromkeys(_x86.numbers("ud2 ud1"), WARN),
}
_GROUP5 = 0xFF
_BRANCHES = frozenset((*range(0x70, 0x80), *range(0xE0, 0xE4), 0xC2, 0xC3, 0xE8, 0xE9, 0xEB))
_ENDBR = (b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfb")
# Linux writes these over an endbr64 that nothing jumps to (asm/ibt.h: gen_endbr_poison()): early
# and late versions.
_SEALED = {bytes.fromhex("660f1f00"), bytes.fromhex("0f1f40d6")}

_RETURN_THUNK = re.compile(r"\w*return_thunk\Z")
_INDIRECT_THUNK = re.compile(r"__x86_indirect_(?:\w+_)?thunk_(r[a-z0-9]+)\Z")
THUNKS = ("*return_thunk", "__x86_indirect_*thunk_r*")


def thunk(name: str) -> Flow | None:
    """Return the flow of the instruction that a thunk with this name replaces: a return or an
    indirect jump. Return None if the name is not that of a thunk.

    Compilers replace such an instruction by a jump to a thunk, and name the thunk (gcc(1),
    -mindirect-branch and -mfunction-return: thunk-extern). Kernels add variants of the same form.
    """
    if _RETURN_THUNK.match(name):
        return RETURN
    match = _INDIRECT_THUNK.match(name)
    register = match.group(1).upper() if match else ""
    if register in _GENERAL:
        return Flow("indirect", falls_through=False, destination=f"regs[R_{register}]")
    return None


def flow(code: bytes, address: int) -> Flow:
    """Return where control goes from the one instruction `code` at `address`."""
    if code == _x86.UDB:
        return WARN
    instruction, parsed = _x86.only(code, address), parse(code)
    if instruction is None or parsed is None:
        return ANYWHERE
    op = parsed.opcode
    if OPERAND_SIZE in parsed.prefixes and _is_branch(parsed):
        # Processors differ on how many bytes of the target are kept (relocate.py refuses it).
        return ANYWHERE
    if instruction.mnemonic in _NAMED:
        return _NAMED[instruction.mnemonic]
    after = address + len(code)
    if parsed.map == ONE_BYTE:
        if op in (0xE8, 0xE9):
            return _direct(op == 0xE8, _led_to("<i", parsed, after))
        if op == 0xEB:
            return _direct(False, _led_to("<b", parsed, after))
        if op & 0xF0 == 0x70:
            return _conditional(op & 0xF, _led_to("<b", parsed, after))
        if op & 0xFC == 0xE0:
            return _counted(parsed, _led_to("<b", parsed, after))
        if op == _GROUP5 and parsed.reg in (2, 3):
            return CALL
        if op == _GROUP5 and parsed.reg in (4, 5):
            return _indirect(parsed, after)
        return NEXT
    if parsed.map == TWO_BYTE:
        if op & 0xF0 == 0x80:
            return _conditional(op & 0xF, _led_to("<i", parsed, after))
        if code in _ENDBR or code in _SEALED:
            return LANDING
    return NEXT


def _is_branch(parsed: Amd64Instruction) -> bool:
    """Return whether an instruction is a near branch, call or return."""
    if parsed.map == ONE_BYTE:
        op = parsed.opcode
        return op in _BRANCHES or (op == _GROUP5 and 2 <= parsed.reg <= 5)
    return parsed.map == TWO_BYTE and parsed.opcode & 0xF0 == 0x80


def _led_to(form: str, parsed: Amd64Instruction, after: int) -> int:
    """Return the target address of a direct branch.

    Args:
        form: struct format of the branch's distance.
        parsed: the branch.
        after: address after the branch.
    """
    distance: int = struct.unpack_from(form, parsed.code, parsed.opcode_at + 1)[0]
    return after + distance & MASK


def _direct(call: bool, target: int) -> Flow:
    return Flow("call" if call else "jump", call, target)


def _conditional(code: int, target: int) -> Flow:
    holds, not_ = _CONDITIONS[code >> 1]
    if code & 1:
        holds, not_ = not_, holds
    return Flow("branch", True, target, holds, not_)


def _counted(parsed: Amd64Instruction, target: int) -> Flow:
    """Return the flow of jrcxz, loop, loope or loopne with this target; loop decrements rcx before
    it tests rcx."""
    count = "(regs[R_RCX] & 0xffffffff)" if ADDRESS_SIZE in parsed.prefixes else "regs[R_RCX]"
    if parsed.opcode == 0xE3:
        return Flow("branch", True, target, f"{count} == 0", f"{count} != 0")
    taken, not_ = f"{count} != 1", f"{count} == 1"
    if parsed.opcode != 0xE2:
        zero, not_zero = _ZERO if parsed.opcode == 0xE1 else _ZERO[::-1]
        taken, not_ = f"{taken} && {zero}", f"{not_} || {not_zero}"
    return Flow("branch", True, target, taken, not_)


def _indirect(parsed: Amd64Instruction, after: int) -> Flow:
    """Return the flow of a jmp to the address in a register or memory word. The flow's destination
    is a D expression; "" if D cannot express the address (an operand with a segment).

    Args:
        parsed: the jmp.
        after: address after the jmp.
    """
    segment = any(p in parsed.prefixes for p in b"\x64\x65")
    if parsed.reg == 5 or (parsed.mod != 3 and (segment or ADDRESS_SIZE in parsed.prefixes)):
        return INDIRECT
    if parsed.mod == 3:
        return Flow(
            "indirect", False, destination=f"regs[R_{_GENERAL[parsed.rm | (parsed.rex & 1) << 3]}]"
        )
    return Flow("indirect", False, destination=f"*(uint64_t *)({_memory(parsed, after)})")


def _memory(parsed: Amd64Instruction, after: int) -> str:
    """Return the address of an instruction's memory operand as a D expression.

    Args:
        parsed: the instruction.
        after: address after the instruction.
    """
    at = parsed.modrm_at + 1
    terms: list[str] = []
    base: int | None = parsed.rm | (parsed.rex & 1) << 3
    size = (0, 1, 4)[parsed.mod]
    if parsed.rm == RSP:
        sib = parsed.code[at]
        at += 1
        base = sib & 7 | (parsed.rex & 1) << 3
        if sib & 7 == 5 and parsed.mod == 0:
            base, size = None, 4
        index = sib >> 3 & 7 | (parsed.rex & 2) << 2
        if index != RSP:
            terms.append(f"regs[R_{_GENERAL[index]}] * {1 << (sib >> 6)}")
    elif parsed.rip_relative:
        displacement = int.from_bytes(parsed.code[at : at + 4], "little", signed=True)
        return f"{after + displacement & MASK:#x}"
    if base is not None:
        terms.insert(0, f"regs[R_{_GENERAL[base]}]")
    displacement = int.from_bytes(parsed.code[at : at + size], "little", signed=True)
    if displacement or not terms:
        terms.append(f"{displacement & MASK:#x}")
    return " + ".join(terms)


_CALL, _CALL_SIZE = 0xE8, 5  # CALL rel32


def returns_of(code: bytes, address: int, target: int) -> list[int]:
    """Return the return addresses of direct calls of `target` in code, ascending (E8 and a 32-bit
    displacement; SDM 2, CALL). Some results may be wrong: bytes inside another instruction can look
    like a call.

    Args:
        address: address of the code.
    """
    returns: list[int] = []
    for first in range(4):
        count = (len(code) - first - 1) // 4
        if count <= 0:
            continue
        moves = np.frombuffer(code, "<i4", count, first + 1).astype(np.int64)
        ends = np.arange(count, dtype=np.int64) * 4 + first + _CALL_SIZE
        for end in ends[moves + ends == target - address]:
            if code[end - _CALL_SIZE] == _CALL:
                returns.append(address + int(end))
    return sorted(returns)
