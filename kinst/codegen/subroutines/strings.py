"""Subroutines on strings: strlen(), strchr(), index(), strjoin(), substr(), tolower(), strtok() and
the like.

A helper gets a string as an address and a bound; the string ends at a NUL or at the bound. Every
loop ends at a bound. A helper that stores at most `size` bytes always stores a NUL. The results are
those of dtrace_dif_subr() in illumos and FreeBSD (uts/common/dtrace/dtrace.c).

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from functools import partial

from kinst.codegen.firing import Firing, Lowered, Text, Unit
from kinst.codegen.helpers.branching import (
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
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.subroutines.arguments import Args, new_text, subroutine, text_words, wide
from kinst.core.layout import FAULT_BADADDR, FAULT_NOSCRATCH

MINUS_ONE = const(-1)


def write_length(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function length(string, bound), which returns the number of bytes before the
    NUL, at most `bound`.
    """
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


def _write_find_byte(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function find_byte(string, bound, byte, last), which returns the address of
    the byte's first occurrence in the string. If `last` is not 0, it returns that of the last
    occurrence. It returns 0 if the byte is not in the string. The byte may be NUL.
    """
    code = unit.function(name, 4)
    string, bound, wanted, last = code.params
    at, result, going = code.local(64), code.local(64), code.local(64, 1)

    def look() -> None:
        here = code.get(at)
        byte = byte_in(code, string, here, bound)
        inside = code.icmp("ult", here, bound)
        hit = both(code, inside, code.icmp("eq", byte, wanted))
        address = code.op("add", string, here)
        code.set(result, code.select(hit, address, code.get(result)))
        enough = both(code, hit, code.icmp("eq", last, 0))
        ends = either(code, enough, code.icmp("eq", byte, 0))
        code.set(going, code.select(ends, const(0), const(1)))
        step(code, at)

    loop(code, lambda: code.icmp("ne", code.get(going), 0), look)
    code.ret(code.get(result))
    return code


def write_same_bytes(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function same_bytes(a, b, n), which returns 1 if the `n` bytes at `a` and at
    `b` are equal, else 0.
    """
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
    unit: Unit,
    code: IrFunction,
    string: IrValue,
    size: IrValue,
    part: IrValue,
    part_size: IrValue,
    at: IrValue,
) -> IrValue:
    """Emit LLVM IR that tests whether `part` is in `string` at the index `at`; return an i1.  The
    code reads no byte after the end of the string.
    """
    fits = code.icmp("ule", code.op("add", at, part_size), size)
    count = code.select(fits, part_size, const(0))
    same = unit.helper("same_bytes", write_same_bytes)
    equal = code.call(same, (code.op("add", string, at), part, count))
    return both(code, fits, code.icmp("ne", equal, 0))


def _write_search(last: bool, unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function index(string, bound, part, part's bound, start), or rindex() with
    the same parameters.

    index() returns the first index, from `start` on, at which `part` is in the string; -1 if there
    is none. A negative `start` counts as 0. If `start` is not before the string's end, only an
    empty part is found, at the string's end.

    rindex() returns the last such index up to `start`; -1 if there is none. If `start` is negative,
    only an empty part is found, at index 0 (as in Perl).

    Args:
        last: whether the function is rindex().
    """
    code = unit.function(name, 5)
    string, bound, part, part_bound, start = code.params
    measure = unit.helper("length", write_length)
    size = code.call(measure, (string, bound))
    part_size = code.call(measure, (part, part_bound))
    empty = code.icmp("eq", part_size, 0)
    at = code.local(64)
    if last:
        leave(code, code.icmp("slt", start, 0), lambda: code.select(empty, const(0), MINUS_ONE))
        code.set(at, least(code, start, size))
    else:
        code.set(at, most(code, start, 0))
        past_end = code.icmp("sge", code.get(at), size)
        leave(code, past_end, lambda: code.select(empty, size, MINUS_ONE))

    def inside() -> IrValue:
        here = code.get(at)
        return code.icmp("sge", here, 0) if last else code.icmp("ult", here, size)

    def look() -> None:
        here = code.get(at)
        leave(code, _matches(unit, code, string, size, part, part_size, here), here)
        step(code, at, -1 if last else 1)

    loop(code, inside, look)
    code.ret(MINUS_ONE)
    return code


_write_index, _write_rindex = partial(_write_search, False), partial(_write_search, True)


def _write_append(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function append(dst, at, size, string, bound), which stores a string from
    dst[at] on and returns the index of its NUL. It returns `size` if the string with its NUL does
    not fit in the `size` bytes at dst.
    """
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


def _write_substr(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function substr(dst, size, string, bound, start, count), which stores a part
    of a string as Perl's substr does.
    """
    code = unit.function(name, 6, 0)
    dst, room, string, bound, start, count = code.params
    size = code.call(unit.helper("length", write_length), (string, bound))
    negative = code.icmp("slt", start, 0)
    first = code.select(negative, code.op("add", start, size), start)
    # If start is before the string, the characters that are missing there count toward `count`.
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


def _write_fold_case(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function fold_case(dst, size, string, bound, first), which stores a string
    and changes the case of the 26 letters from `first` ("A" or "a").
    """
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


def _write_strtok(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function strtok(dst, size, string, bound, delimiters, their bound, map),
    which stores the string's first token at dst, or "" if the string has no token.

    The function returns the index of the byte after the token and one delimiter: the caller looks
    for the next token from there. It returns -1 if the token ends at the string's end. `map` is the
    address of 32 bytes of working memory, in which the function sets one bit for each delimiter.
    """
    code = unit.function(name, 7)
    dst, size, string, bound, delimiters, their_bound, bits = code.params
    for word in range(4):
        code.store(const(0), code.add(bits, 8 * word))
    at = code.local(64)
    byte = code.local(64, 1)

    def bit_of(value: IrValue) -> tuple[IrValue, IrValue, IrValue]:
        place = code.op("add", bits, code.op("lshr", value, 3))
        old = code.convert(code.load(8, place), 64, signed=False)
        return place, old, code.op("shl", const(1), code.op("and", value, 7))

    def mark() -> None:
        code.set(byte, byte_in(code, delimiters, code.get(at), their_bound))
        place, old, bit = bit_of(code.get(byte))
        code.store(code.convert(code.op("or", old, bit), 8, signed=False), place)
        step(code, at)

    loop(code, lambda: code.icmp("ne", code.get(byte), 0), mark)

    def is_delimiter() -> IrValue:
        """Emit LLVM IR that tests whether the byte at index `at` is a delimiter; return an i1.  The
        NUL is a delimiter.
        """
        code.set(byte, byte_in(code, string, code.get(at), bound))
        _, old, bit = bit_of(code.get(byte))
        return code.icmp("ne", code.op("and", old, bit), 0)

    def leading() -> IrValue:
        here = is_delimiter()
        return both(code, here, code.icmp("ne", code.get(byte), 0))

    code.set(at, const(0))
    loop(code, leading, lambda: step(code, at))
    taken = code.local(64)

    def inside() -> IrValue:
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


@subroutine("size_t strlen(const char *)")
def strlen(firing: Firing, args: Args) -> Lowered:
    helper = firing.unit.helper("length", write_length)
    return firing.code.call(helper, text_words(firing, args[0]))


def _find_byte(firing: Firing, args: Args, last: bool) -> Lowered:
    wanted = firing.code.op("and", wide(firing, args[1]), 0xFF)
    helper = firing.unit.helper("find_byte", _write_find_byte)
    string, bound = text_words(firing, args[0])
    address = firing.code.call(helper, (string, bound, wanted, const(int(last))))
    return Text(address, firing.unit.layout.strsize, nullable=True)


@subroutine("string strchr(const char *, char)")
def strchr(firing: Firing, args: Args) -> Lowered:
    return _find_byte(firing, args, last=False)


@subroutine("string strrchr(const char *, char)")
def strrchr(firing: Firing, args: Args) -> Lowered:
    return _find_byte(firing, args, last=True)


@subroutine("string strstr(const char *, const char *)")
def strstr(firing: Firing, args: Args) -> Lowered:
    code = firing.code
    helper = firing.unit.helper("index", _write_index)
    string, bound = text_words(firing, args[0])
    at = code.call(helper, (string, bound, *text_words(firing, args[1]), const(0)))
    missing = code.icmp("slt", at, 0)
    address = code.select(missing, const(0), code.op("add", string, at))
    return Text(address, firing.unit.layout.strsize, nullable=True)


@subroutine("int index(const char *, const char *, [int64_t])")
def index(firing: Firing, args: Args) -> Lowered:
    helper = firing.unit.helper("index", _write_index)
    start = wide(firing, args[2]) if len(args) == 3 else const(0)
    words = (*text_words(firing, args[0]), *text_words(firing, args[1]), start)
    return firing.code.call(helper, words)


@subroutine("int rindex(const char *, const char *, [int64_t])")
def rindex(firing: Firing, args: Args) -> Lowered:
    helper = firing.unit.helper("rindex", _write_rindex)
    start = wide(firing, args[2]) if len(args) == 3 else const((1 << 63) - 1)
    words = (*text_words(firing, args[0]), *text_words(firing, args[1]), start)
    return firing.code.call(helper, words)


@subroutine("string strjoin(const char *, const char *)")
def strjoin(firing: Firing, args: Args) -> Lowered:
    code = firing.code
    dst, size, text = new_text(firing)
    helper = firing.unit.helper("append", _write_append)
    at = const(0)
    for arg in args:
        at = code.call(helper, (dst, at, size, *text_words(firing, arg)))
    firing.faults.add(code, code.icmp("eq", at, size), FAULT_NOSCRATCH, const(0))
    return text


@subroutine("string substr(const char *, int64_t, [int64_t])")
def substr(firing: Firing, args: Args) -> Lowered:
    dst, size, text = new_text(firing)
    count = wide(firing, args[2]) if len(args) == 3 else size
    words = (dst, size, *text_words(firing, args[0]), wide(firing, args[1]), count)
    firing.code.call(firing.unit.helper("substr", _write_substr), words)
    return text


def _fold_case(firing: Firing, args: Args, first: str) -> Lowered:
    """Emit a call that changes the case of 26 letters of a string; return the new string.

    Args:
        first: the first of the 26 letters, "A" or "a".
    """
    dst, size, text = new_text(firing)
    helper = firing.unit.helper("fold_case", _write_fold_case)
    firing.code.call(helper, (dst, size, *text_words(firing, args[0]), const(ord(first))))
    return text


@subroutine("string tolower(const char *)")
def tolower(firing: Firing, args: Args) -> Lowered:
    return _fold_case(firing, args, "A")


@subroutine("string toupper(const char *)")
def toupper(firing: Firing, args: Args) -> Lowered:
    return _fold_case(firing, args, "a")


@subroutine("string strtok(const char *?, const char *)")
def strtok(firing: Firing, args: Args) -> Lowered:
    """Emit LLVM IR that finds the next token of a string; return the token, or NULL after the last
    token.

    The string and the position in it are kept until all of the probe's clauses have run.
    """
    code, unit = firing.code, firing.unit
    strsize = const(unit.layout.strsize)
    keep, position = firing.kept_text(), firing.local("strtok")  # position 0: there is no string
    string, delimiters = args
    if isinstance(string, Text):
        fresh, kept = code.fresh("fresh"), code.fresh("kept")
        code.branch(code.icmp("eq", string.address, 0), kept, fresh)
        code.block(fresh)
        copy_text(firing, Text(string.address, string.bound), keep, unit.layout.strsize)
        code.set(position, const(1))
        code.jump(kept)
        code.block(kept)
    at = code.get(position)
    firing.faults.add(code, code.icmp("eq", at, 0), FAULT_BADADDR, const(0))
    at = code.op("sub", at, const(1))
    room, bits = firing.text_room(unit.layout.strsize), firing.text_room(32)
    words = (
        room, strsize, code.op("add", keep, at), code.op("sub", strsize, at),
        *text_words(firing, delimiters), bits,
    )  # fmt: skip
    used = code.call(unit.helper("strtok", _write_strtok), words)
    ended = code.icmp("slt", used, 0)
    code.set(position, code.op("add", code.op("add", at, used), 1))

    def nothing_left() -> None:
        code.store(const(0, 8), keep)
        code.set(position, const(1))

    when(code, ended, nothing_left)
    empty = code.icmp("eq", code.load(8, room), 0)
    address = code.select(empty, const(0), room)
    return Text(address, unit.layout.strsize, nullable=True)
