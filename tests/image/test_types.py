"""D types from BTF and DWARF, against each other and against gcc's values."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst.core.dtypes import ArrayType, EnumType, StructType, is_char
from kinst.core.paths import cache_folder
from kinst.image.btf_types import BtfTypes, open_types
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.types import DwarfTypes
from kinst.image.elf import open_elf
from kinst.image.type_names import base_name
from kinst.isa import names
from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from tests.tiers import of_kernels

SOURCE = """
#include <stddef.h>
#include <stdio.h>
struct inner { char c; short s; };
enum color { RED = -1, GREEN = 5 };
struct s {
    char a; int b; char name[5]; struct inner in[3]; void *p; int (*f)(int, const char *);
    unsigned x : 3, y : 7; long long w : 33; union { long l; char bytes[4]; }; enum color hue;
    int (*grid)[4][2]; char tail[];
} value;
int main(void)
{
    printf("a %d\\nb %d\\nname %d\\nin %d\\np %d\\nf %d\\nl %d\\nbytes %d\\n",
        (int)offsetof(struct s, a), (int)offsetof(struct s, b), (int)offsetof(struct s, name),
        (int)offsetof(struct s, in), (int)offsetof(struct s, p), (int)offsetof(struct s, f),
        (int)offsetof(struct s, l), (int)offsetof(struct s, bytes));
    printf("hue %d\\ngrid %d\\ntail %d\\nsize %d\\n", (int)offsetof(struct s, hue),
        (int)offsetof(struct s, grid), (int)offsetof(struct s, tail), (int)sizeof(struct s));
    return 0;
}
"""


def dwarf_of(path: Path, module: str, cache: Path | None = None) -> DwarfTypes:
    found = DebugInfo(path, module, cache=cache).dwarf
    assert found is not None
    return found


@pytest.mark.parametrize("version", [4, 5])
def test_members_are_where_gcc_puts_them(tmp_path: Path, version: int) -> None:
    source, program = tmp_path / "s.c", tmp_path / "s"
    source.write_text(SOURCE)
    command = ["gcc", f"-gdwarf-{version}", "-o", str(program), str(source)]
    subprocess.run(command, check=True)
    shown = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    wanted = {name: int(at) for name, at in (line.split() for line in shown.splitlines())}
    types = dwarf_of(program, "s")
    struct = types.variable("value")
    assert isinstance(struct, StructType) and struct.size == wanted.pop("size")
    for name, at in wanted.items():
        member = struct.member(name)
        assert member is not None and (member.offset, member.bits) == (at, 0), name
    spelled = {m.name: str(m.type) for m in struct.members}
    assert spelled["f"] == "int (*)(int, const char *)" and spelled["grid"] == "int (*)[4][2]"
    assert spelled["tail"] == "char []" and spelled["in"] == "struct inner [3]"
    x, y, w = struct.member("x"), struct.member("y"), struct.member("w")
    assert x and y and w and (x.bits, y.bits, w.bits) == (3, 7, 33)
    # One after the other if they fit; w in the 8 bytes that x and y are in.
    assert y.bit == x.bit + 3 and w.bit == y.bit + 7
    hue = struct.member("hue")
    assert hue is not None and isinstance(hue.type, EnumType)
    assert hue.type.values == (("RED", -1), ("GREEN", 5))


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        (["char"], "char"),
        (["signed char"], "signed char"),
        (["unsigned char"], "unsigned char"),
        (["short", "signed short", "short int", "signed short int"], "short"),
        (["unsigned short", "unsigned short int", "short unsigned int"], "unsigned short"),
        (["int", "signed int"], "int"),
        (["unsigned int"], "unsigned int"),
        (["long", "signed long", "long int", "signed long int"], "long"),
        (["unsigned long", "unsigned long int", "long unsigned int"], "unsigned long"),
        (["long long", "signed long long", "long long int", "signed long long int"], "long long"),
        (["unsigned long long", "long long unsigned int"], "unsigned long long"),
        (["_Bool"], "_Bool"),
        (["signed fixed"], "signed fixed"),
    ],
    ids=str,
)
def test_one_type_has_one_name(names: list[str], plain: str) -> None:
    """The lists of ISO C11, 6.7.2, paragraph 2: all names in one list mean the same type."""
    assert [base_name(name) for name in names] == [plain] * len(names)


STRUCTS = ["task_struct", "file", "sk_buff", "cred", "inode", "tcphdr", "rq", "page", "dentry"]


def test_btf_and_dwarf_of_the_kernel_agree(prepared: Prepared) -> None:
    btf = open_types(open_elf(prepared.debug), "vmlinux", None, cache_folder())
    assert isinstance(btf, BtfTypes)
    dwarf = dwarf_of(prepared.debug, "vmlinux", cache_folder())
    for name in STRUCTS:
        both = btf.tagged("struct", name), dwarf.tagged("struct", name)
        assert all(isinstance(s, StructType) and len(s.members) > 4 for s in both)
        shown = [
            [(m.name, str(m.type), m.bit, m.bits) for m in s.members]
            for s in both
            if isinstance(s, StructType)
        ]
        assert shown[0] == shown[1], name
    prototype = "ssize_t (struct file *, char *, size_t, loff_t *)"
    assert str(btf.function("vfs_read")) == str(dwarf.function("vfs_read")) == prototype
    for source in (btf, dwarf):
        ((type_, value),) = source.enumerators("PIDTYPE_SID")
        assert value == 3 and type_.name_of(1) == "PIDTYPE_TGID"
    assert str(dwarf.variable("init_task")) == "struct task_struct"


CHARS = """
typedef char letter;
struct s {
    char plain[4]; const letter named[4]; unsigned char bytes[4]; signed char small[4]; _Bool b[4];
} value;
"""


@pytest.mark.parametrize("option", ["-funsigned-char", "-fsigned-char"])
def test_plain_char_is_text_whatever_its_sign(tmp_path: Path, option: str) -> None:
    """unsigned char is not text (libdtrace's IS_CHAR()): u8[] is numbers."""
    source, made = tmp_path / "s.c", tmp_path / "s.o"
    source.write_text(CHARS)
    subprocess.run(["gcc", "-g", option, "-c", "-o", str(made), str(source)], check=True)
    struct = dwarf_of(made, "s").variable("value")
    assert isinstance(struct, StructType)
    arrays = {m.name: m.type for m in struct.members}
    text = {name for name, a in arrays.items() if isinstance(a, ArrayType) and is_char(a.of)}
    assert len(arrays) == 5 and text == {"plain", "named", "small"}


@pytest.mark.parametrize("isa", of_kernels(names()))
def test_text_in_btf(isa: str) -> None:
    """char is unsigned on arm64 and riscv64 (their ABIs)."""
    kernel = prepared_kernel(isa)
    assert kernel is not None, f"no {isa} kernel is there: run `make setup-all`"
    btf = open_types(open_elf(kernel.debug), "vmlinux", None, cache_folder())
    assert isinstance(btf, BtfTypes)
    members = [("task_struct", "comm", True), ("dentry", "d_iname", False)]
    for tag, name, text in members:
        struct = btf.tagged("struct", tag)
        found = struct.member(name) if isinstance(struct, StructType) else None
        assert found is not None and isinstance(found.type, ArrayType)
        assert is_char(found.type.of) == text
