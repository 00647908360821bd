"""Conversion of one recorded value to text, by the rules of DTrace's printf.

The rules are C's printf(3) with the differences of the Dynamic Tracing Guide, "Output Formatting",
and of libdtrace: a precision of 0 counts as none; %d of an unsigned type counts as %u, but %i does
not; %p is hexadecimal without 0x; %a, %A, %Y, %T, %C, %S, %I and %P first make a string, and then
format that string.
"""

from __future__ import annotations

import itertools
import locale
import struct
import time
from collections.abc import Callable
from functools import lru_cache

from kinst.core.dataclass import dataclass
from kinst.wire.internet_names import host_name, service_name

Value = int | bytes
Symbolise = Callable[[int], str]

SIGNED = frozenset("di")
ALWAYS_SIGNED = frozenset("i")  # whatever the argument's type (pfcheck_xint(), pfprint_sint())
UNSIGNED = frozenset("uoxXp")
FLOATING = frozenset("eEfgG")
POINTER_WIDTH = 16  # width of %?, in columns
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_ESCAPES = {
    0: "\\0", 7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r",
    34: '\\"', 92: "\\\\",
}  # fmt: skip


def text(value: bytes) -> str:
    """Decode traced bytes as UTF-8. Bytes that are not UTF-8 become surrogates (PEP 383)."""
    return value.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=256)
def date(seconds: int) -> str:
    """Convert seconds since 1970 as %Y does: to local time such as "1973 Dec 3 17:20:00"."""
    t = time.localtime(seconds)
    return (
        f"{t.tm_year:4d} {_MONTHS[t.tm_mon - 1]} {t.tm_mday:2d} "
        f"{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}"
    )


@lru_cache(maxsize=256)
def date_822(seconds: int) -> str:
    """Convert seconds since 1970 as %T does: to local time in the form of RFC 822."""
    return time.strftime("%a, %d %b %G %H:%M:%S %Z", time.localtime(seconds))


def escape(value: bytes) -> str:
    r"""Convert bytes as %S does: special characters to C escapes, unprintable bytes to \ooo."""
    return "".join(
        _ESCAPES.get(c) or (chr(c) if 0x20 <= c <= 0x7E else f"\\{c:03o}") for c in value
    )


def wide_text(value: bytes) -> str:
    """Convert wide characters (UTF-32) as %wc and %ws do: to text, up to the first character 0.
    Invalid characters become U+FFFD."""
    numbers = (int.from_bytes(value[at : at + 4], "little") for at in range(0, len(value) - 3, 4))
    shown = itertools.takewhile(bool, numbers)
    return "".join(chr(n) if n < 0xD800 or 0xE000 <= n < 0x110000 else "\ufffd" for n in shown)


@dataclass(frozen=True, slots=True)
class Spec:
    """A conversion of a printf() format, such as %-8d.

    Attributes:
        conversion: the letter or letters, such as "d" or "ws".
        flags: the flag characters.
        width: the width; None if it is not given.
        precision: the precision; None if it is not given.
        signed: whether the argument's type is signed.
    """

    conversion: str
    flags: str
    width: int | None
    precision: int | None
    signed: bool

    def _directive(self, flags: str, letter: str, *, precision: bool = True) -> str:
        width = "" if not self.width else str(abs(self.width))
        if self.width is not None and self.width < 0 and "-" not in flags:
            flags += "-"
        dot = f".{self.precision}" if precision and self.precision else ""
        return f"%{flags}{width}{dot}{letter}"

    def _kept(self, allowed: str) -> str:
        return "".join(dict.fromkeys(c for c in self.flags if c in allowed))

    def compile(self, symbolise: Symbolise) -> tuple[str, Callable[[Value], object] | None]:
        """Compile the conversion for Python.

        Args:
            symbolise: returns the name of an address.

        Returns:
            A directive of Python's % operator, and a function that prepares a value for the
            directive. The function is None if the directive takes the value as it is.
        """
        c = self.conversion
        if c in ALWAYS_SIGNED or (c in SIGNED and self.signed):
            return self._integer("d", self._kept("-+ 0"))
        if c in SIGNED or c in UNSIGNED:
            letter = {"p": "x", "u": "d"}.get(c, "d" if c in SIGNED else c)
            return self._integer(letter, self._kept("-0"))
        if c in FLOATING:
            return self._directive(self._kept("-+ 0#"), c), _float_of
        return self._directive(self._kept("-"), "s", precision=c not in ("c", "wc")), _text_of(
            c, symbolise
        )

    def _integer(self, letter: str, flags: str) -> tuple[str, Callable[[Value], object] | None]:
        if self.precision:
            flags = flags.replace("0", "")
        plain = self._directive(flags, letter)
        if "'" in self.flags and letter == "d":
            return "%s", lambda v: locale.format_string(plain, v, grouping=True)
        if "#" in self.flags and letter in "xX":
            # Python writes 0x before a zero, C does not.
            alternate = self._directive(flags + "#", letter)
            return "%s", lambda v: (alternate if v else plain) % v
        if "#" in self.flags and letter == "o":
            return "%s", lambda v: self._octal(int(v), flags)
        return plain, None

    def _octal(self, value: int, flags: str) -> str:
        digits = f"{value:o}"
        digits = digits.rjust(self.precision or 0, "0")
        if not digits.startswith("0"):
            digits = "0" + digits
        width = abs(self.width or 0)
        if "-" in flags or (self.width or 0) < 0:
            return digits.ljust(width)
        return digits.rjust(width, "0" if "0" in flags else " ")

    def format(self, value: Value, symbolise: Symbolise) -> str:
        """Return one value as text, in this conversion."""
        directive, prepare = self.compile(symbolise)
        return directive % (prepare(value) if prepare else value)


def _float_of(value: Value) -> float:
    """Return the number that the bytes of a float or double mean."""
    if isinstance(value, int):
        return float(value)
    number: float = struct.unpack({4: "<f", 8: "<d"}[len(value)], value)[0]
    return number


def _text_of(conversion: str, symbolise: Symbolise) -> Callable[[Value], object]:
    """Return a function from a recorded value to a string, for the conversions that format a
    string."""
    if conversion == "wc":
        return lambda v: wide_text((int(v) & 0xFFFFFFFF).to_bytes(4, "little"))
    if conversion == "ws":
        return lambda v: wide_text(v) if isinstance(v, bytes) else str(v)
    if conversion == "c":
        return lambda v: text(bytes([int(v) & 0xFF]))
    if conversion == "C":
        return lambda v: escape(bytes([int(v) & 0xFF]))
    if conversion in ("a", "A"):
        return lambda v: symbolise(int(v))
    if conversion == "Y":
        return lambda v: date(int(v) // 1_000_000_000)
    if conversion == "T":
        return lambda v: date_822(int(v) // 1_000_000_000)
    if conversion == "P":
        return lambda v: service_name(int(v) & 0xFFFF)
    if conversion == "I":
        return lambda v: host_name(text(v)) if isinstance(v, bytes) else str(v)
    if conversion == "S":
        return lambda v: escape(v) if isinstance(v, bytes) else str(v)
    return lambda v: text(v) if isinstance(v, bytes) else str(v)


def fixed(field: int | str | None, flags: str) -> int | None:
    """Return the width or precision of a printf() conversion as a number. A "?" (%?p) means
    POINTER_WIDTH, the width of a printed pointer.

    Return None if the conversion gives no width or precision, or gives it as "*".

    Args:
        field: the width or precision of a FormatPart: a number, "?", "*", or None if not given.
        flags: for a width, the flags of the same FormatPart, which may contain the "?" instead of
            `field`. For a precision, "".
    """
    if field == "?" or (field is None and "?" in flags):
        return POINTER_WIDTH
    return field if isinstance(field, int) else None


def stack(value: bytes, indent: int, symbolise: Symbolise) -> str:
    """Return the text of a recorded kernel stack: one line for each frame, up to the first address
    0.

    Args:
        value: the addresses, 8 bytes each.
        indent: number of spaces before each frame.
        symbolise: returns the name of an address.
    """
    lines = ["\n"]
    for i in range(0, len(value) - 7, 8):
        pc = int.from_bytes(value[i : i + 8], "little")
        if pc == 0:
            break
        lines.append(f"{'':{indent}}{symbolise(pc)}\n")
    return "".join(lines)
