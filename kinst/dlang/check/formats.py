"""Checker of printf() and printa() formats, which compares conversions with arguments as
libdtrace's dt_printf.c does (Dynamic Tracing Guide, "Output Formatting").

Length modifiers (h, l, ll, L) are ignored: the argument's type decides.

Tested by tests/dlang/check/test_actions.py and tests/dlang/test_edges.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    ArrayType,
    DType,
    FloatType,
    IntType,
    PointerType,
    StackType,
    StringType,
    SymbolType,
)
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.syntax.source import to_text

_MOST_WIDTH = 65535  # a larger width is probably a typing error, and could fill memory

_INTEGER = "char, short, int, long, or long long"

_SMALL = "char, short, or int"

_REAL = "float, double, or long double"

_ADDRESS = "pointer or integer"

_TEXT = "char [] or string (or use stringof)"

_TIME = "int64_t"

_PORT = "uint16_t"

_WIDE_CHARACTER = "int"

_WIDE_TEXT = "wchar_t []"

# The type of argument that each conversion takes, in libdtrace's words.
_PROTOTYPES = {
    **dict.fromkeys("diouxX", _INTEGER),
    **dict.fromkeys("cC", _SMALL),
    **dict.fromkeys("eEfgG", _REAL),
    **dict.fromkeys("aAp", _ADDRESS),
    **dict.fromkeys("sSI", _TEXT),
    **dict.fromkeys("TY", _TIME),
    "P": _PORT,
    "k": "stack",
    "wc": _WIDE_CHARACTER,
    "ws": _WIDE_TEXT,
}
_SUGGESTED = "dskaAf"  # conversions that a message may suggest


@dataclass(frozen=True, slots=True)
class Conversion:
    """One conversion of a format, with the literal text before it."""

    number: int  # number of its % in the format, from 1; %% is counted as well
    literal: bytes  # the text before the conversion
    letter: str
    flags: str
    width: int | str | None
    precision: int | str | None
    aggregate: bool


@dataclass(frozen=True, slots=True)
class ParsedFormat:
    text: str
    conversions: tuple[Conversion, ...]
    rest: bytes


class _Scanner:
    """Reader of one format string, which it decodes as latin-1 so that each character is a byte."""

    def __init__(self, value: bytes, span: Span) -> None:
        self.text = value.decode("latin-1")
        self.span = span
        self.at = 0
        self.number = 0

    def fail(self, message: str) -> DError:
        return DError(f"format conversion #{self.number} {message}", self.span, "D_SYNTAX")

    def digits(self) -> int:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in "0123456789":
            self.at += 1
        digits = self.text[start : self.at].lstrip("0")[:6] or "0"
        if int(digits) > _MOST_WIDTH:
            raise self.fail(f"has a width or precision over {_MOST_WIDTH}")
        return int(digits)


def parse_format(value: bytes, span: Span) -> ParsedFormat:
    """Parse a format into its conversions. Raises DError D_SYNTAX, with libdtrace's words."""
    scanner = _Scanner(value, span)
    conversions: list[Conversion] = []
    literal = ""
    while True:
        percent = scanner.text.find("%", scanner.at)
        if percent < 0:
            literal += scanner.text[scanner.at :]
            break
        literal += scanner.text[scanner.at : percent]
        scanner.at = percent + 1
        scanner.number += 1
        if scanner.text.startswith("%", scanner.at):
            scanner.at += 1
            literal += "%"
            continue
        conversions.append(_conversion(scanner, literal.encode("latin-1")))
        literal = ""
    return ParsedFormat(to_text(value), tuple(conversions), literal.encode("latin-1"))


def _conversion(scanner: _Scanner, literal: bytes) -> Conversion:
    flags = ""
    width: int | str | None = None
    precision: int | str | None = None
    dots = 0
    aggregate = False
    modifiers = ""
    while scanner.at < len(scanner.text):
        c = scanner.text[scanner.at]
        if c in "123456789" or (c == "0" and (dots or width is not None)):
            number = scanner.digits()
            width, precision = (width, number) if dots else (number, precision)
            continue
        scanner.at += 1
        if c in "#+ '0-":
            flags = flags.replace("-" if c == "0" else "0" if c == "-" else "", "")
            flags += "" if c in flags else c
        elif c == "*":
            if (precision if dots else width) == "*":
                part = "precision" if dots else "width"
                raise scanner.fail(f"has more than one '*' specified for the output {part}")
            width, precision = (width, "*") if dots else ("*", precision)
        elif c == ".":
            dots += 1
            precision = 0
            if dots > 1:
                raise scanner.fail("has more than one '.' specified")
        elif c == "?":
            width = 16
        elif c == "@":
            aggregate = True
        elif c == "$":
            raise scanner.fail("uses unsupported positional format (%n$)")
        elif c == "%":
            raise scanner.fail("cannot be combined with other format flags: %%")
        elif c in "hlLw":
            modifiers += c
        else:
            letter = f"w{c}" if "w" in modifiers else c
            if letter not in _PROTOTYPES:
                shown = c if c.isprintable() else f"\\{ord(c):03o}"
                raise scanner.fail(f"is undefined: %{modifiers[:8]}{shown}")
            return Conversion(scanner.number, literal, letter, flags, width, precision, aggregate)
    raise scanner.fail("name expected before end of format string")


def is_wide_text(type_: DType) -> bool:
    """Return whether %ws can print values of a type: as in libdtrace, any array of 32-bit
    integers.
    """
    return isinstance(type_, ArrayType) and isinstance(type_.of, IntType) and type_.of.size == 4


def takes_wide_text(parsed: ParsedFormat) -> list[bool]:
    """Return for each argument of a format, in order, whether %ws prints it. An array that %ws
    prints is not converted to a pointer.
    """
    wide: list[bool] = []
    for c in parsed.conversions:
        wide += [False] * ((c.width == "*") + (c.precision == "*"))
        if not c.aggregate:
            wide.append(c.letter == "ws")
    return wide


def _fits(letter: str, type_: DType) -> bool:
    prototype = _PROTOTYPES[letter]
    if prototype == _WIDE_TEXT:
        return is_wide_text(type_)
    if letter == "k" or isinstance(type_, StackType):
        return letter == "k" and isinstance(type_, StackType)
    if isinstance(type_, SymbolType):
        return letter == ("A" if type_.user else "a")
    if prototype == _TEXT:
        return isinstance(type_, StringType)
    if prototype == _ADDRESS:
        return isinstance(type_, IntType | PointerType)
    if prototype == _REAL:
        return isinstance(type_, FloatType) and type_.size <= 8
    if not isinstance(type_, IntType):
        return False
    if prototype == _SMALL:
        return type_.size <= 4
    if prototype == _WIDE_CHARACTER:
        return type_.size == 4
    if prototype == _TIME:
        return type_.size == 8
    if prototype == _PORT:
        return type_.size == 2 and not type_.signed
    return prototype == _INTEGER


@dataclass(frozen=True, slots=True)
class PrintedValue:
    """A value that a format's conversion prints, with its type."""

    type: DType
    span: Span  # where error messages point


class _Binder:
    """Matcher of a format's conversions with the values to print, in order."""

    def __init__(self, function: str, values: Sequence[PrintedValue], span: Span) -> None:
        self.function = function
        self.values = values
        self.span = span
        self.used = 0
        self.stars: list[int] = []

    def star(self, conversion: Conversion, shown: str) -> None:
        number, letter = conversion.number, conversion.letter
        if self.used >= len(self.values):
            message = (
                f"{self.function}( ) prototype mismatch: conversion #{number} (%{letter}) is "
                f'missing a corresponding "{shown}" argument'
            )
            raise DError(message, self.span, "D_PRINTF_DYN_PROTO")
        value = self.values[self.used]
        if not isinstance(value.type, IntType):
            message = (
                f"{self.function}( ) argument #{self.used + 2} is incompatible with conversion "
                f"#{number} prototype: conversion: % {shown} {letter}, prototype: int, "
                f"argument: {value.type}"
            )
            raise DError(message, value.span, "D_PRINTF_DYN_TYPE")
        self.stars.append(self.used)
        self.used += 1

    def value(self, conversion: Conversion, aggregated: IntType | None) -> DType:
        number, letter = conversion.number, conversion.letter
        if conversion.aggregate:
            if aggregated is None:
                message = (
                    "%@ conversion requires an aggregation and is not for use with "
                    f"{self.function}( )"
                )
                raise DError(message, self.span, "D_PRINTF_AGG_CONV")
            name, value = "aggregating action", PrintedValue(aggregated, self.span)
        elif self.used >= len(self.values):
            message = (
                f"{self.function}( ) prototype mismatch: conversion #{number} (%{letter}) is "
                "missing a corresponding value argument"
            )
            raise DError(message, self.span, "D_PRINTF_ARG_PROTO")
        else:
            name, value = f"argument #{self.used + 2}", self.values[self.used]
            self.used += 1
        if not _fits(letter, value.type):
            message = (
                f"{self.function}( ) {name} is incompatible with conversion #{number} prototype: "
                f"conversion: %{letter}, prototype: {_PROTOTYPES[letter]}, argument: {value.type}"
            )
            fitting = [one for one in _SUGGESTED if _fits(one, value.type)]
            hint = f"%{fitting[0]} prints it" if fitting else ""
            raise DError(message, value.span, "D_PRINTF_ARG_TYPE", hint)
        return value.type


def bind_format(
    function: str,
    parsed: ParsedFormat,
    values: Sequence[PrintedValue],
    span: Span,
    *,
    aggregated: IntType | None = None,
    exact: bool = True,
) -> tuple[typed.PrintfFormat, tuple[int, ...]]:
    """Match each conversion of a format with a value, and check that their types agree.

    Args:
        function: name of the function, for messages.
        parsed: the format.
        values: the values to print, in order.
        span: where the format is.
        aggregated: in printa(), the type that %@ prints; None if %@ is an error, as in printf().
        exact: whether a value that no conversion prints is an error.

    Returns:
        (the format, indexes of those values that a * takes as width or precision). In the format,
            the letter of a conversion that prints an aggregation's value has an @ before it: "@d".

    Raises:
        DError: D_PRINTF_*.
    """
    if not parsed.text:
        message = f"{function}( ) format string is empty"
        raise DError(message, span, "D_PRINTF_FMT_EMPTY")
    binder = _Binder(function, values, span)
    parts: list[typed.FormatPart] = []
    for c in parsed.conversions:
        if c.width == "*":
            binder.star(c, "*")
        if c.precision == "*":
            binder.star(c, ".*")
        type_ = binder.value(c, aggregated)
        size = type_.size if isinstance(type_, IntType | PointerType) else 0
        letter = f"@{c.letter}" if c.aggregate else c.letter
        parts.append(typed.FormatPart(c.literal, letter, c.flags, c.width, c.precision, size))
    if exact and binder.used < len(values):
        message = (
            f"{function}( ) prototype mismatch: only {binder.used} arguments required by this "
            "format string"
        )
        raise DError(message, values[binder.used].span, "D_PRINTF_ARG_EXTRA")
    if parsed.rest:
        parts.append(typed.FormatPart(parsed.rest))
    return typed.PrintfFormat(parsed.text, tuple(parts)), tuple(binder.stars)
