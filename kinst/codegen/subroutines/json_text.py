"""The subroutine json(text, path), which finds an element of JSON text.

As in illumos and FreeBSD, a path consists of names and array indexes (a.b[3].c, [0].a).  A string
is returned without its quotes, with its escapes as they are written.  A number, true, false, null,
an object or an array is returned as its text.  If the element is missing or the text turns out not
to be JSON, the result is NULL.  Every helper reads the text once, forwards, and ends at its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kinst.codegen.firing import Firing, Lowered, Text, Unit
from kinst.codegen.helpers.branching import both, byte_in, either, leave, loop, put, step, when
from kinst.codegen.ssa import IrFunction, IrLocal, IrValue, const
from kinst.codegen.subroutines.arguments import Args, new_text, subroutine, text_words
from kinst.codegen.subroutines.strings import write_same_bytes

_QUOTE, _BACKSLASH, _COMMA, _COLON, _DOT, _MINUS = (ord(c) for c in '"\\,:.-')

_OPEN, _CLOSE, _BRACE, _END = (ord(c) for c in "[]{}")

NOT_THERE = const(-1)

_WORDS = (b"true", b"false", b"null")


def _one_of(code: IrFunction, byte: IrValue, these: bytes) -> IrValue:
    return either(code, *[code.icmp("eq", byte, value) for value in these])


def _digit(code: IrFunction, byte: IrValue) -> IrValue:
    return code.icmp("ult", code.op("sub", byte, const(ord("0"))), 10)


def _hex_digit(code: IrFunction, byte: IrValue) -> IrValue:
    letter = code.op("sub", code.op("or", byte, 0x20), const(ord("a")))
    return either(code, _digit(code, byte), code.icmp("ult", letter, 6))


def _skip(skipped: Callable[[IrFunction, IrValue], IrValue], unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function NAME(text, bound, at), which skips bytes from index `at` on as long
    as they pass a test, and returns the index of the first byte that fails it.

    Args:
        skipped: emits the test of a byte and returns an i1, 1 to skip the byte.
    """
    code = unit.function(name, 3)
    text, bound, start = code.params
    at = code.local(64)
    code.set(at, start)
    loop(
        code,
        lambda: skipped(code, byte_in(code, text, code.get(at), bound)),
        lambda: step(code, at),
    )
    code.ret(code.get(at))
    return code


def _blank(code: IrFunction, byte: IrValue) -> IrValue:
    return _one_of(code, byte, b" \t\n\v\f\r")


def _in_name(code: IrFunction, byte: IrValue) -> IrValue:
    """Emit LLVM IR that tests whether a byte of a path (a.b[3]) belongs to a name or an index;
    return an i1, 0 for the bytes that end them: NUL . [ ]
    """
    return code.op("xor", _one_of(code, byte, b"\0.[]"), const(1, 1))


_blanks, _key_end = partial(_skip, _blank), partial(_skip, _in_name)


def _string_end(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function json_string(text, bound, at), which returns the index of the quote
    that ends a string. `at` is the index of the string's first byte after its opening quote. The
    function returns -1 if the text is not JSON.
    """
    code = unit.function(name, 3)
    text, bound, start = code.params
    at, escaped, digits = code.local(64), code.local(64), code.local(64)
    code.set(at, start)

    def byte() -> IrValue:
        return byte_in(code, text, code.get(at), bound)

    def more() -> IrValue:
        ends = both(code, code.icmp("eq", byte(), _QUOTE), code.icmp("eq", code.get(escaped), 0))
        return code.op("xor", ends, const(1, 1))

    def escape(here: IrValue) -> None:
        is_code = code.icmp("eq", here, ord("u"))
        code.set(digits, code.select(is_code, const(4), const(0)))
        code.set(escaped, const(0))

    def number(here: IrValue) -> None:
        leave(code, code.op("xor", _hex_digit(code, here), const(1, 1)), NOT_THERE)
        step(code, digits, -1)

    def plain(here: IrValue) -> None:
        begins = code.icmp("eq", here, _BACKSLASH)
        code.set(escaped, code.convert(begins, 64, signed=False))

    def one() -> None:
        here = byte()
        leave(code, code.icmp("eq", here, 0), NOT_THERE)
        when(
            code, code.icmp("ne", code.get(digits), 0), lambda: number(here),
            lambda: when(
                code, code.icmp("ne", code.get(escaped), 0), lambda: escape(here),
                lambda: plain(here),
            ),
        )  # fmt: skip
        step(code, at)

    loop(code, more, one)
    leave(code, code.icmp("ne", code.get(digits), 0), NOT_THERE)
    code.ret(code.get(at))
    return code


def _value_end(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function json_value(text, bound, at), which returns the index after the JSON
    value that begins at index `at`. The function returns -1 if the text is not JSON.
    """
    code = unit.function(name, 3)
    text, bound, start = code.params
    at, braces, brackets = code.local(64), code.local(64), code.local(64)
    code.set(at, start)
    first = byte_in(code, text, start, bound)
    _leave_word(code, first, text, bound, start)
    _leave_number(code, first, text, bound, start)
    in_string = unit.helper("json_string", _string_end)

    def skip_string() -> None:
        end = code.call(in_string, (text, bound, code.add(code.get(at), 1)))
        leave(code, code.icmp("slt", end, 0), NOT_THERE)
        code.set(at, end)

    def count(byte: IrValue, depth: IrLocal, begins: int, ends: int) -> None:
        up = code.convert(code.icmp("eq", byte, begins), 64, signed=False)
        down = code.convert(code.icmp("eq", byte, ends), 64, signed=False)
        now = code.op("sub", code.op("add", code.get(depth), up), down)
        leave(code, code.icmp("slt", now, 0), NOT_THERE)
        code.set(depth, now)

    leave(code, code.op("xor", _one_of(code, first, b'"[{'), const(1, 1)), NOT_THERE)
    going = code.local(64)
    code.set(going, const(1))

    def one() -> None:
        byte = byte_in(code, text, code.get(at), bound)
        leave(code, code.icmp("eq", byte, 0), NOT_THERE)
        when(code, code.icmp("eq", byte, _QUOTE), skip_string)
        count(byte, braces, _BRACE, _END)
        count(byte, brackets, _OPEN, _CLOSE)
        step(code, at)
        code.set(going, code.op("or", code.get(braces), code.get(brackets)))

    loop(code, lambda: code.icmp("ne", code.get(going), 0), one)
    code.ret(code.get(at))
    return code


def _leave_word(
    code: IrFunction, first: IrValue, text: IrValue, bound: IrValue, start: IrValue
) -> None:
    """Emit LLVM IR for the case that the word true, false or null begins at index `start`: the
    function under construction then returns the index after that word.

    Args:
        first: the byte at index `start`.
        text: address of the text.
        bound: bytes of the text that may be read.
    """
    for word in _WORDS:
        begins = code.icmp("eq", first, word[0])
        for place, byte in enumerate(word):
            here = byte_in(code, text, code.add(start, place), bound)
            begins = both(code, begins, code.icmp("eq", here, byte))
        after = byte_in(code, text, code.add(start, len(word)), bound)
        letter = code.icmp("ult", code.op("sub", after, const(ord("a"))), 26)
        begins = both(code, begins, code.op("xor", letter, const(1, 1)))
        leave(code, begins, code.add(start, len(word)))


def _leave_number(
    code: IrFunction, first: IrValue, text: IrValue, bound: IrValue, start: IrValue
) -> None:
    """Emit LLVM IR for the case that a number (digits, a fraction, an exponent) begins at index
    `start`: the function under construction then returns the index after that number, or -1 if the
    text is not JSON.

    Args:
        first: the byte at index `start`.
        text: address of the text.
        bound: bytes of the text that may be read.
    """
    at, dot, power = code.local(64), code.local(64), code.local(64)
    code.set(at, start)

    def more() -> IrValue:
        byte = byte_in(code, text, code.get(at), bound)
        seen = code.icmp("ne", code.get(power), 0)
        is_dot = both(
            code, code.icmp("eq", byte, _DOT), code.icmp("eq", code.get(dot), 0),
            code.op("xor", seen, const(1, 1)),
        )  # fmt: skip
        sign = _one_of(code, byte, b"+-")
        signed = both(code, sign, either(code, seen, code.icmp("eq", code.get(at), start)))
        is_power = both(code, _one_of(code, byte, b"eE"), code.op("xor", seen, const(1, 1)))
        code.set(dot, code.op("or", code.get(dot), code.convert(is_dot, 64, signed=False)))
        code.set(power, code.op("or", code.get(power), code.convert(is_power, 64, signed=False)))
        return either(code, _digit(code, byte), is_dot, signed, is_power)

    def number() -> None:
        loop(code, more, lambda: step(code, at))
        after = byte_in(code, text, code.get(at), bound)
        # In an object or array, one of these bytes follows a number.
        follows = _one_of(code, after, b",]} \t\n\v\f\r")
        code.ret(code.select(follows, code.get(at), NOT_THERE))
        code.block(code.fresh("after"))

    when(code, either(code, _digit(code, first), code.icmp("eq", first, _MINUS)), number)


def _element(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function json_element(text, bound, at, path, start, end), which finds the
    element that one part of a path names.

    The function returns the index of the element in the text, or -1 if it is missing or the text is
    not JSON.  The object or array begins at index `at` of the text; the part of the path is
    path[start:end].
    """
    code = unit.function(name, 6)
    text, bound, start, path, key, key_end = code.params
    blanks, in_string, value_end, number = (
        unit.helper(one, write)
        for one, write in (
            ("json_blanks", _blanks), ("json_string", _string_end), ("json_value", _value_end),
            ("json_number", _number),
        )
    )  # fmt: skip
    at, left, found = code.local(64), code.local(64), code.local(64)
    is_array = code.icmp("eq", byte_in(code, text, start, bound), _OPEN)
    code.set(at, code.call(blanks, (text, bound, code.add(start, 1))))
    code.set(left, code.call(number, (path, key, key_end)))

    def skip(wanted: int) -> None:
        byte = byte_in(code, text, code.get(at), bound)
        leave(code, code.icmp("ne", byte, wanted), NOT_THERE)
        code.set(at, code.call(blanks, (text, bound, code.add(code.get(at), 1))))

    def name_of() -> None:
        byte = byte_in(code, text, code.get(at), bound)
        leave(code, code.icmp("ne", byte, _QUOTE), NOT_THERE)
        begin = code.add(code.get(at), 1)
        end = code.call(in_string, (text, bound, begin))
        leave(code, code.icmp("slt", end, 0), NOT_THERE)
        size, wanted = code.op("sub", end, begin), code.op("sub", key_end, key)
        alike = code.icmp("eq", size, wanted)
        same = unit.helper("same_bytes", write_same_bytes)
        count = code.select(alike, size, const(0))
        words = (code.op("add", text, begin), code.op("add", path, key), count)
        equal = code.icmp("ne", code.call(same, words), 0)
        code.set(found, code.convert(both(code, alike, equal), 64, signed=False))
        code.set(at, code.call(blanks, (text, bound, code.add(end, 1))))
        skip(_COLON)

    def next_index() -> None:
        here = code.icmp("eq", code.get(left), 0)
        code.set(found, code.convert(here, 64, signed=False))
        step(code, left, -1)

    def one() -> None:
        when(code, is_array, next_index, name_of)
        leave(code, code.icmp("ne", code.get(found), 0), lambda: code.get(at))
        end = code.call(value_end, (text, bound, code.get(at)))
        leave(code, code.icmp("slt", end, 0), NOT_THERE)
        code.set(at, code.call(blanks, (text, bound, end)))
        skip(_COMMA)

    loop(code, lambda: code.icmp("ult", code.get(at), bound), one)
    code.ret(NOT_THERE)
    return code


def _number(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function json_number(path, start, end), which returns the decimal number in
    path[start:end], or -1 if these bytes are no number.
    """
    code = unit.function(name, 3)
    path, start, end = code.params
    at, value = code.local(64), code.local(64)
    code.set(at, start)
    leave(code, code.icmp("eq", start, end), NOT_THERE)

    def digit() -> None:
        byte = byte_in(code, path, code.get(at), end)
        leave(code, code.op("xor", _digit(code, byte), const(1, 1)), NOT_THERE)
        leave(code, code.icmp("ugt", code.get(value), 1 << 32), NOT_THERE)
        tens = code.op("mul", code.get(value), 10)
        code.set(value, code.op("add", tens, code.op("sub", byte, const(ord("0")))))
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), end), digit)
    code.ret(code.get(value))
    return code


def _write_json(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function json(dst, size, text, bound, path, path's bound), which stores the
    element's text and returns 1; it returns 0 if the result is NULL.
    """
    code = unit.function(name, 6)
    dst, size, text, bound, path, path_bound = code.params
    blanks = unit.helper("json_blanks", _blanks)
    at, part, going = code.local(64), code.local(64), code.local(64)
    code.set(at, code.call(blanks, (text, bound, const(0))))
    # A path may begin with an index.
    indexed = code.icmp("eq", byte_in(code, path, const(0), path_bound), _OPEN)
    code.set(part, code.convert(indexed, 64, signed=False))
    code.set(going, const(1))

    def down() -> None:
        opens = _one_of(code, byte_in(code, text, code.get(at), bound), b"[{")
        leave(code, code.op("xor", opens, const(1, 1)), const(0))
        end = code.call(unit.helper("json_part", _key_end), (path, path_bound, code.get(part)))
        words = (text, bound, code.get(at), path, code.get(part), end)
        place = code.call(unit.helper("json_element", _element), words)
        leave(code, code.icmp("slt", place, 0), const(0))
        code.set(at, place)
        closed = code.icmp("eq", byte_in(code, path, end, path_bound), _CLOSE)
        after = code.op("add", end, code.convert(closed, 64, signed=False))
        code.set(going, byte_in(code, path, after, path_bound))
        code.set(part, code.add(after, 1))

    loop(code, lambda: code.icmp("ne", code.get(going), 0), down)
    start = code.get(at)
    end = code.call(unit.helper("json_value", _value_end), (text, bound, start))
    leave(code, code.icmp("slt", end, 0), const(0))
    quoted = code.icmp("eq", byte_in(code, text, start, bound), _QUOTE)
    quote = code.convert(quoted, 64, signed=False)
    source, last = code.local(64), code.op("sub", end, quote)
    code.set(source, code.op("add", start, quote))
    to = code.local(64)

    def more() -> IrValue:
        fits = code.icmp("ult", code.add(code.get(to), 1), size)
        return both(code, fits, code.icmp("ult", code.get(source), last))

    def copy() -> None:
        put(code, to, byte_in(code, text, code.get(source), bound), dst)
        step(code, source)

    loop(code, more, copy)
    put(code, to, const(0), dst)
    code.ret(const(1))
    return code


@subroutine("string json(const char *, const char *)")
def json(firing: Firing, args: Args) -> Lowered:
    code = firing.code
    dst, size, text = new_text(firing)
    words = (dst, size, *text_words(firing, args[0]), *text_words(firing, args[1]))
    success = code.call(firing.unit.helper("json", _write_json), words)
    missing = code.icmp("eq", success, 0)
    return Text(code.select(missing, const(0), dst), text.bound, nullable=True)
