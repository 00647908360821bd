"""Edge cases of the front end that no other test had when code was mutated at random.

They are messages about small mistakes, addresses of members, and equality of types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from kinst.core.dtypes import ArrayType, FunctionType, IntType, StringType, StructType, VoidType
from kinst.dlang.check.formats import is_wide_text
from kinst.dlang.types.conversions import same
from tests.dlang.dhelp import error, typed, value

INT, UNSIGNED, CHAR = IntType(4, True, "int"), IntType(4, False, "u"), IntType(1, True, "char")

WRONG = [
    ("BEGIN { x = (void)0; }", "D_OP_INCOMPAT", 'operands have incompatible types: "void"'),
    ("BEGIN { @a = 1; }", "D_AGG_FUNC", "must be assigned the result of an aggregating function"),
    ("self int a[4]; BEGIN { trace(self->a); }", "D_UNKNOWN", "array self->a needs an index"),
    ("inline int pid = 3; BEGIN { }", "D_DECL_IDRED", "built-in identifier redeclared: pid"),
    ("inline int R_RAX = 3; BEGIN { }", "D_DECL_IDRED", "built-in identifier redeclared: R_RAX"),
    ("int x; inline int x = 3; BEGIN { }", "D_DECL_IDRED", "x: current: inline, previous: scalar"),
    (
        "inline int y = 1; inline int y = 2; BEGIN { }", "D_DECL_IDRED",
        "y: current: inline, previous: inline",
    ),
    ("BEGIN { chill(1, 2); }", "D_PROTO_LEN", "mismatch: 2 args passed, 1 expected"),
    ("BEGIN { ftruncate(1); }", "D_PROTO_LEN", "mismatch: 1 arg passed, 0 expected"),
    (
        "provider p { probe a(int x, int x); }; BEGIN { }", "D_DECL_PROTO_FORM",
        "already declared in probe input prototype: x, parameter #2",
    ),
    (
        "provider p { probe a(int x, int z) : (int x, int y); }; BEGIN { }", "D_DECL_PROTO_FORM",
        "not declared in probe output prototype: y, parameter #2",
    ),
    ("provider p { probe a(void v); }; BEGIN { }", "D_DECL_PROTO_NAME", "not have a name: v"),
    (
        "provider p { probe a(int x) : (int); }; BEGIN { }", "D_DECL_PROTO_NAME",
        "requires a name: parameter #1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "tag", "message"), WRONG)
def test_what_is_said(text: str, tag: str, message: str) -> None:
    found = error(text)
    assert found.tag == tag and message in found.message


def test_a_predicate_that_is_a_string_gets_a_hint_and_no_other() -> None:
    assert error("BEGIN /execname/ { }").hint.startswith("compare the string")
    found = error("struct s { int a; }; BEGIN / *(struct s *)8 / { }")
    assert (found.tag, found.hint) == ("D_PRED_SCALAR", "")


def sums(node: object) -> Iterator[tuple[str, int]]:
    """Return the operators of an expression with a number on their right side, from the outside
    in."""
    if isinstance(node, typed.Binary) and isinstance(node.right, typed.IntConst):
        yield node.op, node.right.value
    if isinstance(node, typed.Expr):
        for field in dataclasses.fields(node):
            yield from sums(getattr(node, field.name))


@pytest.mark.parametrize(
    ("base", "wanted"),
    [
        ("timestamp + 8", [("+", 12)]),
        ("timestamp - 8", [("+", 4), ("-", 8)]),
        ("timestamp & 8", [("+", 4), ("&", 8)]),
        ("timestamp + arg0", [("+", 4)]),
        ("timestamp", [("+", 4)]),
    ],
)
def test_offsets_of_members_are_added_up_where_they_are_sums(
    base: str, wanted: list[tuple[str, int]]
) -> None:
    """b is 4 bytes after its structure's start."""
    found = value(f"((struct s *)({base}))->b", "struct s { int a; int b; }; ")
    assert list(sums(found)) == wanted


class NoMembers:
    def members(self, struct: StructType) -> tuple[()]:
        return ()


def struct(name: str, size: int, key: str, kind: str = "struct") -> StructType:
    return StructType(kind, name, size, key, NoMembers())


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        (INT, IntType(4, True, "other"), True),
        (INT, UNSIGNED, False),
        (INT, CHAR, False),
        (ArrayType(INT, 3), ArrayType(INT, 3), True),
        (ArrayType(INT, 3), ArrayType(INT, 4), False),
        (ArrayType(INT, 3), ArrayType(CHAR, 3), False),
        (struct("s", 8, "a"), struct("s", 8, "b"), True),
        (struct("s", 8, "a"), struct("s", 0, "b"), True),
        (struct("s", 0, "a"), struct("s", 8, "b"), True),
        (struct("s", 8, "a"), struct("s", 16, "b"), False),
        (struct("s", 8, "a"), struct("t", 8, "b"), False),
        (struct("s", 8, "a"), struct("s", 8, "b", "union"), False),
        (struct("", 8, "a"), struct("", 8, "b"), False),
        (FunctionType(INT, (INT, CHAR)), FunctionType(INT, (INT, CHAR)), True),
        (FunctionType(INT, (INT, CHAR)), FunctionType(INT, (INT, INT)), False),
        (FunctionType(INT, (INT,)), FunctionType(INT, (INT, CHAR)), False),
        (FunctionType(INT, (INT,)), FunctionType(VoidType(), (INT,)), False),
        (StringType(), StringType(), True),
        (StringType(), VoidType(), False),
    ],
)
def test_when_types_are_the_same(left: object, right: object, wanted: bool) -> None:
    assert same(left, right) is same(right, left) is wanted  # type: ignore[arg-type]


def test_what_wide_text_is() -> None:
    assert is_wide_text(ArrayType(INT, 5)) and is_wide_text(ArrayType(UNSIGNED, 5))
    for other in (ArrayType(CHAR, 5), ArrayType(struct("s", 4, "a"), 5), INT, StringType()):
        assert not is_wide_text(other)
