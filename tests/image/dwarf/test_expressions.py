"""Location expressions drawn at random: their D text, as the C compiler evaluates it, against the
stack machine of DWARF 5 (section 2.5), run here."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.image.dwarf.expressions import Base, ExpressionContext, NotHereError, pieces_of, value_of

MASK = (1 << 64) - 1
REGISTERS = [0, 1, 5, MASK, 1 << 63, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x1234_5678_9ABC_DEF0]
MEMORY_REGISTER = 8  # holds the address of MEMORY
MEMORY = bytes(range(0x70, 0xB0))
BASES = [Base(8, False), Base(1, False), Base(1, True), Base(2, False), Base(2, True),
         Base(4, False), Base(4, True), Base(8, True)]  # fmt: skip
COUNT = 250


def nowhere() -> str:
    raise NotHereError("not asked")


def context(at_entry: bool = False) -> ExpressionContext:
    return ExpressionContext(
        [f"R_{n}" for n in range(9)] + [""], lambda: "regs[R_5]", lambda: "regs[R_6]", at_entry,
        lambda at: BASES[at], lambda index: 0x1000 * index, lambda at: at + 5,
    )  # fmt: skip


def uleb(value: int, least: int = 1) -> bytes:
    digits = []
    while value or len(digits) < least:
        digits.append(value & 0x7F)
        value >>= 7
    return bytes([d | 0x80 for d in digits[:-1]] + digits[-1:])


def sleb(value: int) -> bytes:
    digits = []
    while not (-64 <= value < 64):
        digits.append(value & 0x7F)
        value >>= 7
    return bytes([*(d | 0x80 for d in digits), value & 0x7F])


def signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def cut(value: int, base: Base) -> int:
    return signed(value, 8 * base.size) if base.signed else value & (1 << 8 * base.size) - 1


def quotient(a: int, b: int) -> int:
    """Divide toward zero, as C does."""
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


BINARY = {
    0x1A: lambda a, b: a & b, 0x1C: lambda a, b: a - b, 0x1E: lambda a, b: a * b,
    0x21: lambda a, b: a | b, 0x22: lambda a, b: a + b, 0x27: lambda a, b: a ^ b,
}  # fmt: skip
COMPARE = {
    0x29: lambda a, b: a == b, 0x2A: lambda a, b: a >= b, 0x2B: lambda a, b: a > b,
    0x2C: lambda a, b: a <= b, 0x2D: lambda a, b: a < b, 0x2E: lambda a, b: a != b,
}  # fmt: skip


class Drawn:
    """Expressions that push one value of the generic type, and that value."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.forks = 0

    def any(self, depth: int) -> tuple[bytes, int]:
        if depth <= 0 or self.rng.random() < 0.15:
            return self.leaf()
        kinds = [self.unary, self.binary, self.binary, self.compared, self.divided, self.shifted,
                 self.shuffled, self.typed]  # fmt: skip
        if self.forks < 3:
            kinds.append(self.forked)
        return self.rng.choice(kinds)(depth - 1)

    def leaf(self) -> tuple[bytes, int]:
        rng = self.rng
        kind = rng.randrange(9)
        if kind == 0:
            n = rng.randrange(32)
            return bytes([0x30 + n]), n
        if kind == 1:
            op = rng.randrange(8)
            size = 1 << op // 2
            raw = rng.randbytes(size)
            return bytes([8 + op]) + raw, int.from_bytes(raw, "little", signed=bool(op & 1)) & MASK
        if kind == 2:
            n = rng.getrandbits(rng.randrange(1, 65))
            return b"\x10" + uleb(n), n
        if kind == 3:
            n = signed(rng.getrandbits(64)) >> rng.randrange(64)
            return b"\x11" + sleb(n), n & MASK
        if kind == 4:
            at, size = rng.randrange(56), rng.choice((1, 2, 4, 8))
            value = int.from_bytes(MEMORY[at : at + size], "little")
            there = bytes([0x70 + MEMORY_REGISTER]) + sleb(at)
            return there + (b"\x06" if size == 8 else bytes([0x94, size])), value
        if kind == 5:
            n = rng.getrandbits(40)
            return b"\x03" + n.to_bytes(8, "little"), n + 5
        if kind == 6:
            n = rng.randrange(300)
            return b"\x91" + sleb(n - 150), REGISTERS[5] + n - 150
        if kind == 7:
            return b"\x9c", REGISTERS[6]
        register, offset = rng.randrange(8), rng.choice((0, 5, -3, 1 << 31, -(1 << 40)))
        head = bytes([0x70 + register]) if rng.random() < 0.5 else b"\x92" + uleb(register)
        return head + sleb(offset), REGISTERS[register] + offset & MASK

    def unary(self, depth: int) -> tuple[bytes, int]:
        code, a = self.any(depth)
        number = self.rng.getrandbits(20)
        op, value = self.rng.choice((
            (b"\x19", abs(signed(a))), (b"\x1f", -a), (b"\x20", ~a),
            (b"\x23" + uleb(number), a + number), (b"\x96", a), (b"\xf0", a),
        ))  # fmt: skip
        return code + op, value & MASK

    def binary(self, depth: int) -> tuple[bytes, int]:
        (left, a), (right, b) = self.any(depth), self.any(depth)
        op, made = self.rng.choice(list(BINARY.items()))
        return left + right + bytes([op]), made(a, b) & MASK

    def compared(self, depth: int) -> tuple[bytes, int]:
        (left, a), (right, b) = self.any(depth), self.any(depth)
        if self.rng.random() < 0.3:
            right, b = left, a
        op, made = self.rng.choice(list(COMPARE.items()))
        return left + right + bytes([op]), int(made(signed(a), signed(b)))

    def divided(self, depth: int) -> tuple[bytes, int]:
        (left, a), by = self.any(depth), self.rng.choice((1, 3, 1000, -7))
        right = b"\x11" + sleb(by)
        if self.rng.random() < 0.5:
            return left + right + b"\x1b", quotient(signed(a), by) & MASK
        return left + right + b"\x1d", a % (by & MASK)

    def shifted(self, depth: int) -> tuple[bytes, int]:
        (left, a), by = self.any(depth), self.rng.randrange(64)
        op, value = self.rng.choice((
            (0x24, a << by), (0x25, a >> by), (0x26, signed(a) >> by),
        ))  # fmt: skip
        return left + bytes([0x08, by, op]), value & MASK

    def shuffled(self, depth: int) -> tuple[bytes, int]:
        """Of three values: x - y of those that end at the top, with others dropped."""
        (one, a), (two, b), (three, c) = (self.any(depth - 1) for _ in range(3))
        codes = one + two + three
        ending, value = self.rng.choice((
            (b"\x13\x13", a), (b"\x13\x1c", a - b), (b"\x16\x1c\x1c", a - (c - b)),
            (b"\x14\x1c\x1c\x1c", a - (b - (c - b))), (b"\x15\x02\x1c\x1c\x1c", a - (b - (c - a))),
            (b"\x17\x1c\x1c", c - (a - b)), (b"\x12\x1e\x1c\x1c", a - (b - c * c)),
            (b"\x15\x00\x1c\x1c\x1c", a - b),
        ))  # fmt: skip
        return codes + ending, value & MASK

    def typed(self, depth: int) -> tuple[bytes, int]:
        """Two values of a base type, an operation on them, and a conversion back."""
        rng, which = self.rng, self.rng.randrange(1, len(BASES))
        base = BASES[which]
        (left, a), (right, b) = self.any(depth), self.any(depth)
        to = rng.choice((b"\xa8", b"\xf7")) + uleb(which)
        x, y = cut(a, base), cut(b, base)
        if rng.random() < 0.3:
            raw = rng.randbytes(base.size)
            right, y = (
                b"\xa4" + uleb(which) + bytes([base.size]) + raw,
                int.from_bytes(raw, "little", signed=base.signed),
            )
        elif rng.random() < 0.3:
            register = rng.randrange(8)
            right, y = b"\xa5" + uleb(register) + uleb(which), cut(REGISTERS[register], base)
        elif rng.random() < 0.3:
            at = rng.randrange(56)
            there = bytes([0x70 + MEMORY_REGISTER]) + sleb(at)
            right = there + b"\xa6" + bytes([base.size]) + uleb(which)
            y = cut(int.from_bytes(MEMORY[at : at + base.size], "little"), base)
        else:
            right += to
        if rng.random() < 0.4:
            op, compare = rng.choice(list(COMPARE.items()))
            return left + to + right + bytes([op]), int(compare(x, y))
        op, made = rng.choice(list(BINARY.items()))
        code, value = left + to + right + bytes([op]), cut(made(x, y), base)
        if rng.random() < 0.3:
            op, value = rng.choice(((0x1F, -value), (0x20, ~value), (0x19, abs(value))))
            code, value = code + bytes([op]), cut(value, base)
        return code + b"\xa8\0", value & MASK

    def forked(self, depth: int) -> tuple[bytes, int]:
        """bra to one of two ways, which meet by a skip."""
        self.forks += 1
        (condition, c), (yes, a), (no, b) = (self.any(depth - 1) for _ in range(3))
        no += b"\x2f" + len(yes).to_bytes(2, "little")
        return condition + b"\x28" + len(no).to_bytes(2, "little") + no + yes, a if c else b


def said_by_c(texts: list[str], folder: Path) -> list[int]:
    """Return the values of the texts in C."""
    names = ", ".join(f"R_{n}" for n in range(9))
    memory = ", ".join(map(str, MEMORY))
    registers = ", ".join(f"{value:#x}ull" for value in REGISTERS)
    lines = [
        "#include <stdint.h>", "#include <stdio.h>", f"enum {{ {names} }};",
        f"unsigned char memory[] = {{ {memory} }}; uint64_t regs[9] = {{ {registers} }};",
        "int main(void) {", "regs[8] = (uint64_t)memory;",
        *(f'printf("%lu\\n", (unsigned long)({text}));' for text in texts), "}",
    ]  # fmt: skip
    (folder / "a.c").write_text("\n".join(lines))
    command = ["gcc", "-w", "-O0", "-fwrapv", "-fno-strict-aliasing", "-o"]
    subprocess.run([*command, str(folder / "a"), str(folder / "a.c")], check=True)
    out = subprocess.run([str(folder / "a")], capture_output=True, text=True, check=True).stdout
    return list(map(int, out.split()))


def test_values_are_those_of_the_stack_machine(tmp_path: Path) -> None:
    rng = random.Random(12)
    texts, expected, too_long, forks = [], [], 0, 0
    while len(texts) < COUNT:
        drawn = Drawn(rng)
        code, value = drawn.any(rng.randrange(5))
        try:
            (piece,) = pieces_of(code + b"\x9f", context())
        except NotHereError as error:
            assert "too long an expression" in str(error)
            too_long += 1
            continue
        assert (piece.kind, piece.size) == ("value", 0)
        assert value_of(code + b"\x9f", context()) == piece.text
        forks += drawn.forks > 0
        texts.append(piece.text)
        expected.append(value)
    assert said_by_c(texts, tmp_path) == expected
    assert forks > 20 and too_long < COUNT / 4


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "optimised out"),
        ("22", "damaged"),
        ("3022", "damaged"),
        ("06", "damaged"),
        ("3013 13", "damaged"),
        ("3014", "damaged"),
        ("301501", "damaged"),
        ("303017", "damaged"),
        ("3016", "damaged"),
        ("3094 03", "damaged"),
        ("28 0000", "damaged"),
        ("30 28 ffff", "too long"),
        ("2f fdff", "too long"),
        ("59", "register that probes do not have (9)"),
        ("6f", "register that probes do not have (31)"),
        ("9e 09 000000000000000000", "constant of more than 8 bytes"),
        ("a0 00000000 00", "points to a variable that is optimised out"),
        ("9d 08 00", "pieces of single bits"),
        ("05", "DW_OP 0x5"),
        ("30 28 0100 55 30", "too long"),  # a register one way, an address the other
        ("30 93 04 30 28 0100 96 30 9f", "too long"),  # behind a piece
        ("a3 01 50 9f", "only its value at the function's entry"),
    ],
)
def test_what_there_is_no_text_for(code: str, said: str) -> None:
    with pytest.raises(NotHereError) as told:
        pieces_of(bytes.fromhex(code), context())
    assert said in str(told.value)


def test_forks_are_bounded() -> None:
    """Six one after the other, and no more."""
    six, seven = (bytes.fromhex("31 28 0000" * n + "30 9f") for n in (6, 7))
    assert pieces_of(six, context())[0].text.count("?") == 63
    with pytest.raises(NotHereError, match="too long"):
        pieces_of(seven, context())


def test_values_at_entry() -> None:
    code = bytes.fromhex("a3 01 55 9f")
    assert pieces_of(code, context(at_entry=True))[0].text == "regs[R_5]"
    with pytest.raises(NotHereError, match="more than a register"):
        pieces_of(bytes.fromhex("a3 02 75 00 9f"), context(at_entry=True))
    asked = []

    def entry(number: int) -> str:
        asked.append(number)
        return "there"

    told = ExpressionContext(["R_0"], nowhere, nowhere, False, lambda at: BASES[at],
                             lambda index: 0, lambda at: at, entry)  # fmt: skip
    assert pieces_of(bytes.fromhex("a3 01 51 9f"), told)[0].text == "there"
    assert pieces_of(bytes.fromhex("f3 02 90 1f 9f"), told)[0].text == "there"
    assert asked == [1, 31]
    for other in ("a3 02 71 00 9f", "a3 03 90 80 01 9f", "a3 01 30 9f"):
        with pytest.raises(NotHereError, match="only its value at"):
            pieces_of(bytes.fromhex(other), told)


def test_nothing_is_loaded_of_a_caller() -> None:
    told = ExpressionContext(["R_0"], nowhere, nowhere, False, lambda at: BASES[at],
                             lambda index: 0, lambda at: at, caller=lambda n: f"c{n}")  # fmt: skip
    assert value_of(bytes.fromhex("73 05"), told) == "(c3 + 5)"
    assert value_of(bytes.fromhex("53"), told) == "c3"
    for code in ("73 00 06", "73 00 94 04", "73 00 a6 04 05"):
        with pytest.raises(NotHereError, match="in memory"):
            value_of(bytes.fromhex(code), told)
    with pytest.raises(NotHereError, match="does not say"):
        value_of(bytes.fromhex("53 93 04 53 93 04"), told)


def test_registers() -> None:
    """By DW_OP_reg0 and the following ones, or by a number."""
    for number in range(9):
        for code in (bytes([0x50 + number]), b"\x90" + uleb(number), b"\x90" + uleb(number, 3)):
            (piece,) = pieces_of(code, context())
            assert (piece.kind, piece.text) == ("value", f"regs[R_{number}]")
    for code in (b"\x90\x09", b"\x90" + uleb(300)):
        with pytest.raises(NotHereError, match="register that probes do not have"):
            pieces_of(code, context())


def test_the_last_register_with_an_opcode_of_its_own() -> None:
    """DW_OP_reg31 and DW_OP_breg31, arm64's stack pointer (2.6.1.1.2 and 2.5.1.2)."""
    told = replace(context(), registers=[f"R_{n}" for n in range(32)])
    assert pieces_of(b"\x6f", told)[0].text == "regs[R_31]"
    assert pieces_of(b"\x8f\x08", told)[0].text == "(regs[R_31] + 8)"


def test_pieces() -> None:
    found = pieces_of(bytes.fromhex("50 93 04 93 02 73 08 93 08 35 9f 93 01"), context())
    rows = [(piece.kind, piece.text, piece.size) for piece in found]
    assert rows == [("value", "regs[R_0]", 4), ("", "", 2), ("memory", "(regs[R_3] + 8)", 8),
                    ("value", "0x5ull", 1)]  # fmt: skip
    assert [p.text for p in pieces_of(bytes.fromhex("9e 03 010203"), context())] == ["0x30201ull"]
