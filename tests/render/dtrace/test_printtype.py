"""print() of arrays and structures: which values are shown, and in which order.

tests/d and tests/vm check that the layout is dtrace(1)'s.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from kinst.core.dtypes import CHAR, INT, INT64, ArrayType, DType, Member, StructType
from kinst.render.dtrace.printtype import print_value


class Members:
    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def members(self, struct: StructType) -> Sequence[Member]:
        return self._members


def structure(kind: str, name: str, size: int, *members: Member) -> StructType:
    return StructType(kind, name, size, f"test {name}", Members(members))


def shown(type_: DType, data: bytes) -> list[str]:
    """Return the numbers and strings of the text, each after its member's name if it has one."""
    text = print_value(type_, data, hex)
    return re.findall(r'(?:\w+ = )?(?:0x[0-9a-f]+|"[^"]*")', text)


def test_elements_of_an_array() -> None:
    data = struct.pack("<3i", 1, 0x20, 0x300)
    assert shown(ArrayType(INT, 3), data) == ["0x1", "0x20", "0x300"]
    assert shown(ArrayType(INT64, 2), struct.pack("<2q", 5, 6)) == ["0x5", "0x6"]
    table = ArrayType(ArrayType(INT, 2), 2)
    assert shown(table, struct.pack("<4i", 1, 2, 3, 4)) == ["0x1", "0x2", "0x3", "0x4"]
    assert shown(ArrayType(CHAR, 8), b"text\0\0\0\0") == ['"text"']


def test_members_of_what_is_inside() -> None:
    """Members of an anonymous union are the structure's own; bit-fields are cut out."""
    either = structure("union", "", 8, Member("whole", INT64, 0), Member("half", INT, 0))
    point = structure("struct", "point", 8, Member("x", INT, 0), Member("y", INT, 32))
    outer = structure(
        "struct", "outer", 32,
        Member("low", INT, 0, 4), Member("high", INT, 4, 12), Member("", either, 64),
        Member("points", ArrayType(point, 2), 128),
    )  # fmt: skip
    data = struct.pack("<IIq4i", 0xABC5, 0, 0x100000007, 1, 2, 3, 4)
    found = [word.replace("= ", "") for word in shown(outer, data)]
    assert [word.rpartition(" ")[2] for word in found] == [
        "0x5", "0xabc", "0x100000007", "0x7", "0x1", "0x2", "0x3", "0x4",
    ]  # fmt: skip
