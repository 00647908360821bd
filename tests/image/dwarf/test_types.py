"""Types from DWARF of every version, of C declarations drawn at random: spelled as they were
declared, with members where a program compiled from the same text has them; and, by hand, forms
that compilers here do not write."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.dtypes import (
    VOID,
    EnumType,
    FloatType,
    IntType,
    Member,
    PointerType,
    StructType,
)
from kinst.core.errors import KinstError
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.types import DwarfTypes
from kinst.image.elf import open_elf
from tests.image.drawn_types import Declarations, said
from tests.image.dwarf_asm import Unit, Value, elf, sleb, uleb
from tests.tiers import draws

COMPILERS = {
    "gcc -gdwarf-2 -gstrict-dwarf": ["gcc", "-gdwarf-2", "-gstrict-dwarf"],
    "gcc -gdwarf-3 -gstrict-dwarf": ["gcc", "-gdwarf-3", "-gstrict-dwarf"],
    "gcc -gdwarf-4": ["gcc", "-gdwarf-4"],
    "gcc -gdwarf-5": ["gcc", "-gdwarf-5"],
    "gcc -gdwarf64": ["gcc", "-gdwarf-5", "-gdwarf64"],
    "clang -gdwarf-2": ["clang", "-gdwarf-2"],
    "clang -gdwarf-5": ["clang", "-gdwarf-5"],
    "BTF": ["gcc", "-gbtf"],
    "gcc for arm64": ["aarch64-linux-gnu-gcc", "-gdwarf-5"],
    "gcc for riscv64": ["riscv64-linux-gnu-gcc", "-gdwarf-4"],
}
NAMES = [
    pytest.param(name, marks=pytest.mark.full if "clang" in name else ()) for name in COMPILERS
]


def types_of(folder: Path, source: str, command: list[str]) -> DwarfTypes | BtfTypes:
    (folder / "t.c").write_text(source)
    subprocess.run([*command, "-w", "-c", "-o", "t.o", "t.c"], cwd=folder, check=True)
    made = folder / "t.o"
    found = open_types(open_elf(made), "t") if "-gbtf" in command else DebugInfo(made, "t").dwarf
    assert found is not None
    return found


def named_members(struct: StructType) -> list[Member]:
    """Return members by name; those of anonymous structures and unions in their places."""
    found = []
    for member in struct.members:
        if member.name:
            found.append(member)
        elif isinstance(member.type, StructType):
            inner = (struct.member(one.name) for one in named_members(member.type))
            found += [one for one in inner if one is not None]
    return found


@pytest.mark.drawn
@pytest.mark.parametrize("compiler", NAMES)
@pytest.mark.parametrize("seed", range(draws(3, 6)))
def test_drawn_declarations(seed: int, compiler: str, tmp_path: Path) -> None:
    # BTF of gcc before 13.3 has the dimensions of such arrays in the wrong order (its PR 114186).
    drawn = Declarations(seed, flat="BTF" in compiler)
    types, where = types_of(tmp_path, drawn.source, COMPILERS[compiler]), said(tmp_path, drawn)
    for made in drawn.structs:
        kind, name = made.tag.split()
        type_ = types.tagged(kind, name)
        assert isinstance(type_, StructType)
        assert (str(type_), type_.size) == (made.tag, where[made.tag.replace(" ", "_")][2])
        members = named_members(type_)
        assert [(m.name, str(m.type)) for m in members] == made.members
        for member in members:
            whole = 8 * member.type.size if isinstance(member.type, IntType) else 0
            bits = (member.bits or whole) if member.name in made.widths else member.bits
            assert (member.bit, bits) == where[member.name][:2], member.name
    for name, spelling in drawn.variables.items():
        assert str(types.variable(name)) == spelling
    for name, spelling in drawn.prototypes.items():
        assert str(types.function(name)) == spelling
    for name in drawn.typedefs:
        assert str(types.typedef(name)) == name
    for name, value in drawn.enumerators.items():
        ((type_, found),) = types.enumerators(name)
        assert found == value and type_.size == 4 and type_.name_of(value) == name
    for name in ("", "VALUE", "VALUE1x", "m"):
        assert types.enumerators(name) == [] and types.variable(name) is None
        assert types.tagged("struct", name) is None and types.typedef(name) is None


CONSTANTS = """
enum mixed { LOWEST = -2147483647 - 1, MINUS = -5, ZERO = 0, BYTE = 200, TWO = 60000,
  TOP = 2147483647 };
enum plain { SMALL, BIG = 0x80000001 };
enum unknown *later;
enum mixed used; enum plain other;
struct hidden *hidden;
"""
SHOWN = """
#include <stdio.h>
int main(void) {
    printf("%d %d %d %d %d %d", LOWEST, MINUS, ZERO, BYTE, TWO, TOP);
    printf(" %d %d\\n", SMALL, (int)BIG);
    return 0;
}
"""


# gcc's BTF leaves out values that are not ints.
@pytest.mark.parametrize("compiler", [name for name in NAMES if "BTF" not in name.values])
def test_enumerators_are_ints(compiler: str, tmp_path: Path) -> None:
    """In D they are ints, no matter which form the compiler chose for them."""
    types = types_of(tmp_path, CONSTANTS, COMPILERS[compiler])
    (tmp_path / "said.c").write_text(CONSTANTS + SHOWN)
    subprocess.run(["gcc", "-w", "-o", "said", "said.c"], cwd=tmp_path, check=True)
    text = subprocess.run([tmp_path / "said"], check=True, capture_output=True, text=True).stdout
    names = ["LOWEST", "MINUS", "ZERO", "BYTE", "TWO", "TOP", "SMALL", "BIG"]
    for name, value in zip(names, map(int, text.split()), strict=True):
        ((_, found),) = types.enumerators(name)
        assert found == value, name
    assert str(types.variable("later")) == "enum unknown *"
    unknown = types.variable("hidden")
    assert isinstance(unknown, PointerType) and str(unknown) == "struct hidden *"
    assert isinstance(unknown.to, StructType) and unknown.to.size == 0 and not unknown.to.members
    pointer = types.variable("later")
    assert isinstance(pointer, PointerType) and isinstance(pointer.to, EnumType)
    assert (pointer.to.size, pointer.to.values) == (4, ())


QUALIFIED = {
    "char *const fixed": "char *const",
    "char *volatile moving": "char *volatile",
    "int *const *deeper": "int *const *",
    "const volatile int both": "const volatile int",
    "const struct pair whole": "const struct pair",
    "volatile enum hue colour": "volatile enum hue",
    "const named later": "const named",
    "named const *to": "const named *",
    "_Atomic long shared": "_Atomic long",
}


@pytest.mark.parametrize(
    "compiler", ["gcc -gdwarf-5", pytest.param("clang -gdwarf-5", marks=pytest.mark.full)]
)
def test_qualifiers_are_kept_in_names(compiler: str, tmp_path: Path) -> None:
    """As in C; two in front of one type in either order."""
    source = "struct pair { int a; }; enum hue { RED }; typedef long *named;\n"
    source += "".join(f"{one};\n" for one in QUALIFIED)
    source += "int compare(const char *restrict one, char *const restrict two) { return 0; }\n"
    types = types_of(tmp_path, source, COMPILERS[compiler])
    for declared, spelling in QUALIFIED.items():
        name = declared.split()[-1].strip("*")
        found = str(types.variable(name))
        assert found == spelling or sorted(found.split()) == sorted(spelling.split()), declared
    prototype = str(types.function("compare"))
    orders = [f"char *{both}" for both in ("const restrict", "restrict const")]
    assert prototype in [f"int (const char *restrict, {two})" for two in orders]


BASE, ENUMERATOR, MEMBER, STRUCT, SUBRANGE, ARRAY = 0x24, 0x28, 0x0D, 0x13, 0x21, 0x01
VARIABLE, POINTER, TYPEDEF, UNSPECIFIED, UNIT, ENUMERATION = 0x34, 0x0F, 0x16, 0x3B, 0x11, 0x04
NAME, SIZE, ENCODING, TYPE, LOCATION, BIT_SIZE = 0x03, 0x0B, 0x3E, 0x49, 0x38, 0x0D
BIT_OFFSET, UPPER, COUNT, VALUE = 0x0C, 0x2F, 0x37, 0x1C
DATA1, REF4, BLOCK1, STRING, SDATA, DATA4 = 0x0B, 0x13, 0x0A, 0x08, 0x0D, 0x06


def named(text: str) -> Value:
    return Value(NAME, STRING, text.encode() + b"\0")


def one(attribute: int, number: int) -> Value:
    return Value(attribute, DATA1, bytes([number]))


def reference(at: int) -> Value:
    return Value(TYPE, REF4, struct.pack("<I", at))


class ByHand:
    """A unit to which types are added, and variables of them."""

    def __init__(self) -> None:
        self.unit = Unit(4)
        self.unit.entry(UNIT, [named("unit.c")], True)

    def entry(
        self, tag: int, *values: Value, below: Sequence[Sequence[Value]] = (), of: int = 0
    ) -> int:
        """Add an entry and return its offset.

        Args:
            below: the attributes of its children, of one tag.
        """
        self.unit.here("last")
        at = self.unit.places["last"]
        self.unit.entry(tag, list(values), bool(below))
        for row in below:
            self.unit.entry(of, list(row))
        if below:
            self.unit.end()
        return at

    def types(self, folder: Path) -> DwarfTypes:
        self.unit.end()
        found = DebugInfo(elf(folder / "hand", self.unit.sections()), "hand").dwarf
        assert found is not None
        return found

    def variable(self, name: str, type_: int) -> None:
        self.entry(VARIABLE, named(name), reference(type_))


@pytest.mark.parametrize(
    ("encoding", "size", "kind"),
    [(5, 4, "signed"), (6, 1, "signed"), (7, 8, "unsigned"), (8, 1, "unsigned"), (2, 1, "unsigned"),
     (0x10, 2, "unsigned"), (4, 4, "float"), (4, 16, "float"), (3, 8, "float"), (7, 16, "float"),
     (5, 3, "float")],
)  # fmt: skip
def test_base_types(encoding: int, size: int, kind: str, tmp_path: Path) -> None:
    """DW_ATE_signed, signed_char, unsigned, unsigned_char, boolean, UTF; float and complex; and
    integers of sizes that D does not compute with, which are as opaque as these."""
    made = ByHand()
    made.variable("it", made.entry(BASE, named("thing"), one(SIZE, size), one(ENCODING, encoding)))
    found = made.types(tmp_path).variable("it")
    if kind == "float":
        assert found == FloatType(size, "thing")
    else:
        assert found == IntType(size, kind == "signed", "thing")


def test_members_of_old_debug_information(tmp_path: Path) -> None:
    """DWARF 2: places are expressions, DW_OP_plus_uconst and a number of any length; bit-fields
    count from the most significant bit of the integer that they are in (5.5.4 there)."""
    made = ByHand()
    base = made.entry(BASE, named("int"), one(SIZE, 4), one(ENCODING, 5))
    places = [0, 1, 127, 128, 300, 70000]
    rows = []
    for at in places:
        code = b"\x23" + uleb(at)
        rows.append(
            [named(f"m{at}"), reference(base), Value(LOCATION, BLOCK1, bytes([len(code)]) + code)]
        )
    # int f : 5 at bits 3 to 7 from the least significant one of a 4-byte (by the type) or 2-byte.
    field = [reference(base), one(BIT_SIZE, 5), one(LOCATION, 8)]
    rows += [
        [named("four"), *field, one(BIT_OFFSET, 32 - 8)],
        [named("two"), *field, one(SIZE, 2), one(BIT_OFFSET, 16 - 8)],
        [named("new"), *field[:2], Value(0x6B, DATA1, b"\x43")],
        [named("nowhere"), reference(base)],
        [named("other"), reference(base), Value(LOCATION, BLOCK1, b"\2\x10\x20")],
    ]
    whole = made.entry(STRUCT, named("s"), one(SIZE, 99), below=rows, of=MEMBER)
    made.variable("it", whole)
    found = made.types(tmp_path).variable("it")
    assert isinstance(found, StructType)
    members = {m.name: (m.bit, m.bits) for m in found.members}
    assert members == {
        **{f"m{at}": (8 * at, 0) for at in places}, "four": (64 + 3, 5), "two": (64 + 3, 5),
        "new": (0x43, 5), "nowhere": (0, 0), "other": (0, 0),
    }  # fmt: skip


def test_arrays_by_hand(tmp_path: Path) -> None:
    """Bounds by DW_AT_count or DW_AT_upper_bound, of several dimensions and of none; some compilers
    write an upper bound of -1 for an array without a bound."""
    made = ByHand()
    base = made.entry(BASE, named("int"), one(SIZE, 4), one(ENCODING, 5))
    bounds: dict[str, list[list[Value]]] = {
        "int [6]": [[one(COUNT, 6)]], "int [7]": [[one(UPPER, 6)]], "int [1]": [[one(UPPER, 0)]],
        "int [2][3]": [[one(UPPER, 1)], [one(COUNT, 3)]], "int []": [[]],
        "int [][4]": [[Value(UPPER, DATA4, b"\xff" * 4)], [one(UPPER, 3)]],
        "int [0]": [[one(COUNT, 0)]], "int [0][0]": [[Value(UPPER, SDATA, b"\x7f")], []],
    }  # fmt: skip
    for k, rows in enumerate(bounds.values()):
        array = made.entry(ARRAY, reference(base), below=rows, of=SUBRANGE)
        made.variable(f"v{k}", array)
    made.variable("bare", made.entry(ARRAY, reference(base)))
    types = made.types(tmp_path)
    for k, spelling in enumerate(bounds):
        assert str(types.variable(f"v{k}")) == spelling.replace("[0]", "[]")
    assert str(types.variable("bare")) == "int []"


def test_what_is_no_type(tmp_path: Path) -> None:
    """An unknown tag; types that lead to themselves; an entry without a type."""
    made = ByHand()
    label = made.entry(0x0A, named("label"))
    made.variable("odd", label)
    made.variable("pointer", made.entry(POINTER, reference(label)))
    made.unit.here("loop")
    made.variable("ring", made.entry(TYPEDEF, named("t"), reference(made.unit.places["loop"])))
    made.variable("nothing", made.entry(UNSPECIFIED, named("decltype(nullptr)")))
    made.entry(VARIABLE, named("untyped"))
    types = made.types(tmp_path)
    for name in ("odd", "pointer"):
        with pytest.raises(
            KinstError, match=rf"of hand has a type of an unknown kind \(0xa, at {label:#x}"
        ):
            types.variable(name)
    with pytest.raises(KinstError, match="damaged debug information of hand: type at"):
        types.variable("ring")
    assert types.variable("nothing") == types.variable("untyped") == VOID


def test_enumerators_of_every_form(tmp_path: Path) -> None:
    """Of 4 bytes with the top bit set: negative, as C's int is, unless the form itself has a
    sign."""
    made = ByHand()
    rows = {
        "A": (Value(VALUE, DATA1, b"\xff"), 255), "B": (Value(VALUE, DATA4, b"\xff" * 4), -1),
        "C": (Value(VALUE, DATA4, b"\0\0\0\x80"), -(2**31)),
        "D": (Value(VALUE, SDATA, b"\x7f"), -1),
        "E": (Value(VALUE, DATA4, b"\xff\xff\xff\x7f"), 2**31 - 1),
        "F": (Value(VALUE, SDATA, sleb(2**31)), 2**31),
        "G": (Value(VALUE, 0x07, struct.pack("<Q", 2**32 + 5)), 2**32 + 5),
        "H": (Value(VALUE, 0x0F, uleb(2**32 - 2)), -2),
    }  # fmt: skip
    at = made.entry(
        ENUMERATION, named("e"), one(SIZE, 4), of=ENUMERATOR,
        below=[[named(name), value] for name, (value, _) in rows.items()],
    )  # fmt: skip
    made.variable("it", at)
    found = made.types(tmp_path).variable("it")
    assert isinstance(found, EnumType)
    assert dict(found.values) == {name: value for name, (_, value) in rows.items()}
