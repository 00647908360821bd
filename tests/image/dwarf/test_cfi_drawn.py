"""Call frame information drawn at random, in .debug_frame of each version and in .eh_frame with
each encoding of addresses: rules against a table that is kept in parallel (DWARF 5, 6.4; Linux
Standard Base 5.0, "Exception Frames")."""

from __future__ import annotations

import copy
import random
import struct
from dataclasses import dataclass, field

import pytest

from kinst.core.errors import KinstError
from kinst.core.system import CallerRule
from kinst.image.dwarf.cfi import Cfi
from tests.image.dwarf_asm import sleb, uleb

REGISTERS = range(6)
# DW_EH_PE_absptr, udata2, udata4, udata8, sdata2, sdata4, sdata8, as struct packs them.
FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
FROM_HERE = 0x10
SECTION = 0x6000  # where .eh_frame is


@dataclass
class Table:
    """The rules at one address.

    Attributes:
        cfa: (register, offset), None for an expression.
        saved: offset from the CFA of each register in memory.
        unknown: registers that are anywhere else.
    """

    cfa: tuple[int, int] | None
    saved: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)

    def same(self, register: int) -> None:
        self.saved.pop(register, None)
        self.unknown.discard(register)


class Program:
    """Instructions of one entry, and the rows of the table that they make: (address, table)."""

    def __init__(
        self, rng: random.Random, code_align: int, data_align: int, initial: Table | None, eh: bool
    ) -> None:
        self.rng, self.code_align, self.data_align = rng, code_align, data_align
        self.initial, self.eh, self.absolute = initial, eh, not eh
        self.now = copy.deepcopy(initial) if initial else Table((rng.randrange(6), 8))
        self.kept: list[Table] = []
        self.code = b"" if initial else b"\x0c" + uleb(self.now.cfa[0]) + uleb(8)  # type: ignore[index]

    def draw(self, count: int) -> None:
        for _ in range(count):
            self.rng.choice((self.frame, self.frame, self.register, self.register, self.other))()

    def moved(self) -> tuple[int, bytes, bytes]:
        """Return a factored offset: in bytes, and its numbers as DWARF has them, unsigned and
        signed."""
        factor = self.rng.randrange(40)
        return factor * self.data_align, uleb(factor), sleb(factor)

    def frame(self) -> None:
        register, offset = self.rng.randrange(6), self.rng.choice((0, 8, 16, 200))
        kind = self.rng.randrange(6)
        if kind == 0 or self.now.cfa is None:
            self.code += b"\x0c" + uleb(register) + uleb(offset)
            self.now.cfa = (register, offset)
        elif kind == 1:
            self.code += b"\x0d" + uleb(register)
            self.now.cfa = (register, self.now.cfa[1])
        elif kind == 2:
            self.code += b"\x0e" + uleb(offset)
            self.now.cfa = (self.now.cfa[0], offset)
        elif kind == 3:
            factor = self.rng.randrange(-30, 30)
            self.code += b"\x12" + uleb(register) + sleb(factor)
            self.now.cfa = (register, factor * self.data_align)
        elif kind == 4:
            factor = self.rng.randrange(-30, 30)
            self.code += b"\x13" + sleb(factor)
            self.now.cfa = (self.now.cfa[0], factor * self.data_align)
        else:
            self.code += b"\x0f" + b"\x02\x70\x08"
            self.now.cfa = None

    def register(self) -> None:
        register, (offset, plain, signed) = self.rng.randrange(6), self.moved()
        kind = self.rng.randrange(12)
        if kind < 3:
            self.code += (
                bytes([0x80 | register]) + plain,
                b"\x05" + uleb(register) + plain,
                b"\x11" + uleb(register) + signed,
            )[kind]
            self.now.same(register)
            self.now.saved[register] = offset
        elif kind < 5:
            if self.initial is None:
                return  # there is no saved state
            self.code += bytes([0xC0 | register]) if kind == 3 else b"\x06" + uleb(register)
            self.now.same(register)
            if register in self.initial.saved:
                self.now.saved[register] = self.initial.saved[register]
            if register in self.initial.unknown:
                self.now.unknown.add(register)
        elif kind == 5:
            self.code += b"\x08" + uleb(register)
            self.now.same(register)
        else:
            self.code += (
                b"\x07" + uleb(register), b"\x09" + uleb(register) + uleb(200),
                b"\x10" + uleb(register) + b"\x02\x70\x08", b"\x14" + uleb(register) + plain,
                b"\x15" + uleb(register) + signed, b"\x16" + uleb(register) + b"\x81\0" + bytes(1),
            )[kind - 6]  # fmt: skip
            self.now.same(register)
            self.now.unknown.add(register)

    def other(self) -> None:
        kind = self.rng.randrange(5)
        if kind == 0:
            self.code += b"\x0a"
            self.kept.append(copy.deepcopy(self.now))
        elif kind == 1 and self.kept:
            self.code += b"\x0b"
            self.now = self.kept.pop()
        else:
            self.code += self.rng.choice((b"\0", b"\x2d", b"\x2e" + uleb(300)))

    def advance(self, at: int) -> int:
        """Return the next address, after adding an instruction that advances to it."""
        step = self.rng.choice((1, 5, 63, 200, 300, 2 if self.eh else 70000))
        ways = [b"\x04" + struct.pack("<I", step)]
        ways += [b"\x03" + struct.pack("<H", step)] if step < 1 << 16 else []
        ways += [b"\x02" + bytes([step])] if step < 256 else []
        ways += [bytes([0x40 | step])] if step < 64 else []
        behind = at + step * self.code_align
        # In .eh_frame this opcode has an encoded address, and compilers only write absolute ones.
        ways += [b"\x01" + struct.pack("<Q", behind)] if self.absolute else []
        self.code += self.rng.choice(ways)
        return behind


def encodings(at: int) -> list[int]:
    """Return the encodings that can express the addresses of entries from this address on."""
    if at > 0x8000_0000:
        return [0x00, 0x03, 0x04, 0x0C, 0x03 | FROM_HERE, 0x04 | FROM_HERE, 0x0C | FROM_HERE]
    found = [0x00, 0x03, 0x04, 0x0B, 0x0C, FROM_HERE, 0x0B | FROM_HERE, 0x0C | FROM_HERE]
    found += [0x02, 0x02] if at < 0xA000 else []
    return found + ([0x0A, 0x0A | FROM_HERE] if at < 0x2000 else [])


class Drawn:
    """A section.

    Attributes:
        rows: of each entry (first address, end, [(address, table)]).
    """

    def __init__(self, seed: int, eh: bool) -> None:
        self.rng, self.eh, self.data = random.Random(seed), eh, b""
        self.entries: list[tuple[int, int, list[tuple[int, Table]]]] = []
        self.back = 0
        at = self.rng.choice((0x100, 0x9000, 0x9000_0000))
        for _ in range(self.rng.randrange(1, 4)):
            cie = self.cie(at)
            for _ in range(self.rng.randrange(1, 4)):
                at = self.fde(at, *cie) + self.rng.randrange(17, 60)
            if eh and self.rng.random() < 0.3:
                self.data += bytes(4)  # a terminator between the parts of several files

    def append(self, kind: bytes, body: bytes) -> int:
        at, room = len(self.data), -len(body) % 8
        self.data += struct.pack("<I", len(kind + body) + room) + kind + body + bytes(room)
        return at

    def cie(self, at: int) -> tuple[int, str, int, Program]:
        rng = self.rng
        version = rng.choice((1, 3)) if self.eh else rng.choice((1, 3, 4))
        letters = rng.choice(("zR", "zPLR", "zRS", "z", "")) if self.eh else ""
        encoding = self.rng.choice(encodings(at)) if "R" in letters else 0
        program = Program(rng, rng.choice((1, 2, 4)), rng.choice((-8, -4, 1)), None, self.eh)
        program.draw(6)
        self.back = rng.choice((*range(6), 200))
        body = bytes([version]) + letters.encode() + b"\0" + (b"\x08\0" if version == 4 else b"")
        body += uleb(program.code_align) + sleb(program.data_align)
        body += bytes([self.back]) if version == 1 else uleb(self.back)
        if letters:
            known = {"P": b"\x03" + bytes(4), "L": b"\x0b", "R": bytes([encoding]), "S": b""}
            augmented = b"".join(known[letter] for letter in letters[1:])
            body += uleb(len(augmented)) + augmented
        kind = bytes(4) if self.eh else b"\xff" * 4
        return self.append(kind, body + program.code), letters, encoding, program

    def fde(self, low: int, cie: int, letters: str, encoding: int, first: Program) -> int:
        program = Program(self.rng, first.code_align, first.data_align, first.now, self.eh)
        program.absolute = encoding == 0
        rows, at = [(low, copy.deepcopy(first.now))], low
        for _ in range(self.rng.randrange(6)):
            program.draw(self.rng.randrange(4))
            rows[-1] = (at, copy.deepcopy(program.now))
            at = program.advance(at)
            rows.append((at, copy.deepcopy(program.now)))
        program.draw(2)
        rows[-1] = (at, copy.deepcopy(program.now))
        end = at + self.rng.randrange(1, 50)
        self.entries.append((low, end, rows))
        if not self.eh:
            self.append(struct.pack("<I", cie), struct.pack("<QQ", low, end - low) + program.code)
            return end
        form = FORMATS[encoding & 0x0F]
        here = len(self.data) + 4
        place = low - (SECTION + here + 4) if encoding & FROM_HERE else low
        bits = 8 * struct.calcsize(form)
        packed = (place % (1 << bits)).to_bytes(bits // 8, "little")
        body = packed + (end - low).to_bytes(bits // 8, "little")
        if letters:
            more = bytes(4) if "L" in letters else b""
            body += uleb(len(more)) + more
        self.append(struct.pack("<I", here - cie), body + program.code)
        return end

    def wanted(self, address: int, register: int) -> CallerRule | None:
        for low, end, rows in self.entries:
            if low <= address < end:
                table = [table for at, table in rows if at <= address][-1]
                if table.cfa is None or register in table.unknown:
                    return None
                return CallerRule(*table.cfa, register, table.saved.get(register))
        return None


@pytest.mark.parametrize("eh", [False, True], ids=["debug_frame", "eh_frame"])
@pytest.mark.parametrize("seed", range(60))
def test_rules_of_all_registers(seed: int, eh: bool) -> None:
    drawn = Drawn(seed, eh)
    cfi = Cfi(drawn.data, ".eh_frame", SECTION) if eh else Cfi(drawn.data)
    assert len(cfi) == len(drawn.entries)
    for low, end, rows in drawn.entries:
        # At the end there is no rule: the next entry is farther away than a compiler's padding.
        asked = {low, end - 1, end, *(at for at, _ in rows), *(at - 1 for at, _ in rows[1:])}
        for address in sorted(at for at in asked if low <= at):
            for register in REGISTERS:
                assert cfi.rule(address, register) == drawn.wanted(address, register), (
                    hex(address), register,
                )  # fmt: skip


@pytest.mark.parametrize("eh", [False, True], ids=["debug_frame", "eh_frame"])
def test_the_return_address_is_the_entrys(eh: bool) -> None:
    """Without a register the rule is that of the register that the CIE names."""
    for seed in range(60, 80):
        drawn = Drawn(seed, eh)
        cfi = Cfi(drawn.data, ".eh_frame", SECTION) if eh else Cfi(drawn.data)
        low, _, _ = drawn.entries[-1]
        assert cfi.rule(low) == drawn.wanted(low, drawn.back)


@pytest.mark.parametrize("eh", [False, True], ids=["debug_frame", "eh_frame"])
def test_cut_sections(eh: bool) -> None:
    """Cut off anywhere: an error, or the complete entries."""
    drawn = Drawn(81, eh)
    for size in range(len(drawn.data)):
        try:
            cfi = Cfi(drawn.data[:size], ".eh_frame", SECTION) if eh else Cfi(drawn.data[:size])
        except KinstError as error:
            assert "frame" in str(error)
            continue
        assert len(cfi) < len(drawn.entries) or not drawn.data[size:].strip(b"\0")
        for low, _, _ in drawn.entries[: len(cfi)]:
            assert cfi.rule(low, 0) == drawn.wanted(low, 0)
