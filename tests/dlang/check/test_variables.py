"""Variables: how they get types, and which libdtrace refuses, by its tags."""

from __future__ import annotations

import pytest

from tests.dlang.dhelp import compile_, error


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("BEGIN { a[1] = 1; trace(a[1, 2]); }", "D_PROTO_LEN"),
        ('BEGIN { a[1] = 1; a["x"] = 2; }', "D_PROTO_ARG"),
        ("BEGIN { a[@x] = 1; }", "D_KEY_TYPE"),
        ("BEGIN { a[1] = 1; trace(a); }", "D_IDENT_BADREF"),
        ("BEGIN { this->a[1] = 1; }", "D_ARR_LOCAL"),
        ("this int a[int]; BEGIN { }", "D_DECL_LOCASSC"),
        ("self this int a; BEGIN { }", "D_DECL_CLASS"),
        ("int a[0]; BEGIN { }", "D_DECL_ARRSUB"),
        ("int a[]; BEGIN { }", "D_DECL_ARRNULL"),
        ("int a; int a[int]; BEGIN { }", "D_DECL_IDRED"),
        ("inline int x = y; BEGIN { }", "D_IDENT_UNDEF"),
        ("inline int x = 1; BEGIN { x = 2; }", "D_OP_WRITE"),
        ("BEGIN { self->x += 1; }", "D_VAR_UNDEF"),
        ('BEGIN { if ("s") trace(1); }', "D_OP_SCALAR"),
    ],
)
def test_refused(text: str, tag: str) -> None:
    assert error(text).tag == tag


def test_keys_hold_what_every_use_gives() -> None:
    program = compile_("BEGIN { a[1] = 1; a[timestamp] = 2; self->x = 3; this->s = execname; }")
    found = {v.name: v for v in program.variables}
    assert [key.size for key in found["a"].keys] == [8]
    assert (found["a"].scope, found["self->x"].scope, found["this->s"].scope) == (
        "global", "self", "this",
    )  # fmt: skip
    assert found["a"].is_dynamic and found["self->x"].is_dynamic
    assert not found["this->s"].is_dynamic
