"""BTF of declarations drawn at random: a module's, which continues the numbers of the kernel's
types and strings, as pahole writes it; members where a program compiled from the same text has
them; and, by hand, damage that no file should have."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.dtypes import EnumType, StructType
from kinst.core.errors import KinstError
from kinst.image.btf import Btf, open_btf, parse_btf
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.elf import open_elf
from tests.image.drawn_types import Declarations, said

pytestmark = pytest.mark.full  # pahole


def encoded(folder: Path, name: str, source: str, *more: str) -> Path:
    """Return the file of a C text, with its .BTF by pahole."""
    (folder / f"{name}.c").write_text(source)
    made = folder / f"{name}.o"
    subprocess.run(["gcc", "-g", "-w", "-c", "-o", made, f"{name}.c"], cwd=folder, check=True)
    subprocess.run(["pahole", *more, "-J", made], cwd=folder, check=True)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_types_of_a_module_and_of_its_kernel(seed: int, tmp_path: Path) -> None:
    # pahole flattens arrays of arrays.
    kernel = Declarations(seed, flat=True)
    module = Declarations(seed + 100, flat=True, prefix="own_")
    first, second = kernel.structs[0], module.structs[0]
    joined = f"struct joined {{ {first.tag} *one; {second.tag} two; {first.tag} three[2]; }} here;"
    vmlinux = encoded(tmp_path, "vmlinux", kernel.source)
    source = f"{kernel.source}\n{module.source}\n{joined}\n"
    path = encoded(tmp_path, "module", source, f"--btf_base={vmlinux}")
    base = open_types(open_elf(vmlinux), "vmlinux")
    assert base is not None
    own = open_types(open_elf(path), "module", base)
    assert own is not None
    # The module's section does not repeat types of the kernel.
    assert all(own.tagged(*one.tag.split()) is None for one in kernel.structs)
    found = own.tagged("struct", "joined")
    assert isinstance(found, StructType)
    assert [(m.name, str(m.type)) for m in found.members] == [
        ("one", f"{first.tag} *"), ("two", second.tag), ("three", f"{first.tag} [2]"),
    ]  # fmt: skip
    for drawn, types in ((kernel, base), (module, own)):
        for one in drawn.structs:
            kind, name = one.tag.split()
            type_ = types.tagged(kind, name)
            assert isinstance(type_, StructType) and type_.size
            members = [(name, type_.member(name)) for name, _ in one.members]
            assert [(n, str(m.type)) for n, m in members if m is not None] == one.members
        for name, value in drawn.enumerators.items():
            ((type_, number),) = types.enumerators(name)
            assert isinstance(type_, EnumType) and number == value
        for name, spelling in drawn.prototypes.items():
            assert str(types.function(name)) == spelling
        for name in drawn.typedefs:
            assert str(types.typedef(name)) == name
    for name in (*module.enumerators, "joined"):
        assert base.enumerators(name) == [] and base.tagged("struct", name) is None


@pytest.mark.parametrize("seed", range(20, 24))
def test_members_are_where_the_program_has_them(seed: int, tmp_path: Path) -> None:
    """By their paths, as kinst itself finds members in kernels."""
    drawn = Declarations(seed, flat=True)
    where = said(tmp_path, drawn)
    btf = open_btf(open_elf(encoded(tmp_path, "made", drawn.source)))
    assert btf is not None
    for drawn_one in drawn.structs:
        _, name = drawn_one.tag.split()
        assert btf.size(name) == where[drawn_one.tag.replace(" ", "_")][2] and btf.has(name)
        for member, spelling in drawn_one.members:
            bit, bits, size = where[member]
            found = btf.member(name, member)
            assert (found.bit, found.size) == (bit, size), (member, spelling)
            # The encoder leaves the width of one that fills its type to the type.
            assert found.bits == bits or (found.bits == 0 and bits == 8 * size), member
            inner = next((s for s in drawn.structs if s.tag == spelling), None)
            for one, _ in inner.members if inner else ():
                deeper = btf.member(name, f"{member}.{one}")
                assert deeper.bit == bit + where[one][0] and deeper.size == where[one][2]
            with pytest.raises(KinstError, match=f"has no member {member}\\.m0"):
                btf.member(name, f"{member}.m0")
    for name, value in drawn.enumerators.items():
        assert btf.enumerator(name) == value % (1 << 32)


TEXT = b"\0s\0m\0"


def by_hand(*records: Sequence[int], text: bytes = TEXT, gap: int = 0) -> Btf:
    """Return BTF of the words of each record.

    Args:
        gap: bytes in front of the records and of the strings.
    """
    words = [word for record in records for word in record]
    data = struct.pack(f"<{len(words)}I", *words)
    places = gap, len(data), 2 * gap + len(data), len(text)
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *places)
    return parse_btf(head + bytes(gap) + data + bytes(gap) + text, "hand")


NUMBER, TYPEDEF, CONST, POINTER, ARRAY, STRUCT = 1, 8, 10, 2, 3, 4


def struct_of(type_: int) -> Sequence[int]:
    return (1, STRUCT << 24 | 1, 8, 3, type_, 0)


@pytest.mark.parametrize(
    ("records", "size"),
    [
        ([struct_of(2), (0, NUMBER << 24, 4, 32)], 4),
        ([struct_of(2), (0, TYPEDEF << 24, 3), (0, CONST << 24, 4), (0, NUMBER << 24, 2, 16)], 2),
        ([struct_of(2), (0, POINTER << 24, 77)], 8),
        ([struct_of(2), (0, ARRAY << 24, 0, 3, 3, 5), (0, ARRAY << 24, 0, 4, 4, 7),
          (0, NUMBER << 24, 2, 16)], 70),
        # Of void, of what is not there, and of what leads to itself, the size is not known.
        ([struct_of(0)], 0),
        ([struct_of(2)], 0),
        ([struct_of(9)], 0),
        ([struct_of(2), (0, TYPEDEF << 24, 2)], 0),
        ([struct_of(2), (0, TYPEDEF << 24, 3), (0, CONST << 24, 2)], 0),
        ([struct_of(2), (0, ARRAY << 24, 0, 2, 2, 1)], 0),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_by_hand(records: list[Sequence[int]], size: int) -> None:
    """Linux, Documentation/bpf/btf.rst, 2.2."""
    assert by_hand(*records).member("s", "m").size == size


def test_sections_far_behind_the_header() -> None:
    """Linux, Documentation/bpf/btf.rst, 2: offsets have 32 bits, and count from the header's
    end."""
    btf = by_hand(struct_of(2), (0, NUMBER << 24, 4, 32), gap=(1 << 24) + 8)
    assert len(btf) == 2 and btf.member("s", "m").size == 4


def test_anonymous_members_that_never_end() -> None:
    """A structure in itself is damage: its members are not found."""
    btf = by_hand((1, STRUCT << 24 | 1, 8, 0, 2, 0), (0, STRUCT << 24 | 1, 8, 0, 2, 0))
    with pytest.raises(KinstError, match="struct s has no member n"):
        btf.member("s", "n")
    levels = [(0, STRUCT << 24 | 1, 8, 0, number, 8) for number in range(3, 11)]
    whole = by_hand((1, STRUCT << 24 | 1, 80, 0, 2, 8), *levels, struct_of(11), (0, 1 << 24, 4, 32))
    found = whole.member("s", "m")
    assert (found.bit, found.size) == (72, 4)


def test_names_that_are_no_utf8() -> None:
    """Bytes that encode no character are shown as U+FFFD."""
    number = (0, NUMBER << 24, 4, 32)
    types = BtfTypes(by_hand(struct_of(2), number, text=b"\0s\0\xffm\0"), "hand")
    found = types.type(1)
    assert isinstance(found, StructType) and [m.name for m in found.members] == ["\ufffdm"]


# By kind (Linux, Documentation/bpf/btf.rst, 2.2): words behind the three of every record, and
# words for each of its entries.
LENGTHS = {
    1: (1, 0), 2: (0, 0), 3: (3, 0), 4: (0, 3), 5: (0, 3), 6: (0, 2), 7: (0, 0), 8: (0, 0),
    9: (0, 0), 10: (0, 0), 11: (0, 0), 12: (0, 0), 13: (0, 2), 14: (1, 0), 15: (0, 3), 16: (0, 0),
    17: (1, 0), 18: (0, 0), 19: (0, 3),
}  # fmt: skip


@pytest.mark.parametrize("entries", [0, 1, 5])
@pytest.mark.parametrize("kind", LENGTHS)
def test_what_is_behind_a_record_of_each_kind(kind: int, entries: int) -> None:
    fixed, each = LENGTHS[kind]
    words = [0] * (fixed + each * entries)
    record = (0, kind << 24 | (entries if each else 0), 4, *words)
    btf = by_hand(record, struct_of(3), (0, NUMBER << 24, 4, 32))
    assert len(btf) == 3 and btf.member("s", "m").size == 4


def test_qualifiers_by_hand() -> None:
    """Linux, Documentation/bpf/btf.rst, 2.2: 9 is volatile, 10 const, 11 restrict; 18 is a tag of a
    type, which C does not spell."""
    kinds = {9: "volatile", 10: "const", 11: "restrict"}
    text = b"\0s\0m\0int\0"
    for kind, word in kinds.items():
        number = (5, NUMBER << 24, 4, 1 << 24 | 32)
        btf = by_hand(number, (0, POINTER << 24, 1), (0, kind << 24, 2), (0, kind << 24, 1),
                      (0, 18 << 24, 3), struct_of(5), text=text)  # fmt: skip
        types = BtfTypes(btf, "hand")
        assert str(types.type(3)) == str(types.type(5)) == f"int *{word}"
        assert str(types.type(4)) == f"{word} int"
        assert btf.member("s", "m").size == 8


ENUM, ENUM64 = 6, 19


@pytest.mark.parametrize(
    "value", [0, 5, (1 << 32) - 1, 1 << 32, 0x1234_5678_9ABC_DEF0, (1 << 64) - 1]
)
def test_enumerators_by_hand(value: int) -> None:
    """Linux, Documentation/bpf/btf.rst, 2.2.6 and 2.2.19: of 32 bits or in two halves, the lower
    first, among others and types that have none."""
    number, low, high = (0, NUMBER << 24, 4, 32), value & 0xFFFF_FFFF, value >> 32
    wide = (1, ENUM64 << 24 | 2, 8, 1, 3, 3, 3, low, high)
    assert by_hand(number, wide, number).enumerator("m") == value
    assert by_hand(wide, (1, ENUM << 24 | 1, 4, 1, 9)).enumerator("s") == 9
    if not high:
        narrow = (1, ENUM << 24 | 2, 4, 1, 3, 3, low)
        assert by_hand(number, narrow, number).enumerator("m") == value
    assert by_hand(wide).enumerator("absent") is None and by_hand(number).enumerator("m") is None


@pytest.mark.parametrize("size", [0, 1, 23])
def test_what_has_no_header(size: int) -> None:
    """Too short for one, or with another number in front."""
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 0, 0, len(TEXT))
    assert len(parse_btf(head + TEXT, "hand")) == 0
    for data in (head[:size], b"\x9e" + head[1:] + TEXT, b"\x9f\xea" + head[2:] + TEXT):
        with pytest.raises(KinstError, match=r"hand: damaged \.BTF: no BTF header"):
            parse_btf(data, "hand")


@pytest.mark.parametrize("kind", [0, 20, 31])
def test_kinds_that_there_are_not(kind: int) -> None:
    with pytest.raises(KinstError, match=rf"hand: damaged \.BTF: type 2 has unknown kind {kind}"):
        by_hand((0, NUMBER << 24, 4, 32), (0, kind << 24, 0), (0, NUMBER << 24, 4, 32))


@pytest.mark.parametrize("type_", [2, 3, 1 << 31])
def test_a_type_that_is_not_there(type_: int) -> None:
    """Looked up itself, and as the target of a pointer."""
    types = BtfTypes(by_hand(struct_of(1)), "hand")
    with pytest.raises(KinstError, match=rf"damaged \.BTF of hand: there is no type {type_}"):
        types.type(type_)
    other = BtfTypes(by_hand((0, POINTER << 24, type_)), "hand")
    with pytest.raises(KinstError, match=r"damaged \.BTF of hand"):
        other.type(1)


def test_types_that_never_end() -> None:
    """C has no pointer to itself: a chain that is too long is damage."""
    with pytest.raises(KinstError, match=r"damaged \.BTF of hand: there is no type 1"):
        BtfTypes(by_hand((0, POINTER << 24, 1)), "hand").type(1)
    levels = [(0, POINTER << 24, number) for number in range(2, 42)]
    types = BtfTypes(by_hand(*levels, (0, NUMBER << 24, 4, 32)), "hand")
    assert str(types.type(1)).count("*") == 40
