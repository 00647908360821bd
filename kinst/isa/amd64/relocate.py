"""Displacement of one amd64 instruction: code with the instruction's effect at another address.

An instruction that depends on its own address is re-encoded:

- a memory operand relative to rip gets a new displacement. If the operand is too far away for that,
  its absolute address is encoded, if this fits in 32 bits sign-extended. Per-CPU variables need
  this: gs:[rip + x] wraps round to a small address;
- short and near jumps and conditional jumps become near jumps; jrcxz and loop exist only as short
  jumps, so they lead to a near jump to their target;
- a call becomes a push of the original return address and a jump. If the call is indirect through
  memory based on rsp, the jump reads 8 bytes further up, because the push comes first.

refuse.py decides which instructions are not displaced. Source: Intel SDM volume 2.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from kinst.core.displaced import (
    UNCHAINED,
    Moved,
    Onward,
    OutOfReach,
    Refused,
    Relocated,
    refuses_out_of_reach,
    with_way_back,
)
from kinst.isa import _x86
from kinst.isa._x86_length import ADDRESS_SIZE, OPERAND_SIZE
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64.decode import UNKNOWN
from kinst.isa.amd64.parse import ONE_BYTE, RSP, TWO_BYTE, Amd64Instruction, parse
from kinst.isa.amd64.refuse import LOOKED_UP, refusal

# How many decoded instructions are kept, each once. The functions of a kernel begin and end
# mostly with the same few.
MOST_CODES = 1 << 14
_CALL, _JUMP, _JUMP_SHORT, _GROUP5 = 0xE8, 0xE9, 0xEB, 0xFF
_GROUP5_CALL, _GROUP5_JUMP = 2, 4
_RETURNS = frozenset((0xC2, 0xC3))
_HOPS = frozenset((0xE0, 0xE1, 0xE2, 0xE3))  # loopne, loope, loop, jrcxz
_WORD = 8  # bytes that a call pushes
_TARGET = "the branch's target"


def displace(
    code: bytes, address: int, to: int, onward: Onward = UNCHAINED, user: bool = False
) -> Relocated | Refused:
    """Return the displaced code of the one instruction `code` at `address`, made for the address
    `to`; or the refusal. After this code, control goes where the original instruction sends it.

    Args:
        onward: has the trampolines of planted instructions. Control goes on in these instead of in
            the original code.
        user: whether the instruction is of a user program.
    """
    after = address + len(code)

    def back(at: int) -> bytes:
        return b"" if onward.falls_into == after else e.jump(at, onward.of(after))

    return with_way_back(move(code, address, to, onward, user), to, back)


@refuses_out_of_reach
def move(
    code: bytes, address: int, to: int, onward: Onward = UNCHAINED, user: bool = False
) -> Moved | Refused:
    """Return the displaced code of the one instruction `code` at `address`, made for the address
    `to`; or the refusal. The code has no jump back to the next instruction.

    Args:
        onward: has the trampolines of planted instructions. Branches lead to these instead of to
            the original code.
        user: whether the instruction is of a user program.
    """
    parsed = _taken_apart(code, user)
    return parsed if isinstance(parsed, Refused) else _move(parsed, address, to, onward)


@lru_cache(MOST_CODES)
def _taken_apart(code: bytes, user: bool) -> Amd64Instruction | Refused:
    """Return the parts of the one instruction `code`; or the refusal, if the instruction cannot be
    displaced, whatever the address.

    Args:
        user: whether the instruction is of a user program.
    """
    instruction = _x86.only(code, 0)
    if instruction is None:
        return Refused(LOOKED_UP if code == _x86.UDB else UNKNOWN)
    parsed = parse(code)
    reason = refusal(parsed, instruction.mnemonic, user)
    if reason or parsed is None:
        return Refused(reason or "its bytes end before its operands")
    return parsed


def _move(parsed: Amd64Instruction, address: int, to: int, onward: Onward) -> Moved | Refused:
    after = address + len(parsed.code)
    if parsed.map == ONE_BYTE:
        op = parsed.opcode
        if op in (_CALL, _JUMP, _JUMP_SHORT) or op & 0xF0 == 0x70 or op in _HOPS:
            return _move_branch(parsed, after, to, onward)
        if op in _RETURNS:
            if OPERAND_SIZE in parsed.prefixes:
                return Refused("a return with an operand size prefix")
            return Moved(parsed.code, False, 0)
        if op == _GROUP5 and parsed.reg in (_GROUP5_CALL, _GROUP5_JUMP):
            return _move_indirect(parsed, after, to)
    elif parsed.map == TWO_BYTE and parsed.opcode & 0xF0 == 0x80:
        return _move_branch(parsed, after, to, onward)
    copied = with_target(parsed, after, to)
    if isinstance(copied, Refused):
        return copied
    return Moved(copied, True, 0)


def _move_branch(parsed: Amd64Instruction, after: int, to: int, onward: Onward) -> Moved | Refused:
    """Return the displaced code of a direct branch. It has no segment prefixes, because on a branch
    these are only hints or padding.

    Args:
        after: address after the original.
    """
    if OPERAND_SIZE in parsed.prefixes:
        return Refused("a branch with an operand size prefix: processors differ on it")
    op = parsed.opcode
    near = parsed.map == TWO_BYTE or op in (_CALL, _JUMP)
    field = parsed.code[parsed.opcode_at + 1 :]
    target = onward.of(after + struct.unpack("<i" if near else "<b", field)[0])
    if op == _CALL:
        pushed = e.push_value(after)
        return Moved(pushed + e.jump(to + len(pushed), target, "the called function"), False)
    if op in (_JUMP, _JUMP_SHORT):
        return Moved(e.jump(to, target, _TARGET), False)
    if op in _HOPS:
        hop = bytes(p for p in parsed.prefixes if p == ADDRESS_SIZE) + bytes((op,))
        if onward.falls_into == after:
            over = e.hop(e.JUMP_SIZE)
            hop += bytes((len(over),)) + over
            return Moved(hop + e.jump(to + len(hop), target, _TARGET), True)
        hop += bytes((e.JUMP_SIZE,))
        stay = e.jump(to + len(hop), onward.of(after))
        leave = to + len(hop) + len(stay)
        return Moved(hop + stay + e.jump(leave, target, _TARGET), False)
    return Moved(e.branch(op & 0xF, to, target), True)


def _move_indirect(parsed: Amd64Instruction, after: int, to: int) -> Moved | Refused:
    if OPERAND_SIZE in parsed.prefixes:
        return Refused("a branch with an operand size prefix: processors differ on it")
    if parsed.reg == _GROUP5_JUMP:
        copied = with_target(parsed, after, to)
        if isinstance(copied, Refused):
            return copied
        return Moved(copied, False, 0)
    pushed = e.push_value(after)
    at = parsed.modrm_at
    turned = bytearray(parsed.code)
    turned[at] = parsed.modrm & ~0x38 | _GROUP5_JUMP << 3
    jump = parse(bytes(turned))
    assert jump is not None  # only the operation changed
    if parsed.mod == 3:
        if parsed.rm == RSP and not parsed.rex & 1:
            return Refused("a call to the address in the stack pointer")
        return Moved(pushed + jump.code, False, len(pushed))
    rsp = parsed.based_on_rsp
    raised = _raise_rsp(jump) if rsp else with_target(jump, after, to + len(pushed))
    if isinstance(raised, Refused):
        return raised
    return Moved(pushed + raised, False, len(pushed))


def _raise_rsp(parsed: Amd64Instruction) -> bytes | Refused:
    """Return the bytes of an indirect jump through memory based on rsp, with 8 added to its
    displacement. The jump stands for a call that has pushed a return address of 8 bytes before."""
    if ADDRESS_SIZE in parsed.prefixes:
        return Refused("a call through memory at a 32-bit stack address")
    at = parsed.modrm_at + 2  # after ModRM and SIB
    size = (0, 1, 4)[parsed.mod]
    old = int.from_bytes(parsed.code[at : at + size], "little", signed=True)
    if -2 * _WORD < old < 0:
        return Refused("a call through memory that the call itself writes")
    new = old + _WORD
    if not e.fits32(new):
        return Refused("a call through memory too far from the stack")
    short = e.fits8(new)
    head = bytearray(parsed.code[:at])
    head[parsed.modrm_at] = parsed.modrm & 0x3F | (0x40 if short else 0x80)
    return bytes(head) + (struct.pack("<b", new) if short else e.disp32(new))


def with_target(parsed: Amd64Instruction, after: int, to: int) -> bytes | Refused:
    """Return the bytes of a displaced instruction for the address `to`; or the refusal. If a memory
    operand is relative to rip, it is re-encoded, and still means the original's memory.

    Args:
        after: address after the original instruction.
        to: address of the displaced instruction.

    Raises:
        OutOfReach: the operand is too far from `to`.
    """
    code = parsed.code
    if not parsed.rip_relative:
        return code
    if ADDRESS_SIZE in parsed.prefixes:
        return Refused("a 32-bit address relative to the instruction")
    at = parsed.modrm_at + 1
    target = e.signed64(after + struct.unpack_from("<i", code, at)[0])
    distance = e.signed64(target - (to + len(code)))
    if e.fits32(distance):
        return code[:at] + e.disp32(distance) + code[at + 4 :]
    if e.fits32(target):
        # ModRM "SIB follows", SIB "no base, no index".
        modrm = parsed.modrm & ~7 | RSP
        return code[: at - 1] + bytes((modrm, 0x25)) + e.disp32(target) + code[at + 4 :]
    raise OutOfReach("its memory operand is more than 2 GB away from the trampoline")
