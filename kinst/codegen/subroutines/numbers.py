"""Subroutines on numbers: lltostr(), strtoll() and rand().

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from kinst.codegen.firing import Firing, Lowered, Text, Unit, context_word
from kinst.codegen.helpers.branching import both, byte_in, either, loop, step, when
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.subroutines.arguments import Args, base_of, subroutine, text_words, wide
from kinst.core.layout import CONTEXT_TIMESTAMP, STATE_RANDOM

LLTOSTR_ROOM = 72  # 64 binary digits, a sign, the NUL


def _write_lltostr(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function lltostr(room, value, base), which writes a number's text and returns
    the address of the text's first byte. The text ends at the end of the LLTOSTR_ROOM bytes at
    `room`.
    """
    code = unit.function(name, 3)
    room, value, base = code.params
    at, rest = code.local(64), code.local(64)
    code.set(at, const(LLTOSTR_ROOM))

    def front(byte: IrValue) -> None:
        step(code, at, -1)
        here = code.op("add", room, code.get(at))
        code.store(code.convert(byte, 8, signed=False), here)

    decimal, zero = code.icmp("eq", base, 10), code.icmp("eq", value, 0)
    octal, hexadecimal = code.icmp("eq", base, 8), code.icmp("eq", base, 16)
    negative = both(code, decimal, code.icmp("slt", value, 0))
    code.set(rest, code.select(negative, code.op("sub", const(0), value), value))
    front(const(0))

    def digit() -> None:
        number = code.op("urem", code.get(rest), base)
        low = code.icmp("ule", number, 9)
        start = code.select(low, const(ord("0")), const(ord("a") - 10))
        front(code.op("add", number, start))
        code.set(rest, code.op("udiv", code.get(rest), base))

    loop(code, lambda: code.icmp("ne", code.get(rest), 0), digit)
    when(code, both(code, zero, hexadecimal), lambda: front(const(ord("0"))))
    when(code, hexadecimal, lambda: front(const(ord("x"))))
    when(code, either(code, zero, octal, hexadecimal), lambda: front(const(ord("0"))))
    when(code, negative, lambda: front(const(ord("-"))))
    code.ret(code.op("add", room, code.get(at)))
    return code


def _digit(code: IrFunction, byte: IrValue) -> IrValue:
    """Emit LLVM IR that converts a character to the value of a digit (0-9, a-z, A-Z); return the
    value, which is 99 for any other character.
    """
    result = const(99)
    for first, count, value in (("0", 10, 0), ("a", 26, 10), ("A", 26, 10)):
        offset = code.op("sub", byte, const(ord(first)))
        digit = code.op("add", offset, value)
        result = code.select(code.icmp("ult", offset, count), digit, result)
    return result


def _write_strtoll(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function strtoll(string, bound, base), which parses a number and returns it
    modulo 2**64.

    The function reads blanks, a sign, 0x if the base is 16, and digits up to the first byte that is
    not a digit.
    """
    code = unit.function(name, 3)
    string, bound, base = code.params
    at, total = code.local(64), code.local(64)

    def byte(ahead: int = 0) -> IrValue:
        return byte_in(code, string, code.op("add", code.get(at), ahead), bound)

    def is_one_of(value: IrValue, letters: str) -> IrValue:
        return either(code, *(code.icmp("eq", value, ord(x)) for x in letters))

    loop(code, lambda: is_one_of(byte(), " \t"), lambda: step(code, at))
    sign = byte()
    when(code, is_one_of(sign, "-+"), lambda: step(code, at))
    prefix = both(
        code, code.icmp("eq", base, 16), is_one_of(byte(), "0"), is_one_of(byte(1), "xX"),
        code.icmp("ult", _digit(code, byte(2)), 16),
    )  # fmt: skip
    when(code, prefix, lambda: step(code, at, 2))
    digit = code.local(64)

    def is_digit() -> IrValue:
        code.set(digit, _digit(code, byte()))
        return code.icmp("ult", code.get(digit), base)

    def take() -> None:
        code.set(total, code.op("add", code.op("mul", code.get(total), base), code.get(digit)))
        step(code, at)

    loop(code, is_digit, take)
    negated = code.op("sub", const(0), code.get(total))
    code.ret(code.select(is_one_of(sign, "-"), negated, code.get(total)))
    return code


@subroutine("string lltostr(int64_t, [int])")
def lltostr(firing: Firing, args: Args) -> Lowered:
    # Code may read LLTOSTR_ROOM bytes from the text's first byte, wherever in the room it is.
    room = firing.text_room(2 * LLTOSTR_ROOM)
    helper = firing.unit.helper("lltostr", _write_lltostr)
    words = (room, wide(firing, args[0]), base_of(firing, args))
    return Text(firing.code.call(helper, words), LLTOSTR_ROOM)


@subroutine("int64_t strtoll(const char *, [int])")
def strtoll(firing: Firing, args: Args) -> Lowered:
    helper = firing.unit.helper("strtoll", _write_strtoll)
    words = (*text_words(firing, args[0]), base_of(firing, args))
    return firing.code.call(helper, words)


# Constants of splitmix64 (S. Vigna's public-domain generator).
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@subroutine("int rand()")
def rand(firing: Firing, args: Args) -> Lowered:
    """Emit LLVM IR of the random number generator splitmix64; return its next number.  Each CPU has
    a state of its own, seeded by the cycle counter.
    """
    code, machine = firing.code, firing.unit.machine
    if machine.host:
        now = code.load(64, context_word(firing, CONTEXT_TIMESTAMP))
    elif machine.timestamp_asm:
        now = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    else:
        now = firing.state
    place = firing.field(STATE_RANDOM)
    old = code.load(64, place)
    begun = code.select(code.icmp("eq", old, 0), code.op("or", now, 1), old)
    value = code.op("add", begun, _GAMMA)
    code.store(value, place)
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        value = code.op("mul", code.op("xor", value, code.op("lshr", value, shift)), factor)
    return code.op("xor", value, code.op("lshr", value, 31))
