"""Translators: their meaning, and those that libdtrace refuses, by its tags."""

from __future__ import annotations

import pytest

from tests.dlang.dhelp import actions, compile_, error, typed, without_spans

OUT = "struct out { int a; long b; char c[8]; string s; };\n"
INT = OUT + 'translator struct out < int T > { a = T * 2; b = T; c = "c"; };\n'
RECORD = "struct in { int first; int second; };\n"


def same_value(translated: str, written: str, before: str) -> bool:
    """Return whether both have the same typed expression, in one program."""
    first, second = actions(f"trace(({translated})); trace(({written}));", before)
    assert isinstance(first, typed.TraceAction) and isinstance(second, typed.TraceAction)
    return without_spans(first.expr) == without_spans(second.expr)


@pytest.mark.parametrize(
    ("translated", "written"),
    [
        ("xlate < struct out > (pid).a", "(int)pid * 2"),
        ("xlate < struct out * > (pid)->a", "(int)pid * 2"),
        ("xlate<struct out>(pid).b", "(long)(int)pid"),
        ("xlate < struct out > ((char)7).a", "14"),
        ("(xlate < struct out > (pid + 1)).a + 1", "(int)(pid + 1) * 2 + 1"),
    ],
)
def test_a_member_is_its_expression(translated: str, written: str) -> None:
    assert same_value(translated, written, INT)


def test_of_a_pointer_and_of_a_structure() -> None:
    before = (
        RECORD + OUT + "translator struct out < struct in *T > { a = T->second; };\n"
        "translator struct out < struct in V > { a = V.first; };\n"
    )
    place = "((struct in *)regs[8])"
    assert same_value(f"xlate < struct out > ({place}).a", f"{place}->second", before)
    assert same_value(f"xlate < struct out > (*{place}).a", f"{place}->first", before)


def test_an_inline_may_be_a_translation() -> None:
    before = INT + (
        "inline struct out own = xlate < struct out > (pid);\n"
        "inline struct out *of[int n] = xlate < struct out * > (n + 1);\n"
    )
    assert same_value("own.a", "(int)pid * 2", before)
    assert same_value("of[tid]->a", "((int)tid + 1) * 2", before)


def test_a_translator_may_use_another() -> None:
    before = INT + (
        "struct more { int a; };\n"
        "translator struct more < int U > { a = xlate < struct out > (U + 1).a; };\n"
    )
    assert same_value("xlate < struct more > (pid).a", "((int)pid + 1) * 2", before)


def test_the_exact_translator_comes_first() -> None:
    before = OUT + (
        "translator struct out < char C > { a = 1; };\n"
        "translator struct out < long L > { a = 2; };\n"
    )
    assert same_value("xlate < struct out > ((long)pid).a", "2", before)
    assert same_value("xlate < struct out > ((char)pid).a", "1", before)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (OUT + "translator int < int T > { }; BEGIN { }", "D_XLATE_SOU"),
        ("translator struct none < int T > { }; BEGIN { }", "D_XLATE_SOU"),
        (INT + "translator struct out < int U > { }; BEGIN { }", "D_XLATE_REDECL"),
        (OUT + "translator struct out < int T > { z = 1; }; BEGIN { }", "D_XLATE_MEMB"),
        (OUT + 'translator struct out < int T > { a = "s"; }; BEGIN { }', "D_XLATE_INCOMPAT"),
        (OUT + "translator struct out < int T > { s = T; }; BEGIN { }", "D_XLATE_INCOMPAT"),
        (OUT + "translator struct out < int T > { a = nosuch; }; BEGIN { }", "D_IDENT_UNDEF"),
        (OUT + "translator struct out < int T > { a = 1 }; BEGIN { }", "D_SYNTAX"),
        (OUT + "translator struct out < int > { a = 1; }; BEGIN { }", "D_SYNTAX"),
        (INT + "BEGIN { trace(xlate < struct out > (1).s); }", "D_XLATE_NOCONV"),
        (INT + "BEGIN { trace(xlate < struct out > (1).z); }", "D_XLATE_NOCONV"),
        (INT + 'BEGIN { trace(xlate < struct out > ("s").a); }', "D_XLATE_NONE"),
        (INT + "BEGIN { trace(xlate < int > (1)); }", "D_XLATE_NONE"),
        (INT + "BEGIN { trace(xlate < struct out > (1)->a); }", "D_OP_PTR"),
        (INT + "BEGIN { trace(xlate < struct out * > (1).a); }", "D_OP_SOU"),
        (INT + "BEGIN { trace(xlate < struct out * > (1)); }", "D_TRACE_DYN"),
        (INT + "BEGIN { x = xlate < struct out * > (1); }", "D_OP_DYN"),
        (INT + "BEGIN { xlate < struct out > (1); }", "D_CG_DYN"),
        (INT + 'inline int x = xlate < struct out > (1); BEGIN { }', "D_OP_INCOMPAT"),
        # A translator does not exist yet in its own expressions.
        (OUT + "translator struct out < int T > { a = xlate < struct out > (T).a; };\nBEGIN{}",
         "D_XLATE_NONE"),
    ],
)  # fmt: skip
def test_refused(text: str, tag: str) -> None:
    assert error(text).tag == tag


def test_translations_do_not_grow_without_bound() -> None:
    text = (
        "struct s { int a; };\nstruct s0 { int a; };\ntranslator struct s0 < int T > { a = T; };\n"
    )
    for n in range(1, 20):
        inner = f"xlate < struct s{n - 1} > (T).a"
        text += f"struct s{n} {{ int a; }};\n"
        text += f"translator struct s{n} < int T > {{ a = {inner} + {inner}; }};\n"
    assert "10000" in error(text + "BEGIN { trace(xlate < struct s19 > (1).a); }").message


def test_members_of_type_string_take_strsize() -> None:
    program = compile_(
        "struct s { char c; string t; int i; };\nBEGIN { trace(sizeof (struct s)); }"
    )
    (action,) = program.clauses[0].actions
    assert action.expr.value == 264  # 1 + 256, padded to 4, and the int
