"""The text of a program, spans in the text, and literals (Dynamic Tracing Guide, "Types, Operators,
and Expressions").

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import INT, LONG, UINT, ULONG, IntType
from kinst.core.errors import DError, Span

LINE_MARKER = re.compile(
    r'#[ \t]*(?:(?:pragma[ \t]+)?line[ \t]+)?([0-9]{1,9})(?:[ \t]+"([^"]*)"[ 0-9]*)?[ \t\r]*$'
)


class SourceText:
    """The D text of a file or of a command line argument.

    Args:
        text: the text, which may have any characters.
        file: name of the file or argument, for error messages.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self._lines = [line.rstrip("\r") for line in text.split("\n")]
        # A line marker names the file and number of the line that follows it (ISO C, 6.10.4).
        self._markers: list[tuple[int, str, int]] = [(0, file, 1)]
        for index, line in enumerate(self._lines):
            if line.startswith("#") and (marker := LINE_MARKER.match(line)):
                name = marker[2] if marker[2] is not None else self._markers[-1][1]
                self._markers.append((index + 1, name, int(marker[1])))

    def span(self, start: int, end: int) -> Span:
        """Return the span from offset `start` to offset `end`, exclusive. A span of several lines
        is cut at the end of its first line.
        """
        line = bisect_right(self._starts, start) - 1
        text = self._lines[line]
        column = start - self._starts[line]
        length = max(1, min(end - start, len(text) - column))
        at = bisect_right(self._markers, line, key=lambda marker: marker[0]) - 1
        first, file, number = self._markers[at]
        return Span(file, line - first + number, column + 1, length, text)


def to_bytes(text: str) -> bytes:
    """Encode text in UTF-8. Undecodable bytes, which Python has read as surrogates, become the same
    bytes again.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Decode any bytes as UTF-8 text, with surrogates for undecodable bytes: the inverse of
    to_bytes().
    """
    return data.decode("utf-8", "surrogateescape")


_LONG_LONG = IntType(8, True, "long long")

_ULONG_LONG = IntType(8, False, "unsigned long long")

# Types of integer constants in the order of C99 6.4.4.1: an unsuffixed hexadecimal constant takes
# the first type that can hold its value.
_TYPES = (INT, UINT, LONG, ULONG, _LONG_LONG, _ULONG_LONG)

_LIMITS = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**63 - 1, 2**64 - 1)

_INTEGER = re.compile(r"(0[xX][0-9A-Fa-f]+|[0-9]+)([uU]?[lL]?[lL]?)\Z")

_MOST_DIGITS = 64  # no 64-bit number has more significant digits, in any base


@dataclass(frozen=True, slots=True)
class IntLiteral:
    """An integer constant of the program."""

    value: int  # 0..2**64-1
    suffix: str = ""  # "u", "l", "ul", ...: in lower case
    decimal: bool = True  # whether the constant is decimal, not octal or hexadecimal


def read_integer(text: str, span: Span) -> IntLiteral:
    """Parse an integer constant. Raises DError D_INT_DIGIT, D_INT_OFLOW."""
    match = _INTEGER.match(text)
    if match is None:
        raise DError(f"{text} is not an integer constant", span, "D_SYNTAX")
    digits, suffix = match.group(1), match.group(2).lower()
    decimal = not digits.startswith("0")
    base = 10
    if digits[:2] in ("0x", "0X"):
        base, digits = 16, digits[2:]
    elif not decimal:
        base = 8
        bad = next((c for c in digits if c in "89"), None)
        if bad is not None:
            raise DError(f"constant {text} contains invalid digit {bad}", span, "D_INT_DIGIT")
    digits = digits.lstrip("0") or "0"
    value = int(digits, base) if len(digits) <= _MOST_DIGITS else 2**64
    if value >= 2**64:
        raise DError(f"constant {text[:40]} results in integer overflow", span, "D_INT_OFLOW")
    return IntLiteral(value, suffix, decimal)


def literal_type(literal: IntLiteral, span: Span) -> IntType:
    """Return the type of an integer constant: the first type of C99's list that can hold its value.
    Raises DError D_INT_OFLOW.
    """
    unsigned = "u" in literal.suffix
    first = int(unsigned) + 2 * literal.suffix.count("l")
    step = 2 if unsigned or literal.decimal else 1
    for at in range(first, len(_TYPES), step):
        if literal.value <= _LIMITS[at]:
            return _TYPES[at]
    raise DError(
        f"integer constant {literal.value:#x} cannot be represented in any built-in integral type",
        span,
        "D_INT_OFLOW",
        "add the suffix u",
    )


_ESCAPES = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11,
    "\\": 92, "'": 39, '"': 34, "?": 63,
}  # fmt: skip

_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9A-Fa-f]+|.)", re.DOTALL)


def unescape(text: str) -> bytes:
    """Replace C's escapes in the text between the quotes of a string constant, and drop a backslash
    before any other character; return the constant's bytes.
    """
    out = bytearray()
    at = 0
    for match in _ESCAPE.finditer(text):
        out += to_bytes(text[at : match.start()])
        at = match.end()
        code = match.group(1)
        if code[0] in "01234567":
            out.append(int(code, 8) & 0xFF)
        elif code[0] == "x" and len(code) > 1:
            out.append(int(code[1:][-2:], 16))
        elif code in _ESCAPES:
            out.append(_ESCAPES[code])
        else:
            out += to_bytes(code)
    out += to_bytes(text[at:])
    return bytes(out)


def string_value(text: str) -> bytes:
    """Return the bytes of a string constant up to its first NUL, as DTrace does.

    Args:
        text: the text between the constant's quotes, with escapes.
    """
    return unescape(text).split(b"\0", 1)[0]


def character_value(text: str, span: Span) -> IntLiteral:
    """Return the value of a character constant; 'ab' is 0x6162.

    Raises DError D_CHR_NULL (empty), D_CHR_OFLOW (over 8 bytes).

    Args:
        text: the text between the constant's quotes, with escapes.
    """
    data = unescape(text)
    if not data:
        raise DError("empty character constant", span, "D_CHR_NULL")
    if len(data) > 8:
        raise DError("character constant is too long", span, "D_CHR_OFLOW", "at most 8 bytes")
    return IntLiteral(int.from_bytes(data, "big"), "" if data[0] < 128 or len(data) < 8 else "u")


_PRINTED = {v: k for k, v in _ESCAPES.items() if k not in "'?"}


def escape(data: bytes) -> str:
    """Escape bytes for a string constant; return the text to put between its quotes. The inverse of
    unescape().
    """
    out = []
    for byte in data:
        if byte in _PRINTED:
            out.append("\\" + _PRINTED[byte])
        elif 32 <= byte < 127:
            out.append(chr(byte))
        else:
            out.append(f"\\{byte:03o}")
    return "".join(out)
