"""More helper functions of the subroutines: paths, numbers, network addresses.

As text.py: a string is an address and a bound, every loop ends at a bound.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.firing import Unit
from kinst.codegen.helpers.flow import both, byte_in, byte_of, either, loop, put, step, when
from kinst.codegen.ssa import Function, Local, Value, const

SLASH, DOT = ord("/"), ord(".")
LLTOSTR_ROOM = 72  # 64 binary digits, a sign, the NUL
INET_ROOM = 48  # INET6_ADDRSTRLEN is 46
# What cleanpath() has seen: nothing special, "/", "/.", "/..".
_PLAIN, _SLASH, _SLASH_DOT, _SLASH_DOTS = range(4)


class _Cleaner:
    """The loop of cleanpath(): a state for what was seen last and is held back."""

    def __init__(self, code: Function, dst: Value, string: Value, bound: Value) -> None:
        self.code, self.dst, self.string, self.bound = code, dst, string, bound
        self.source, self.at, self.state = code.local(64), code.local(64), code.local(64)
        self.byte = code.local(64, 1)

    def becomes(self, new: int) -> Callable[[], None]:
        return lambda: self.code.set(self.state, const(new))

    def keep(self, dots: int) -> None:
        """What was held back, and this byte, are part of the path."""
        for held in (SLASH, *[DOT] * dots):
            put(self.code, self.at, const(held), self.dst)
        put(self.code, self.at, self.code.get(self.byte), self.dst)
        self.code.set(self.state, const(_PLAIN))

    def up(self) -> None:
        """Back to the slash before the last component, which is overwritten."""
        code, at = self.code, self.at
        going = code.local(64, 1)
        code.set(going, const(1))

        def back() -> None:
            step(code, at, -1)
            found = code.icmp("eq", byte_of(code, self.dst, code.get(at)), SLASH)
            code.set(going, code.select(found, const(0), const(1)))

        def more() -> Value:
            inside, looking = code.icmp("ne", code.get(at), 0), code.icmp("ne", code.get(going), 0)
            return both(code, inside, looking)

        loop(code, more, back)
        code.set(self.state, const(_SLASH))
        when(code, self.is_byte(0), lambda: step(code, at))

    def is_byte(self, value: int) -> Value:
        return self.code.icmp("eq", self.code.get(self.byte), value)

    def is_state(self, value: int) -> Value:
        return self.code.icmp("eq", self.code.get(self.state), value)

    def after_slash(self) -> None:
        self._slash_dot_or(_SLASH_DOT, lambda: self.keep(0))

    def after_dot(self) -> None:
        self._slash_dot_or(_SLASH_DOTS, lambda: self.keep(1))

    def _slash_dot_or(self, dot: int, other: Callable[[], None]) -> None:
        """What comes next where a component begins; dot: the state behind a dot."""
        when(
            self.code, self.is_byte(SLASH), self.becomes(_SLASH),
            lambda: when(self.code, self.is_byte(DOT), self.becomes(dot), other),
        )  # fmt: skip

    def after_dots(self) -> None:
        ends = either(self.code, self.is_byte(SLASH), self.is_byte(0))
        when(self.code, ends, self.up, lambda: self.keep(2))

    def plain(self) -> None:
        code = self.code
        when(
            code, self.is_byte(SLASH), self.becomes(_SLASH),
            lambda: put(code, self.at, code.get(self.byte), self.dst),
        )  # fmt: skip

    def one(self) -> None:
        """The next byte."""
        code = self.code
        code.set(self.byte, byte_in(code, self.string, code.get(self.source), self.bound))
        step(code, self.source)
        when(
            code, self.is_state(_PLAIN), self.plain,
            lambda: when(
                code, self.is_state(_SLASH), self.after_slash,
                lambda: when(code, self.is_state(_SLASH_DOT), self.after_dot, self.after_dots),
            ),
        )  # fmt: skip


def cleanpath(unit: Unit, name: str) -> Function:
    """cleanpath(dst, size, string, bound): without "//", "/./" and "dir/../"; symbolic links
    are not looked at.  Stops 5 bytes before the end of dst."""
    code = unit.function(name, 4, 0)
    dst, size, string, bound = code.params
    limit = code.op("sub", size, const(5))
    path = _Cleaner(code, dst, string, bound)

    def more() -> Value:
        room = code.icmp("slt", code.get(path.at), limit)
        return both(code, code.icmp("ne", code.get(path.byte), 0), room)

    loop(code, more, path.one)
    put(code, path.at, const(0), dst)
    code.ret()
    return code


def lltostr(unit: Unit, name: str) -> Function:
    """lltostr(room of LLTOSTR_ROOM bytes, value, base) -> where the text begins in it."""
    code = unit.function(name, 3)
    room, value, base = code.params
    at, rest = code.local(64), code.local(64)
    code.set(at, const(LLTOSTR_ROOM))

    def front(byte: Value) -> None:
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


def _digit(code: Function, byte: Value) -> Value:
    """The digit's value, 99 for what is none."""
    result = const(99)
    for first, count, value in (("0", 10, 0), ("a", 26, 10), ("A", 26, 10)):
        offset = code.op("sub", byte, const(ord(first)))
        found = code.op("add", offset, value)
        result = code.select(code.icmp("ult", offset, count), found, result)
    return result


def strtoll(unit: Unit, name: str) -> Function:
    """strtoll(string, bound, base) -> value: blanks, a sign, 0x where the base is 16, digits up
    to the first byte that is none; it wraps."""
    code = unit.function(name, 3)
    string, bound, base = code.params
    at, total = code.local(64), code.local(64)

    def byte(ahead: int = 0) -> Value:
        return byte_in(code, string, code.op("add", code.get(at), ahead), bound)

    def is_one_of(value: Value, letters: str) -> Value:
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

    def is_digit() -> Value:
        code.set(digit, _digit(code, byte()))
        return code.icmp("ult", code.get(digit), base)

    def take() -> None:
        code.set(total, code.op("add", code.op("mul", code.get(total), base), code.get(digit)))
        step(code, at)

    loop(code, is_digit, take)
    negated = code.op("sub", const(0), code.get(total))
    code.ret(code.select(is_one_of(sign, "-"), negated, code.get(total)))
    return code


def _number(code: Function, at: Local, dst: Value, value: Value, base: int, digits: int) -> None:
    """Write a number without leading zeros, of at most `digits` digits."""
    started = code.local(64)
    code.set(started, const(0))
    for place in reversed(range(digits)):
        part = code.op("udiv", value, const(base**place))
        number = code.op("urem", part, const(base))
        low = code.icmp("ule", number, 9)
        start = code.select(low, const(ord("0")), const(ord("a") - 10))
        letter = code.op("add", number, start)
        shown = either(code, code.icmp("ne", part, 0), const(int(place == 0), 1))
        when(code, shown, lambda letter=letter: put(code, at, letter, dst))  # type: ignore[misc]


def _dotted(code: Function, at: Local, dst: Value, address: Value) -> None:
    for k in range(4):
        if k:
            put(code, at, const(DOT), dst)
        _number(code, at, dst, byte_of(code, address, const(k)), 10, 3)


def inet4(unit: Unit, name: str) -> Function:
    """inet4(dst, address of the 4 bytes): dotted decimal."""
    code = unit.function(name, 2, 0)
    dst, address = code.params
    at = code.local(64)
    _dotted(code, at, dst, address)
    put(code, at, const(0), dst)
    code.ret()
    return code


def _zeros(code: Function, group: Callable[[Value], Value]) -> tuple[Local, Local]:
    """(start, length) of the longest run of zero groups, the first of equal ones; length 0 when
    none is longer than one."""
    best, best_size, run = code.local(64, 8), code.local(64, 1), code.local(64)
    at = code.local(64)

    def look() -> None:
        here = code.get(at)
        zero = code.icmp("eq", group(here), 0)
        code.set(run, code.select(zero, code.op("add", code.get(run), 1), const(0)))
        longer = code.icmp("ugt", code.get(run), code.get(best_size))
        start = code.op("sub", code.op("add", here, 1), code.get(run))
        code.set(best, code.select(longer, start, code.get(best)))
        code.set(best_size, code.select(longer, code.get(run), code.get(best_size)))
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), 8), look)
    found = code.icmp("ugt", code.get(best_size), 1)
    code.set(best_size, code.select(found, code.get(best_size), const(0)))
    return best, best_size


def inet6(unit: Unit, name: str) -> Function:
    """inet6(dst, address of the 16 bytes): as inet_ntop(3): the longest run of two zero groups or
    more is "::"; what holds an IPv4 address ends with that in dotted decimal."""
    code = unit.function(name, 2, 0)
    dst, address = code.params
    at, here = code.local(64), code.local(64)

    def group(place: Value) -> Value:
        where = code.op("shl", place, 1)
        high = code.op("shl", byte_of(code, address, where), 8)
        return code.op("or", high, byte_of(code, address, code.op("add", where, 1)))

    start, count = _zeros(code, group)
    from_start = code.icmp("eq", code.get(start), 0)
    mapped = both(code, code.icmp("eq", code.get(count), 5),
                  code.icmp("eq", group(const(5)), 0xFFFF))  # fmt: skip
    compatible = code.icmp("eq", code.get(count), 6)
    embedded = both(code, from_start, either(code, mapped, compatible))
    groups = code.select(embedded, const(6), const(8))

    def colon() -> None:
        put(code, at, const(ord(":")), dst)

    def number() -> None:
        inside = code.icmp("eq", code.get(here), code.get(start))
        run = both(code, inside, code.icmp("ne", code.get(count), 0))
        when(code, run, skip, one)

    def skip() -> None:
        colon()
        code.set(here, code.op("add", code.get(here), code.get(count)))
        when(code, code.icmp("eq", code.get(here), 8), colon)

    def one() -> None:
        when(code, code.icmp("ne", code.get(here), 0), colon)
        _number(code, at, dst, group(code.get(here)), 16, 4)
        step(code, here)

    loop(code, lambda: code.icmp("ult", code.get(here), groups), number)

    def dotted() -> None:
        colon()
        _dotted(code, at, dst, code.op("add", address, 12))

    when(code, embedded, dotted)
    put(code, at, const(0), dst)
    code.ret()
    return code
