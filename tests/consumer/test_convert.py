"""Conversions against C's own printf(3), and against known output of DTrace."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.consumer.convert import Spec, date, escape, fixed, stack
from tests.tiers import draws

LIBC = ctypes.CDLL(None)


def c_printf(directive: str, value: int | bytes) -> str:
    buffer = ctypes.create_string_buffer(4096)
    argument = ctypes.c_longlong(value) if isinstance(value, int) else ctypes.c_char_p(value)
    LIBC.snprintf(buffer, ctypes.c_size_t(4096), directive.encode(), argument)
    return buffer.value.decode()


def spec(text: str, *, signed: bool = True) -> Spec:
    """Return the conversion of a directive in its usual notation; with digits only if a test needs
    them."""
    body, conversion = text[1:-1], text[-1]
    flags = body[: len(body) - len(body.lstrip("-+ 0#'"))]
    width, _, precision = body[len(flags) :].partition(".")
    return Spec(
        conversion, flags, int(width) if width else None, int(precision) if precision else None,
        signed,
    )  # fmt: skip


@settings(max_examples=draws(150, 600), deadline=None)
@given(
    st.sampled_from("dixXou"),
    st.lists(st.sampled_from("-+ 0#"), unique=True).map("".join),
    st.one_of(st.none(), st.integers(1, 25)),
    st.one_of(st.none(), st.integers(1, 25)),
    st.one_of(st.sampled_from([0, 1, -1]), st.integers(-(2**63), 2**63 - 1)),
)
def test_integers_as_c_formats_them(
    letter: str, flags: str, width: int | None, precision: int | None, value: int
) -> None:
    if letter in "di":
        flags = flags.replace("#", "")  # undefined in C
        argument = value
    else:
        argument = value & 0xFFFFFFFFFFFFFFFF
    w = "" if width is None else str(width)
    p = "" if precision is None else f".{precision}"
    expected = c_printf(f"%{flags}{w}{p}ll{letter}", value)
    assert Spec(letter, flags, width, precision, True).format(argument, hex) == expected


@settings(max_examples=draws(60, 200), deadline=None)
@given(
    st.sampled_from(["", "-"]),
    st.one_of(st.none(), st.integers(1, 25)),
    st.one_of(st.none(), st.integers(1, 25)),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
)
def test_strings_as_c_formats_them(
    flags: str, width: int | None, precision: int | None, value: str
) -> None:
    w = "" if width is None else str(width)
    p = "" if precision is None else f".{precision}"
    expected = c_printf(f"%{flags}{w}{p}s", value.encode())
    assert Spec("s", flags, width, precision, False).format(value.encode(), hex) == expected


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("%c", 97, "a"), ("%d", 97, "97"), ("%i", 97, "97"), ("%o", 97, "141"),
        ("%p", 97, "61"), ("%s", b"hello", "hello"), ("%u", 97, "97"), ("%x", 97, "61"),
        ("%X", 0xAB, "AB"), ("%#8x", 0x123, "   0x123"), ("%08x", 0x123, "00000123"),
        ("%-8x", 0x123, "123     "), ("%+8d", 123, "    +123"), ("% 8d", 123, "     123"),
        ("%#x", 0, "0"), ("%.0d", 0, "0"), ("%5c", 97, "    a"), ("%-5c", 97, "a    "),
        ("%c", 353, "a"),
    ],
)  # fmt: skip
def test_known_outputs(text: str, value: int | bytes, expected: str) -> None:
    assert spec(text).format(value, hex) == expected


def test_d_of_an_unsigned_type_is_u() -> None:
    assert spec("%+d", signed=False).format(2**64 - 1, hex) == "18446744073709551615"
    assert spec("%07d", signed=False).format(42, hex) == c_printf("%07llu", 42)
    assert spec("%7.4i", signed=False).format(42, hex) == c_printf("%7.4llu", 42)


def test_negative_width_means_left() -> None:
    assert Spec("d", "", -6, None, True).format(42, hex) == "42    "
    assert Spec("s", "", -6, None, True).format(b"ab", hex) == "ab    "
    assert Spec("o", "#", -6, None, True).format(8, hex) == "010   "
    assert Spec("d", "0", -6, None, True).format(42, hex) == "42    "


def test_addresses_are_symbolised_and_then_strings() -> None:
    def name(address: int) -> str:
        return f"vmlinux`vfs_read+{address & 0xFF:#x}"

    assert spec("%a").format(0xFFFFFFFF81000013, name) == "vmlinux`vfs_read+0x13"
    assert spec("%-24a").format(0xFFFFFFFF81000013, name) == "vmlinux`vfs_read+0x13   "


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    date.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    date.cache_clear()


def test_dates(utc: None) -> None:
    # date -u -d '1973-12-03 17:20:00' +%s is 123787200
    assert spec("%Y").format(123787200_999999999, hex) == "1973 Dec  3 17:20:00"
    assert spec("%22Y").format(123787200_000000000, hex) == "  1973 Dec  3 17:20:00"
    assert spec("%T").format(123787200_000000000, hex) == "Mon, 03 Dec 1973 17:20:00 UTC"
    # The months as strftime(3) has them in the C locale, each on its first day.
    for month in range(1, 13):
        first = datetime(1973, month, 1, tzinfo=UTC)
        shown = spec("%Y").format(int(first.timestamp()) * 1_000_000_000, hex)
        assert shown == f"1973 {first:%b}  1 00:00:00"


def test_wide_characters() -> None:
    """UTF-32 up to the first 0; a surrogate, or a number beyond Unicode, is no character."""

    def wide(conversion: str, value: int | bytes, width: int | None = None) -> str:
        return Spec(conversion, "", width, None, True).format(value, hex)

    assert wide("wc", ord("\N{GREEK SMALL LETTER PI}"), 3) == "  \N{GREEK SMALL LETTER PI}"
    assert wide("wc", -1) == wide("wc", 0xD800) == wide("wc", 0x110000) == "\ufffd"
    assert wide("wc", 0xD7FF) == "\ud7ff"
    assert wide("wc", 0) == ""
    assert wide("ws", "a\U0001f600b\0c".encode("utf-32-le")) == "a\U0001f600b"
    assert wide("ws", "ab".encode("utf-32-le") + b"xyz") == "ab"


def test_escapes() -> None:
    assert escape(b"\0\a\b\t\n\v\f\r") == "\\0\\a\\b\\t\\n\\v\\f\\r"
    assert escape(b'a\n\t"\\\x01\x7f\xff~ ') == 'a\\n\\t\\"\\\\\\001\\177\\377~ '
    assert spec("%S").format(b"x\ny", hex) == "x\\ny"
    assert spec("%C").format(10, hex) == "\\n"


def test_grouping_follows_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec("%'d").format(1234567, hex) == "1234567"  # the C locale has no separator
    monkeypatch.setattr(
        "locale.localeconv",
        lambda: {"thousands_sep": ",", "grouping": [3, 0], "decimal_point": "."},
    )
    assert spec("%'d").format(1234567, hex) == "1,234,567"
    assert spec("%'x").format(0x1234567, hex) == "1234567"
    assert spec("%d").format(1234567, hex) == "1234567"


def test_pointer_width() -> None:
    assert fixed(None, "?") == 16
    assert fixed("?", "") == 16
    assert fixed("*", "") is None
    assert fixed(7, "") == 7
    assert fixed(7, "?") == 7


def test_bytes_that_are_not_utf8_survive() -> None:
    shown = spec("%s").format(b"\xffa", hex)
    assert shown.encode("utf-8", "surrogateescape") == b"\xffa"


def test_stack_frames() -> None:
    frames = b"".join(v.to_bytes(8, "little") for v in (0x10, 0x20, 0, 0x30))
    assert stack(frames, 4, lambda a: f"m`f+{a:#x}") == "\n    m`f+0x10\n    m`f+0x20\n"
    assert stack(frames[:16], 1, hex) == "\n 0x10\n 0x20\n", "a stack without a zero behind it"
