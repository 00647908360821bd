"""Helper functions of the string subroutines; each is written once for a unit.

A string is given as its address and its bound: it ends at a NUL or at the bound.  Every loop
ends at a bound; a destination of `size` bytes always gets its NUL.  What they compute is what
illumos' and FreeBSD's dtrace_dif_subr() do (uts/common/dtrace/dtrace.c).
"""

from __future__ import annotations

from kinst.codegen.firing import Unit
from kinst.codegen.helpers.flow import (
    both,
    byte_in,
    byte_of,
    copy_bytes,
    either,
    least,
    leave,
    loop,
    most,
    put,
    step,
    when,
)
from kinst.codegen.ssa import Function, Local, Value, const

MINUS_ONE = const(-1)
SLASH, DOT = ord("/"), ord(".")


def length(unit: Unit, name: str) -> Function:
    """length(string, bound) -> bytes without the NUL."""
    code = unit.function(name, 2)
    string, bound = code.params
    at = code.local(64)
    loop(
        code,
        lambda: code.icmp("ne", byte_in(code, string, code.get(at), bound), 0),
        lambda: step(code, at),
    )
    code.ret(code.get(at))
    return code


def find_byte(unit: Unit, name: str) -> Function:
    """find_byte(string, bound, byte, last) -> address of its first (last: its last) place, or 0.
    The NUL is found too."""
    code = unit.function(name, 4)
    string, bound, wanted, last = code.params
    at, found, going = code.local(64), code.local(64), code.local(64, 1)

    def look() -> None:
        here = code.get(at)
        byte = byte_in(code, string, here, bound)
        inside = code.icmp("ult", here, bound)
        hit = both(code, inside, code.icmp("eq", byte, wanted))
        address = code.op("add", string, here)
        code.set(found, code.select(hit, address, code.get(found)))
        enough = both(code, hit, code.icmp("eq", last, 0))
        ends = either(code, enough, code.icmp("eq", byte, 0))
        code.set(going, code.select(ends, const(0), const(1)))
        step(code, at)

    loop(code, lambda: code.icmp("ne", code.get(going), 0), look)
    code.ret(code.get(found))
    return code


def _same_bytes(unit: Unit, name: str) -> Function:
    """same_bytes(a, b, n) -> 1 or 0."""
    code = unit.function(name, 3)
    a, b, count = code.params
    at = code.local(64)

    def alike() -> None:
        here = code.get(at)
        differ = code.icmp("ne", byte_of(code, a, here), byte_of(code, b, here))
        leave(code, differ, const(0))
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), count), alike)
    code.ret(const(1))
    return code


def _matches(
    unit: Unit, code: Function, string: Value, size: Value, part: Value, part_size: Value, at: Value
) -> Value:
    """i1: whether part is in string at this place; only read where it can be."""
    fits = code.icmp("ule", code.op("add", at, part_size), size)
    count = code.select(fits, part_size, const(0))
    same = unit.helper("same_bytes", _same_bytes)
    equal = code.call(same, (code.op("add", string, at), part, count))
    return both(code, fits, code.icmp("ne", equal, 0))


def index(unit: Unit, name: str) -> Function:
    """index(string, bound, part, part's bound, start) -> place or -1.  A start before the string
    is 0; behind it only "" is found, at the end (as in Perl)."""
    code = unit.function(name, 5)
    string, bound, part, part_bound, start = code.params
    measure = unit.helper("length", length)
    size = code.call(measure, (string, bound))
    part_size = code.call(measure, (part, part_bound))
    empty = code.icmp("eq", part_size, 0)
    at = code.local(64)
    code.set(at, most(code, start, 0))
    behind = code.icmp("sge", code.get(at), size)
    leave(code, behind, lambda: code.select(empty, size, MINUS_ONE))

    def look() -> None:
        here = code.get(at)
        leave(code, _matches(unit, code, string, size, part, part_size, here), here)
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), size), look)
    code.ret(MINUS_ONE)
    return code


def rindex(unit: Unit, name: str) -> Function:
    """rindex(string, bound, part, part's bound, start) -> the last place not behind start, or
    -1.  Before the string only "" is found, at 0 (as in Perl)."""
    code = unit.function(name, 5)
    string, bound, part, part_bound, start = code.params
    measure = unit.helper("length", length)
    size = code.call(measure, (string, bound))
    part_size = code.call(measure, (part, part_bound))
    empty = code.icmp("eq", part_size, 0)
    leave(code, code.icmp("slt", start, 0), lambda: code.select(empty, const(0), MINUS_ONE))
    at = code.local(64)
    code.set(at, least(code, start, size))

    def look() -> None:
        here = code.get(at)
        leave(code, _matches(unit, code, string, size, part, part_size, here), here)
        step(code, at, -1)

    loop(code, lambda: code.icmp("sge", code.get(at), 0), look)
    code.ret(MINUS_ONE)
    return code


def append(unit: Unit, name: str) -> Function:
    """append(dst, at, size, string, bound) -> place of the NUL; `size` when it does not fit."""
    code = unit.function(name, 5)
    dst, start, size, string, bound = code.params
    at, source = code.local(64), code.local(64)
    code.set(at, start)

    def copy() -> None:
        here = code.get(at)
        byte = byte_in(code, string, code.get(source), bound)
        put(code, at, byte, dst)
        leave(code, code.icmp("eq", byte, 0), here)
        step(code, source)

    loop(code, lambda: code.icmp("ult", code.get(at), size), copy)
    code.ret(size)
    return code


def substr(unit: Unit, name: str) -> Function:
    """substr(dst, size, string, bound, start, count)."""
    code = unit.function(name, 6, 0)
    dst, room, string, bound, start, count = code.params
    size = code.call(unit.helper("length", length), (string, bound))
    negative = code.icmp("slt", start, 0)
    first = code.select(negative, code.op("add", start, size), start)
    # Counted from before the string: what lies before it counts as taken.
    reaches = code.icmp("sgt", code.op("add", first, count), 0)
    cut = both(code, negative, code.icmp("slt", first, 0), reaches)
    count = code.select(cut, code.op("add", count, first), count)
    first = code.select(cut, const(0), first)
    outside = either(code, code.icmp("sge", first, size), code.icmp("slt", first, 0))
    rest = code.op("sub", size, first)
    count = code.select(code.icmp("slt", count, 0), code.op("add", count, rest), count)
    count = least(code, least(code, count, rest), code.op("sub", room, const(1)))
    count = code.select(outside, const(0), most(code, count, 0))
    at = code.local(64)
    source = code.op("add", string, first)
    copy_bytes(code, at, dst, source, count)
    put(code, at, const(0), dst)
    code.ret()
    return code


def fold_case(unit: Unit, name: str) -> Function:
    """fold_case(dst, size, string, bound, first): the 26 letters from `first` change case."""
    code = unit.function(name, 5, 0)
    dst, size, string, bound, first = code.params
    at, byte = code.local(64), code.local(64, 1)
    last = code.op("sub", size, const(1))

    def copy() -> None:
        here = code.get(at)
        read = byte_in(code, string, here, bound)
        code.set(byte, code.select(code.icmp("ult", here, last), read, const(0)))
        letter = code.icmp("ult", code.op("sub", code.get(byte), first), 26)
        flip = code.select(letter, const(32), const(0))
        put(code, at, code.op("xor", code.get(byte), flip), dst)

    loop(code, lambda: code.icmp("ne", code.get(byte), 0), copy)
    code.ret()
    return code


def strtok(unit: Unit, name: str) -> Function:
    """strtok(dst, size, string, bound, delimiters, their bound, map) -> how many bytes of the
    string are used up, or -1 when that is all of it.  dst: the token, "" when there is none.
    map: 32 bytes of working memory."""
    code = unit.function(name, 7)
    dst, size, string, bound, delimiters, their_bound, bits = code.params
    for word in range(4):
        code.store(const(0), code.add(bits, 8 * word))
    at = code.local(64)
    byte = code.local(64, 1)

    def bit_of(value: Value) -> tuple[Value, Value, Value]:
        place = code.op("add", bits, code.op("lshr", value, 3))
        old = code.convert(code.load(8, place), 64, signed=False)
        return place, old, code.op("shl", const(1), code.op("and", value, 7))

    def mark() -> None:
        code.set(byte, byte_in(code, delimiters, code.get(at), their_bound))
        place, old, bit = bit_of(code.get(byte))
        code.store(code.convert(code.op("or", old, bit), 8, signed=False), place)
        step(code, at)

    loop(code, lambda: code.icmp("ne", code.get(byte), 0), mark)

    def is_delimiter() -> Value:
        """The NUL is one."""
        code.set(byte, byte_in(code, string, code.get(at), bound))
        _, old, bit = bit_of(code.get(byte))
        return code.icmp("ne", code.op("and", old, bit), 0)

    def leading() -> Value:
        here = is_delimiter()
        return both(code, here, code.icmp("ne", code.get(byte), 0))

    code.set(at, const(0))
    loop(code, leading, lambda: step(code, at))
    taken = code.local(64)

    def inside() -> Value:
        room = code.icmp("ult", code.op("add", code.get(taken), 1), size)
        return both(code, code.op("xor", is_delimiter(), const(1, 1)), room)

    def take() -> None:
        put(code, taken, code.get(byte), dst)
        step(code, at)

    loop(code, inside, take)
    put(code, taken, const(0), dst)
    ended = code.icmp("eq", code.get(byte), 0)
    code.ret(code.select(ended, MINUS_ONE, code.op("add", code.get(at), 1)))
    return code


def basename(unit: Unit, name: str) -> Function:
    """basename(dst, size, string, bound): as basename(1)."""
    code = unit.function(name, 4, 0)
    dst, size, string, bound = code.params
    end, start = _last_part(unit, code, string, bound)
    whole = code.call(unit.helper("length", length), (string, bound))
    # Nothing but slashes is "/", nothing at all ".".
    only = code.icmp("eq", end, 0)
    at = code.local(64)
    count = least(code, code.op("sub", end, start), code.op("sub", size, const(1)))
    source = code.op("add", string, start)
    copy_bytes(code, at, dst, source, count)
    empty = code.icmp("eq", whole, 0)
    single = code.select(empty, const(DOT), const(SLASH))
    when(code, only, lambda: put(code, at, single, dst))
    put(code, at, const(0), dst)
    code.ret()
    return code


def _last_part(unit: Unit, code: Function, string: Value, bound: Value) -> tuple[Value, Value]:
    """(end, start) of the last component of a path; the end is 0 when there is none."""
    at = code.local(64)
    code.set(at, code.call(unit.helper("length", length), (string, bound)))
    _back(code, at, string, slashes=True)
    end = code.get(at)
    _back(code, at, string, slashes=False)
    return end, code.get(at)


def _back(code: Function, at: Local, string: Value, slashes: bool) -> None:
    """Move at (a Local) back over slashes, or over what is none."""

    def more() -> Value:
        here = code.get(at)
        before = code.op("sub", here, const(1))
        byte = byte_in(code, string, before, here)
        fits = code.icmp("eq" if slashes else "ne", byte, SLASH)
        return both(code, fits, code.icmp("ne", here, 0))

    loop(code, more, lambda: step(code, at, -1))


def dirname(unit: Unit, name: str) -> Function:
    """dirname(dst, size, string, bound): as dirname(1)."""
    code = unit.function(name, 4, 0)
    dst, size, string, bound = code.params
    at = code.local(64)
    code.set(at, code.call(unit.helper("length", length), (string, bound)))
    rooted = code.icmp("eq", byte_in(code, string, const(0), bound), SLASH)
    for slashes in (True, False, True):
        _back(code, at, string, slashes)
    end = least(code, code.get(at), code.op("sub", size, const(1)))
    to = code.local(64)
    copy_bytes(code, to, dst, string, end)
    single = code.select(rooted, const(SLASH), const(DOT))
    when(code, code.icmp("eq", end, 0), lambda: put(code, to, single, dst))
    put(code, to, const(0), dst)
    code.ret()
    return code
