"""Whether the arithmetic flags are dead at an instruction: overwritten before they are read.

A flag that an instruction leaves undefined counts as overwritten: no program can use the old
value after it.  Everything that is not in these tables counts as a reader, as does every
branch, call and return: what runs after them is not looked at.  Source: Intel SDM volume 1,
appendix A ("EFLAGS cross-reference").
"""

from __future__ import annotations

from kinst.isa.amd64.decode import split

CF, PF, AF, ZF, SF, OF = 0x001, 0x004, 0x010, 0x040, 0x080, 0x800
ARITHMETIC = CF | PF | AF | ZF | SF | OF

# inc leaves CF alone.
COUNTING_CLOBBERS = ARITHMETIC & ~CF

LOOK_AHEAD = 16  # instructions; longer runs without any flag-setter are rare
_PIECE = 4  # decoded at a time: most runs are decided by then
_LONGEST = 15  # bytes of an instruction

_ALL = "add sub cmp and or xor test neg mul imul div idiv xadd cmpxchg popcnt andn blsr blsi blsmsk"
_CARRY_READERS = "adc sbb"
_STEPS = "inc dec"
_BIT_TESTS = "bt bts btr btc"
_SCANS = "bsf bsr tzcnt lzcnt"  # one encoding is either, by processor: ZF is common to both
_SHIFTS = "shl shr sar sal"
_DOUBLE_SHIFTS = "shld shrd"
_NONE = (
    "mov movabs movzx movsx movsxd lea push pop nop xchg not bswap cdqe cdq cqo cwde cwd cbw"
    " movsb movsw movsd movsq stosb stosw stosd stosq lodsb lodsw lodsd lodsq movnti"
    " lfence mfence sfence pause prefetcht0 prefetcht1 prefetcht2 prefetchnta prefetchw"
    " shlx shrx sarx rorx rol ror endbr64 cld leave"
)

# mnemonic -> (flags read, flags written)
_EFFECT = {
    **dict.fromkeys(_NONE.split(), (0, 0)),
    **dict.fromkeys(_ALL.split(), (0, ARITHMETIC)),
    **dict.fromkeys(_CARRY_READERS.split(), (CF, ARITHMETIC)),
    **dict.fromkeys(_STEPS.split(), (0, ARITHMETIC & ~CF)),
    **dict.fromkeys(_BIT_TESTS.split(), (0, CF)),
    **dict.fromkeys(_SCANS.split(), (0, ZF)),
    **dict.fromkeys(("cmpxchg8b", "cmpxchg16b"), (0, ZF)),
}
_COUNTED = frozenset(_SHIFTS.split() + _DOUBLE_SHIFTS.split())
_VOID = (0, 0)


def effect_of(mnemonic: str) -> tuple[int, int] | None:
    """(flags read, flags written) of an instruction, by its name without prefixes; None where
    that is not known, or hangs on an operand."""
    return _EFFECT.get(mnemonic)


def is_counted(mnemonic: str) -> bool:
    """Whether its effect is shift_effect() of its operands."""
    return mnemonic in _COUNTED


def shift_effect(operands: str) -> tuple[int, int]:
    """A shift by 0 leaves the flags; by cl it may.  The count is masked to 5 or 6 bits."""
    count = operands.rpartition(", ")[2]
    if count == "cl":
        return _VOID
    try:
        value = int(count, 0)
    except ValueError:  # the form with one operand shifts by 1
        value = 1
    return (0, ARITHMETIC) if value & 0x1F else _VOID


def dead(code: bytes, following: bytes, address: int, flags: int = ARITHMETIC) -> bool:
    """Whether all of `flags` are overwritten before any is read, starting with `code` itself.

    code: the instruction at address.  following: the bytes after it; it may be cut anywhere.
    """
    run = code + following[: LOOK_AHEAD * _LONGEST]
    for _ in range(LOOK_AHEAD // _PIECE):
        size = 0
        for length, mnemonic, operands in split(run, address, _PIECE):
            size += length
            effect = _EFFECT.get(mnemonic)
            if effect is None:
                if mnemonic not in _COUNTED:
                    return False
                effect = shift_effect(operands)
            read, written = effect
            if read & flags:
                return False
            flags &= ~written
            if not flags:
                return True
        run = run[size:]
        if not size:
            return False
    return False
