"""Types out of DWARF of every version, of C declarations drawn at random: spelled as they were
declared, members where a program compiled of the same text says; and what compilers here do not
write, by hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from drawn_types import Declarations, said

from kinst.core.dtypes import EnumType, IntType, Member, PointerType, StructType
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.types import DwarfTypes
from kinst.image.elf import open_elf

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


def types_of(folder: Path, source: str, command: list[str]) -> DwarfTypes | BtfTypes:
    (folder / "t.c").write_text(source)
    subprocess.run([*command, "-w", "-c", "-o", "t.o", "t.c"], cwd=folder, check=True)
    made = folder / "t.o"
    found = open_types(open_elf(made), "t") if "-gbtf" in command else DebugInfo(made, "t").dwarf
    assert found is not None
    return found


def named_members(struct: StructType) -> list[Member]:
    """Those of anonymous structures and unions in their places, by the name of each."""
    found = []
    for member in struct.members:
        if member.name:
            found.append(member)
        elif isinstance(member.type, StructType):
            inner = (struct.member(one.name) for one in named_members(member.type))
            found += [one for one in inner if one is not None]
    return found


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("seed", range(6))
def test_drawn_declarations(seed: int, compiler: str, tmp_path: Path) -> None:
    # BTF of gcc before 13.3 has the dimensions of such arrays in the wrong order (its PR 114186).
    drawn = Declarations(seed, flat="BTF" in compiler)
    types, where = types_of(tmp_path, drawn.source, COMPILERS[compiler]), said(tmp_path, drawn)
    for struct in drawn.structs:
        kind, name = struct.tag.split()
        type_ = types.tagged(kind, name)
        assert isinstance(type_, StructType)
        assert (str(type_), type_.size) == (struct.tag, where[struct.tag.replace(" ", "_")][2])
        members = named_members(type_)
        assert [(m.name, str(m.type)) for m in members] == struct.members
        for member in members:
            whole = 8 * member.type.size if isinstance(member.type, IntType) else 0
            bits = (member.bits or whole) if member.name in struct.widths else member.bits
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
"""
SHOWN = """
#include <stdio.h>
int main(void) {
    printf("%d %d %d %d %d %d", LOWEST, MINUS, ZERO, BYTE, TWO, TOP);
    printf(" %d %d\\n", SMALL, (int)BIG);
    return 0;
}
"""


# gcc's BTF leaves out values that are no ints.
@pytest.mark.parametrize("compiler", [name for name in COMPILERS if name != "BTF"])
def test_enumerators_are_ints(compiler: str, tmp_path: Path) -> None:
    """In D they are ints, whatever form the compiler chose for them."""
    types = types_of(tmp_path, CONSTANTS, COMPILERS[compiler])
    (tmp_path / "said.c").write_text(CONSTANTS + SHOWN)
    subprocess.run(["gcc", "-w", "-o", "said", "said.c"], cwd=tmp_path, check=True)
    text = subprocess.run([tmp_path / "said"], check=True, capture_output=True, text=True).stdout
    names = ["LOWEST", "MINUS", "ZERO", "BYTE", "TWO", "TOP", "SMALL", "BIG"]
    for name, value in zip(names, map(int, text.split()), strict=True):
        ((_, found),) = types.enumerators(name)
        assert found == value, name
    assert str(types.variable("later")) == "enum unknown *"
    pointer = types.variable("later")
    assert isinstance(pointer, PointerType) and isinstance(pointer.to, EnumType)
    assert (pointer.to.size, pointer.to.values) == (4, ())
