"""A dense sample of amd64's encodings: every opcode of every map, with the prefixes and ModRM bytes
that choose between instructions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

# Legacy prefixes and REX before an opcode.
PREFIXES = tuple(
    bytes.fromhex(text)
    for text in ("", "66", "f3", "f2", "48", "41", "67", "65", "f0", "66 48", "f3 48", "f2 48")
)
ESCAPES = (b"", b"\x0f", b"\x0f\x38", b"\x0f\x3a")
# ModRM bytes: relative to rip; by rsp; by a register and a displacement; a register.
FORMS = (0x05, 0x04, 0x41, 0xC1)
TAIL = 14


def encodings() -> Iterator[bytes]:
    """Yield bytes that begin with one instruction, or with none."""
    rng = random.Random(30)
    for prefix, escape, opcode in product(PREFIXES, ESCAPES, range(256)):
        for reg, form in product(range(8), FORMS):
            yield prefix + escape + bytes((opcode, form | reg << 3)) + rng.randbytes(TAIL)
    for opcode, modrm in product((0x01, 0xAE, 0xC7, 0x1E, 0x0D, 0x18), range(0xC0, 0x100)):
        for prefix in PREFIXES:
            yield prefix + bytes((0x0F, opcode, modrm)) + rng.randbytes(TAIL)
    for vex, opcode in product(_vex(), range(256)):
        for form in FORMS:
            yield vex + bytes((opcode, form | rng.randrange(8) << 3)) + rng.randbytes(TAIL)


def _vex() -> Iterator[bytes]:
    """Yield VEX, EVEX and XOP, with every map, operand size, length and mandatory prefix."""
    for wide, long, pp in product((0, 0x80), (0, 4), range(4)):
        rest = wide | 0x78 | long | pp
        if not wide:
            yield bytes((0xC5, 0x80 | rest))
        for opmap in (1, 2, 3, 5, 7):
            yield bytes((0xC4, 0xE0 | opmap, rest))
        for opmap in (8, 9, 10):
            yield bytes((0x8F, 0xE0 | opmap, rest & 0xFC))
        for opmap, length in product((1, 2, 3, 5, 6), (0, 0x20, 0x40) if long else (0x48,)):
            yield bytes((0x62, 0xF0 | opmap, wide | 0x7C | pp, length | 8))
