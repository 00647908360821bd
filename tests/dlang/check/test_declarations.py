"""Types that a program declares: layout by the C ABI, members, errors (K&R A8; sizes and offsets
are gcc's on LP64)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst.core.dtypes import INT, StringType
from kinst.core.errors import DError
from kinst.dlang.api import Environment, compile_text
from tests.dlang.dhelp import error, typed, value

DECLARED = """
struct inner { char c; short s; };
typedef struct inner inner_t;
enum color { RED, GREEN = 5, BLUE };
struct s {
    char a; int b; char name[5]; inner_t in[3]; void *p; int (*f)(int, char *);
    unsigned x : 3, y : 7; unsigned z : 25; long long w : 33; int : 0; char last;
    union { long l; char bytes[4]; }; enum color hue; int (*grid)[4][2];
};
union u { char c[7]; short s; };
"""
MEMBERS = ["a", "b", "name", "in", "p", "f", "last", "l", "bytes", "hue", "grid"]


def number(expression: str) -> int:
    found = value(expression, DECLARED)
    assert isinstance(found, typed.IntConst)
    return found.value


def test_layout_is_the_c_compilers(tmp_path: Path) -> None:
    """gcc computes the same sizes and offsets."""
    wanted = [f"offsetof(struct s, {m})" for m in MEMBERS]
    wanted += ["sizeof(struct s)", "sizeof(union u)", "sizeof(inner_t)", "sizeof(enum color)"]
    source = tmp_path / "layout.c"
    prints = "".join(f'printf("%d\\n", (int){w});' for w in wanted)
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n{DECLARED}\nint main(void) {{ {prints} }}\n"
    )
    subprocess.run(["gcc", "-o", str(tmp_path / "layout"), str(source)], check=True)
    shown = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True)
    assert [number(w) for w in wanted] == [int(n) for n in shown.stdout.split()]


def test_values_have_the_types_of_members() -> None:
    pointer = "((struct s *)0x1000)"
    assert str(value(f"{pointer}->b", DECLARED).type) == "int"
    assert value(f"{pointer}->name", DECLARED).type == StringType(6)
    assert str(value(f"&{pointer}->name", DECLARED).type) == "char (*)[5]"
    assert str(value(f"{pointer}->in[1].s", DECLARED).type) == "short"
    assert str(value(f"{pointer}->grid", DECLARED).type) == "int (*)[4][2]"
    assert str(value(f"{pointer}->f", DECLARED).type) == "int (*)(int, char *)"
    assert number("BLUE") == 6 and number("GREEN + 1") == 6
    assert number(f"(long)&{pointer}->b") == 0x1004
    assert number(f"(long)({pointer} + 1)") == 0x1000 + number("sizeof(struct s)")
    field = value(f"{pointer}->y", DECLARED)
    assert isinstance(field, typed.BitField) and field.bits == 7


ERRORS = [
    ("((struct s *)0)->none", "D_TYPE_MEMBER", "none is not a member of struct s"),
    ("((struct s *)0).b", "D_OP_SOU", 'operator . cannot be applied to type "struct s *"'),
    ("(*(struct s *)0)->b", "D_OP_PTR", "operator -> must be applied to a pointer"),
    ("((int *)0)->b", "D_OP_SOU", 'pointer to type "int"'),
    ("((struct no *)0)->b", "D_OP_INCOMPLETE", "no struct no definition is available"),
    ("offsetof(int, x)", "D_OFFSETOF_TYPE", "must be a struct or union type"),
    ("offsetof(struct s, x)", "D_OFFSETOF_BITFIELD", "cannot take offset of a bit-field: x"),
    ("sizeof(((struct s *)0)->x)", "D_SIZEOF_BITFIELD", "cannot apply sizeof to a bit-field"),
    ("&((struct s *)0)->x", "D_ADDROF_BITFIELD", "cannot take address of bit-field"),
    ("sizeof(struct no)", "D_SIZEOF_TYPE", "unknown size"),
    ("*(void *)0", "D_DEREF_VOID", "cannot dereference pointer to void"),
    ("`nothing", "D_IDENT_UNDEF", "Unknown symbol name"),
    ("args[0]", "D_ARGS_IDX", "index 0 is out of range for"),
    ("args[0, 1]", "D_PROTO_LEN", "2 args passed, 1 expected"),
    ("args[pid]", "D_PROTO_ARG", "integer constant"),
]


@pytest.mark.parametrize(("expression", "tag", "message"), ERRORS)
def test_what_members_refuse(expression: str, tag: str, message: str) -> None:
    found = error(f"{DECLARED} BEGIN {{ trace({expression}); }}")
    assert found.tag == tag and message in found.message


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("args[0]->b", "args[0] is of type int; did you mean args[1]->b?"),
        ("args[0]->c", "args[0] is of type int; did you mean args[2]->c?"),
        ("args[0]->nothing", "args[0] is of type int"),
        ("args[2]->name", "args[2] is of type struct inner *; did you mean args[1]->name?"),
        ("args[2]->sx", "did you mean s?"),
    ],
)
def test_the_type_of_an_argument_without_the_member_is_told(expression: str, hint: str) -> None:
    types = INT, *(value(f"(struct {tag} *)0", DECLARED).type for tag in ("s", "inner"))
    environment = Environment(arguments=lambda pattern: types)
    with pytest.raises(DError) as found:
        compile_text(
            f"{DECLARED} kinst::f:0 {{ trace({expression}); }}", "t.d", environment=environment
        )
    assert found.value.hint == hint


DECLARATIONS = [
    ("struct a { int x : 33; };", "D_DECL_BFSIZE"),
    ("struct a { int x : pid; };", "D_DECL_BFCONST"),
    ("struct a { void *x : 3; };", "D_DECL_BFTYPE"),
    ("struct a { void x; };", "D_DECL_VOIDOBJ"),
    ("struct a { struct b x; };", "D_DECL_INCOMPLETE"),
    ("struct a { int; };", "D_DECL_MNAME"),
    ("struct a { int x; }; struct a { int y; };", "D_DECL_TYPERED"),
    ("typedef int t; typedef char t;", "D_DECL_IDRED"),
    ("enum e { A = pid };", "D_DECL_ENCONST"),
    ("enum e { A = 0x80000000 };", "D_DECL_ENOFLOW"),
    ("enum e { A }; enum f { A };", "D_DECL_IDRED"),
    ("static int x;", "D_DECL_BADCLASS"),
    ("int;", "D_DECL_USELESS"),
    ("struct a { int x[pid]; };", "D_DECL_ARRSUB"),
    ("no_such_t x;", "D_SYNTAX"),
]


@pytest.mark.parametrize(("text", "tag"), DECLARATIONS)
def test_what_declarations_refuse(text: str, tag: str) -> None:
    assert error(f"{text} BEGIN {{ }}").tag == tag
