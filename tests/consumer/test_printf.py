"""Formats of records in bulk: conversions of values that are no integers, and widths from
arguments."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from kinst.consumer.printf import format_template
from kinst.core import dtypes
from kinst.core.dtypes import StackType, StringType
from kinst.core.records import Field
from tests.consumer.world import format_, part

FRAMES = struct.pack("<3Q", 0x10, 0x20, 0)


def rendered(data: bytes, fields: list[Field], *parts: object) -> list[str]:
    """Return the output of two equal rows."""
    rows = np.frombuffer(data * 2, np.uint8).reshape(2, -1)
    return format_template(format_(*parts), fields, hex).render(rows)  # type: ignore[arg-type]


def test_stacks() -> None:
    """%k prints a frame a line, up to the first 0; a width with - indents (pfprint_stack())."""
    field = Field(0, 24, StackType(3))
    assert rendered(FRAMES, [field], part("s", "k"), part("e")) == ["s\n0x10\n0x20\ne"] * 2
    assert rendered(FRAMES, [field], part("", "k", "-", 3)) == ["\n   0x10\n   0x20\n"] * 2
    for none in (part("", "k", "", 3), part("", "k", "-")):
        assert rendered(FRAMES, [field], none) == ["\n0x10\n0x20\n"] * 2


def test_wide_strings_and_percent_signs() -> None:
    data = "hé\0".encode("utf-32-le")
    text = rendered(data, [Field(0, 12, StringType(12))], part("100", "%"), part(" ", "ws"))
    assert text == ["100% hé"] * 2


@pytest.mark.parametrize("conversion", list("diuxXo"))
def test_integers_are_shown_as_the_conversion_says(conversion: str) -> None:
    """Integers are shown as by C's printf(); but d shows unsigned values as unsigned. (i does not:
    pfcheck_xint() and pfprint_sint() in libdtrace's dt_printf.c.)"""
    data = struct.pack("<i", -2)
    said = b"ll" + conversion.encode()
    for type_, value in ((dtypes.INT, -2), (dtypes.UINT, 0xFFFF_FFFE)):
        value = {"d": value, "i": -2}.get(conversion, 0xFFFF_FFFE)
        room = ctypes.create_string_buffer(64)
        ctypes.CDLL(None).snprintf(room, 64, b"[%" + said + b"]", ctypes.c_longlong(value))
        assert (
            rendered(data, [Field(0, 4, type_)], part("[", conversion), part("]"))
            == [room.value.decode()] * 2
        )


def test_a_width_of_each_record() -> None:
    fields = [Field(0, 4, dtypes.INT), Field(4, 4, dtypes.INT), Field(8, 8, StringType(8))]
    star = part("[", "s", "", "*", "*"), part("]")
    for width, precision, expected in ((5, 2, "[   ab]"), (-5, -1, "[abc  ]"), (0, 9, "[abc]")):
        data = struct.pack("<ii8s", width, precision, b"abc\0\xff")
        assert rendered(data, fields, *star) == [expected] * 2


def test_no_format_at_all() -> None:
    """system("") and freopen("")."""
    assert rendered(bytes(8), []) == ["", ""]
