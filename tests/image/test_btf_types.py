"""Types from gcc's BTF, against a program made from the same source."""

from __future__ import annotations

import struct
import subprocess

import pytest

from kinst.core.dtypes import (
    ArrayType,
    EnumType,
    FunctionType,
    IntType,
    Member,
    PointerType,
    StructType,
)
from kinst.image.btf import parse_btf
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.elf import open_elf

TYPES = """
#include <stddef.h>
enum color { RED = -7, GREEN, BLUE = 2000000000 };
typedef unsigned long size_type;
struct inner { char c; short s; };
union either { int number; char bytes[8]; };
struct forward;
struct outer {
    char a; struct inner in[3]; union either e; enum color hue; size_type n;
    unsigned low : 3, middle : 9, high : 1; const volatile int *p; struct forward *later;
    long long grid[7]; signed char tiny; unsigned short half; _Bool yes;
};
struct outer value; union either other; enum color shade; size_type sized;
long taken(int one, struct outer *two, const char *three) { return one + two->n + *three; }
int varied(const char *format, ...) { return *format; }
void nothing(void) { }
"""
PROGRAM = """
#include <stdio.h>
#include <string.h>
static void bits(const char *name)
{
    const unsigned char *at = (const void *)&value;
    for (unsigned k = 0; k < 8 * sizeof(value); k++)
        if (at[k / 8] >> k % 8 & 1) { printf("%s %u\\n", name, k); break; }
    int count = 0;
    for (unsigned k = 0; k < 8 * sizeof(value); k++) count += at[k / 8] >> k % 8 & 1;
    printf("%s_bits %d\\n", name, count);
    memset(&value, 0, sizeof(value));
}
#define AT(member) printf(#member " %zu\\n", offsetof(struct outer, member))
int main(void)
{
    AT(a); AT(in); AT(e); AT(hue); AT(n); AT(p); AT(later); AT(grid); AT(tiny); AT(half); AT(yes);
    printf("outer %zu\\ninner %zu\\neither %zu\\n", sizeof(struct outer), sizeof(struct inner),
        sizeof(union either));
    value.low = -1; bits("low"); value.middle = -1; bits("middle"); value.high = -1; bits("high");
    printf("RED %d\\nGREEN %d\\nBLUE %d\\n", RED, GREEN, BLUE);
    return 0;
}
"""


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> BtfTypes:
    folder = tmp_path_factory.mktemp("btf")
    (folder / "t.c").write_text(TYPES)
    subprocess.run(["gcc", "-gbtf", "-c", "-o", "t.o", "t.c"], cwd=folder, check=True)
    found = open_types(open_elf(folder / "t.o"), "t")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    folder = tmp_path_factory.mktemp("said")
    (folder / "t.c").write_text(TYPES + PROGRAM)
    subprocess.run(["gcc", "-o", "t", "t.c"], cwd=folder, check=True)
    shown = subprocess.run(["./t"], cwd=folder, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in shown.splitlines())}


def members(types: BtfTypes, kind: str, name: str) -> dict[str, Member]:
    found = types.tagged(kind, name)
    assert isinstance(found, StructType)
    return {member.name: member for member in types.members(found)}


def test_members_are_where_the_program_has_them(types: BtfTypes, said: dict[str, int]) -> None:
    outer = types.tagged("struct", "outer")
    assert isinstance(outer, StructType) and outer.size == said["outer"]
    found = members(types, "struct", "outer")
    whole = ["a", "in", "e", "hue", "n", "p", "later", "grid", "tiny", "half", "yes"]
    assert list(found) == [*whole[:5], "low", "middle", "high", *whole[5:]]
    for name in whole:
        assert (found[name].offset, found[name].bits) == (said[name], 0), name
    for name in ("low", "middle", "high"):
        assert (found[name].bit, found[name].bits) == (said[name], said[f"{name}_bits"]), name
    for kind, name in (("struct", "inner"), ("union", "either")):
        one = types.tagged(kind, name)
        assert isinstance(one, StructType) and (one.kind, one.size) == (kind, said[name])
    assert list(members(types, "union", "either")) == ["number", "bytes"]


def test_types_of_members(types: BtfTypes) -> None:
    found = {name: member.type for name, member in members(types, "struct", "outer").items()}
    inner, grid = found["in"], found["grid"]
    assert isinstance(inner, ArrayType) and inner.count == 3
    assert str(inner.of) == "struct inner"
    assert isinstance(grid, ArrayType) and grid.count == 7 and str(grid.of) == "long long"
    wanted = {"tiny": (1, True), "half": (2, False), "n": (8, False), "low": (4, False)}
    for name, (size, signed) in wanted.items():
        one = found[name]
        assert isinstance(one, IntType) and (one.size, one.signed) == (size, signed), name
    assert isinstance(found["p"], PointerType) and "int" in str(found["p"])
    later = found["later"]
    assert isinstance(later, PointerType) and str(later) == "struct forward *"
    hue = found["hue"]
    assert isinstance(hue, EnumType) and str(hue) == "enum color"
    sized = types.typedef("size_type")
    assert isinstance(sized, IntType) and sized.size == 8
    assert types.typedef("int") is not None and types.typedef("absent") is None
    assert types.tagged("union", "outer") is None and types.tagged("struct", "either") is None


def test_values_of_enumerations(types: BtfTypes, said: dict[str, int]) -> None:
    color = types.tagged("enum", "color")
    assert isinstance(color, EnumType) and color.size == 4
    assert dict(color.values) == {name: said[name] for name in ("RED", "GREEN", "BLUE")}
    for name in ("RED", "GREEN", "BLUE"):
        assert types.enumerators(name) == [(color, said[name])]
    assert types.enumerators("BLACK") == []


def test_prototypes(types: BtfTypes) -> None:
    taken, varied = types.function("taken"), types.function("varied")
    nothing = types.function("nothing")
    assert isinstance(taken, FunctionType) and not taken.variadic
    assert [str(one) for one in taken.parameters] == ["int", "struct outer *", "const char *"]
    assert taken.names == ("one", "two", "three")
    assert isinstance(taken.result, IntType) and taken.result.size == 8
    assert isinstance(varied, FunctionType) and varied.variadic and len(varied.parameters) == 1
    assert isinstance(nothing, FunctionType)
    assert varied.names == ("format",) and nothing.names == ()
    assert nothing.parameters == () and not nothing.variadic and str(nothing.result) == "void"
    assert types.function("absent") is None


STRINGS = b"\0" + b"".join(text + b"\0" for text in (b"wide", b"A", b"B", b"C", b"odd"))


def record(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *(word & 0xFFFF_FFFF for word in words))


def of(records: bytes) -> BtfTypes:
    size = len(records)
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, size, size, len(STRINGS))
    return BtfTypes(parse_btf(head + records + STRINGS, "hand"), "hand")


@pytest.mark.parametrize("signed", [False, True])
def test_enumerations_of_64_bits(signed: bool) -> None:
    """BTF_KIND_ENUM64, which no compiler here writes (Linux, Documentation/bpf/btf.rst, 2.2.19): a
    name's offset, and the value's lower and upper half; kind_flag says whether it is signed."""
    values = {"A": 5, "B": 1 << 40 | 3, "C": -(1 << 50) if signed else (1 << 63) + 9}
    words = [STRINGS.index(b"wide"), signed << 31 | 19 << 24 | 3, 8]
    for name, value in values.items():
        at = STRINGS.index(b"\0" + name.encode() + b"\0") + 1
        words += [at, value & 0xFFFF_FFFF, value >> 32 & 0xFFFF_FFFF]
    found = of(record(*words)).tagged("enum", "wide")
    assert isinstance(found, EnumType) and (found.size, found.signed) == (8, signed)
    assert dict(found.values) == values
    ((_, value),) = of(record(*words)).enumerators("B")
    assert value == values["B"]
