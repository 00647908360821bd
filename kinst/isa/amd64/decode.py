"""Decoding with capstone, without its slow operand details.

Tested by tests/isa/test_isa_contract.py and tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from kinst.core.instruction import Instruction
from kinst.isa._plain import Decoded, PlainDisassembly, decoded

_DISASSEMBLER = Cs(CS_ARCH_X86, CS_MODE_64)
_LONGEST = 15
_PADDING = "int3"
_NEVER_FALLS_THROUGH = ("ret", "jmp", "notrack jmp", "ud2")
_CHUNK = 1 << 16  # capstone keeps what it decoded in one call in memory
_PREFIX_WORDS = {
    "lock", "rep", "repe", "repz", "repne", "repnz", "notrack", "bnd", "data16", "xacquire",
    "xrelease", "addr32",
}  # fmt: skip

# Instructions that kernels use and this capstone does not know: encoding to text.
_UNKNOWN_TO_CAPSTONE = {
    b"\x0f\x01\xe8": "serialize",
    b"\xf2\x0f\x01\xff": "pvalidate",
    b"\xf3\x0f\x01\xff": "psmash",
    b"\xf2\x0f\x01\xfe": "rmpupdate",
    b"\xf3\x0f\x01\xfe": "rmpadjust",
    b"\xc4\xe2\x78\x49\xc0": "tilerelease",
}

# These have a ModRM byte (SDM volume 2, UD), which this capstone does not know.
_WITH_MODRM = ("ud0", "ud1")

PLAIN = PlainDisassembly(CS_ARCH_X86, CS_MODE_64, 0, _PADDING, _NEVER_FALLS_THROUGH, _WITH_MODRM)


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Instructions of code in order; stops at the first byte that does not decode.

    Breakpoints behind a return or a jump are left out: compilers and the kernel put them there
    so that processors do not run on in vain (straight-line speculation), and nothing else does.
    """
    for where, size, mnemonic, operands in whole(code, address):
        text = f"{mnemonic} {operands}" if operands else mnemonic
        yield Instruction(where, code[where - address : where - address + size], text)


def whole(code: bytes, address: int) -> Iterator[Decoded]:
    """The same as (address, size, mnemonic, operands)."""
    before = ""
    for one in _decode_all(code, address):
        if one[2] != _PADDING or not before.startswith(_NEVER_FALLS_THROUGH):
            before = one[2]
            yield one


def _decode_all(code: bytes, address: int) -> Iterator[Decoded]:
    at = 0
    while at < len(code):
        last = at + _CHUNK >= len(code)
        start = at
        for one in decoded(_DISASSEMBLER, code[at : at + _CHUNK], address + at, _WITH_MODRM):
            offset = one[0] - address
            if not last and offset + _LONGEST > start + _CHUNK:
                break  # the chunk may cut this one short: it opens the next chunk
            yield one
            at = offset + one[1]
        if at == start or last:
            extra = _unknown(code, at)
            if not extra:
                return
            yield address + at, len(extra), _UNKNOWN_TO_CAPSTONE[extra], ""
            at += len(extra)


def split(code: bytes, address: int, count: int) -> list[tuple[int, str, str]]:
    """Up to `count` instructions as (size, mnemonic without prefixes, operands)."""
    found = [
        (size, mnemonic if " " not in mnemonic else bare(mnemonic), operands)
        for _, size, mnemonic, operands in decoded(_DISASSEMBLER, code, address, _WITH_MODRM, count)
    ]
    extra = b"" if found else _unknown(code, 0)
    return [(len(extra), _UNKNOWN_TO_CAPSTONE[extra], "")] if extra else found


def padding(code: bytes) -> int:
    """Bytes of breakpoints and no-operations at the start of code."""
    size = 0
    while size < len(code):
        one = split(code[size : size + _LONGEST], 0, 1)
        if not one or one[0][1] not in ("int3", "nop"):
            break
        size += one[0][0]
    return size


def undecoded(code: bytes) -> str:
    """See Isa.undecoded."""
    return "no known instruction begins so, or the function ends inside one"


def _unknown(code: bytes, at: int) -> bytes:
    """The bytes at `at` that are an instruction capstone does not know, or none."""
    return next((known for known in _UNKNOWN_TO_CAPSTONE if code.startswith(known, at)), b"")


def bare(mnemonic: str) -> str:
    """The mnemonic without the words of its prefixes ("lock xadd" is "xadd")."""
    return next((w for w in mnemonic.split() if w not in _PREFIX_WORDS), mnemonic)
