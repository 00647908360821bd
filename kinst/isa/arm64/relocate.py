"""Displacement of one arm64 instruction: code with the instruction's effect at another address.

An instruction that depends on its own address is rewritten:

- b goes directly to its target; bl and blr put the original return address into x30 first;
- a conditional branch reaches only 1 MB or 32 KB, so a b goes to its target. The branch leads to
  this b or, with the opposite condition, over it;
- adr and adrp make the original's address, in as many instructions as it takes;
- ldr literal becomes code that makes the address in a register, and a load from there. The address
  is made in the register that is loaded. If that is no general register (SIMD, prfm), it is made in
  x16, which is saved on the stack meanwhile.

refuse.py decides which instructions are not displaced. Source: Arm Architecture Reference Manual
(DDI 0487), C6.
"""

from __future__ import annotations

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
from kinst.isa.arm64 import encode as e
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64.decode import text_of
from kinst.isa.arm64.refuse import UNKNOWN, refusal

TARGET = "the branch's target"
_WITH_LINK = 1 << 21  # of the branches to registers: blr, not br
_ALWAYS = 0b1110  # conditions from here on (al, nv)
_CONDITION_LOW, _NOT_ZERO = 1, 1 << 24  # the bit that turns a condition round
_OFFSET_19 = 0x7FFFF << 5
_OFFSET_14 = 0x3FFF << 5
_OFFSET_SHIFT = 5
_TEST_BIT_MASK, _TEST_BIT = 0x7E000000, 0x36000000  # tbz, tbnz, whose offset has 14 bits
_HOP = 2  # instructions that a conditional branch hops to: over itself and the jump back
_BORROWED = 16  # x16, whose value is saved on the stack
_VECTOR = 1 << 26
_PREFETCH = 3  # opc of a literal
# Loads from [xN] that replace a literal load, by its opc: to general and to vector registers.
_GENERAL_LOADS = (0xB9400000, 0xF9400000, 0xB9800000, 0xF9800000)  # w, x, sw, prfm
_VECTOR_LOADS = (0xBD400000, 0xFD400000, 0x3DC00000)  # s, d, q


def displace(code: bytes, address: int, to: int, onward: Onward = UNCHAINED) -> Relocated | Refused:
    """Return the displaced code of the one instruction `code` at `address`, made for the address
    `to`; or the refusal. After this code, control goes where the original instruction sends it.

    Args:
        onward: has the trampolines of planted instructions. Control goes on in these instead of in
            the original code.
    """
    after = address + e.SIZE

    def back(at: int) -> bytes:
        return b"" if onward.falls_into == after else e.branch(at, onward.of(after))

    return with_way_back(move(code, address, to, onward), to, back)


@refuses_out_of_reach
def move(code: bytes, address: int, to: int, onward: Onward = UNCHAINED) -> Moved | Refused:
    """Return the displaced code of the one instruction `code` at `address`, made for the address
    `to`; or the refusal. The code has no jump back to the next instruction.

    Args:
        onward: has the trampolines of planted instructions. Branches lead to these instead of to
            the original code.
    """
    if len(code) != e.SIZE or not (_is_unprivileged_load(code) or text_of(code, address)):
        return Refused(UNKNOWN)
    parsed = p.parse(code, address)
    if parsed.kind == p.UNKNOWN:
        return Refused(UNKNOWN)
    reason = refusal(parsed.word)
    if reason:
        return Refused(reason)
    return _move(parsed, address, to, onward)


def _is_unprivileged_load(code: bytes) -> bool:
    """Return whether an instruction is an ldtr*. capstone does not decode an ldtr* whose
    destination is also its base register (C4.1, "Load/store register (unprivileged)")."""
    word = int.from_bytes(code, "little")
    size, opc = word >> 30, word >> 22 & 3
    kind = opc == 1 or (opc == 2 and size < 3) or (opc == 3 and size < 2)
    return kind and word & 0x3F200C00 == 0x38000800


def _move(parsed: p.Arm64Instruction, address: int, to: int, onward: Onward) -> Moved | Refused:
    word, kind, after = parsed.word, parsed.kind, address + e.SIZE
    # b.al and b.nv always branch.
    if kind == p.B or (kind == p.B_COND and word & 0xF >= _ALWAYS):
        return Moved(e.branch(to, onward.of(parsed.target), TARGET), False)
    if kind == p.BL:
        link = _address(e.LR, to, after)
        jump = e.branch(to + len(link), onward.of(parsed.target), "the called function")
        return Moved(link + jump, False)
    if kind in (p.B_COND, p.CB, p.TB):
        target = onward.of(parsed.target)
        if onward.falls_into == after:
            over = aimed(e.word(_inverted(word, kind)), 0, _HOP * e.SIZE)
            return Moved(over + e.branch(to + len(over), target, TARGET), True)
        hop = aimed(e.word(word), 0, _HOP * e.SIZE)
        stay = e.branch(to + len(hop), onward.of(after))
        leave = to + len(hop) + len(stay)
        return Moved(hop + stay + e.branch(leave, target, TARGET), False)
    if kind in (p.ADR, p.ADRP):
        code = e.NOP if parsed.register == e.ZR else _address(parsed.register, to, parsed.target)
        return Moved(code, True)
    if kind == p.LITERAL:
        return _move_literal(parsed, to)
    if kind in (p.BR, p.RET):
        return Moved(e.word(word), False, 0)
    if kind == p.BLR:
        if e.LR in (parsed.register, word & 0x1F if parsed.authenticated else e.ZR):
            return Refused("a call through the register that its return address goes to")
        link = _address(e.LR, to, after)
        return Moved(link + e.word(word & ~_WITH_LINK), False, len(link))
    return Moved(e.word(word), True, 0)


def _inverted(word: int, kind: str) -> int:
    """Return the encoding of a conditional branch with the opposite condition (C6: B.cond, CBZ,
    TBZ).

    Args:
        kind: p.B_COND, p.CB or p.TB.
    """
    return word ^ (_CONDITION_LOW if kind == p.B_COND else _NOT_ZERO)


def aimed(code: bytes, at: int, to: int) -> bytes:
    """Return code in which the conditional branch at offset `at` is changed to lead to offset
    `to`."""
    word = int.from_bytes(code[at : at + e.SIZE], "little")
    field = _OFFSET_14 if word & _TEST_BIT_MASK == _TEST_BIT else _OFFSET_19
    distance = (to - at) // e.SIZE << _OFFSET_SHIFT & field
    return code[:at] + e.word(word & ~field | distance) + code[at + e.SIZE :]


def _address(register: int, at: int, address: int) -> bytes:
    """Return the shortest code at the address `at` that sets a register to `address`, however far
    it is."""
    try:
        if not address & 0xFFF:
            return e.page_of(register, at, address)
        return e.address_of(register, at, address)
    except OutOfReach:
        return e.load_value(register, address)


def _move_literal(parsed: p.Arm64Instruction, to: int) -> Moved:
    """Return the displaced code of a literal load at the address `to`. The load reads the kernel's
    text, so it cannot fault."""
    opc, vector, register = parsed.word >> 30, parsed.word & _VECTOR, parsed.register
    load = (_VECTOR_LOADS if vector else _GENERAL_LOADS)[opc] | register
    if not vector and opc != _PREFETCH and register != e.ZR:
        address = _address(register, to, parsed.target)
        return Moved(address + e.word(load | register << 5), True)
    kept = e.push_pair(_BORROWED, e.ZR, 16)
    address = _address(_BORROWED, to + len(kept), parsed.target)
    restored = e.pop_pair(_BORROWED, e.ZR, 16)
    return Moved(kept + address + e.word(load | _BORROWED << 5) + restored, True)


def literal_size(word: int) -> int:
    """Return how many bytes the literal load with this encoding reads; 0 for a prefetch."""
    opc = word >> 30
    if word & _VECTOR:
        return 4 << opc
    return (4, 8, 4, 0)[opc]
