"""Results of parsing: clause heads, precedence, literals, macros, and printing them again."""

from __future__ import annotations

import pytest

from kinst.core.probe import ProbeName, ProbePattern
from kinst.dlang import typed
from kinst.dlang.api import Macros, parse_option, parse_text
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.source import IntLiteral, escape, unescape
from kinst.dlang.syntax.unparse import unparse, unparse_expression
from tests.dlang.dhelp import compile_, error, value, without_spans


def patterns(text: str, macros: Macros | None = None) -> list[ProbePattern]:
    program = parse_text(text, "t.d", macros)
    return [d.pattern for c in program.clauses for d in c.descriptions]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("kinst::vfs_read:19", ("kinst", "", "vfs_read", "19")),
        ("BEGIN", ("", "", "", "BEGIN")),
        ("vfs_read:19", ("", "", "vfs_read", "19")),
        ("mod:vfs_read:19", ("", "mod", "vfs_read", "19")),
        ("dtrace:::BEGIN", ("dtrace", "", "", "BEGIN")),
        ("tick-1s", ("", "", "", "tick-1s")),
        ("profile-997hz", ("", "", "", "profile-997hz")),
        ("profile:::tick-10ms", ("profile", "", "", "tick-10ms")),
        ("kinst::vfs_*:", ("kinst", "", "vfs_*", "")),
        ("kinst::vfs_[rw]?*:*", ("kinst", "", "vfs_[rw]?*", "*")),
        ("kinst:::", ("kinst", "", "", "")),
        (":::", ("", "", "", "")),
        ("kinst::F:@123", ("kinst", "", "F", "@123")),
        ("kinst::F.cold:0", ("kinst", "", "F.cold", "0")),
        ("kinst::[!a]*:", ("kinst", "", "[!a]*", "")),
        ("int*x:::", ("int*x", "", "", "")),
    ],
)
def test_descriptions_fill_from_the_right(text: str, parts: tuple[str, ...]) -> None:
    for suffix in (" { }", "{}", "/1/{}", "", "\n/* c */ { }"):
        assert patterns(text + suffix) == [ProbePattern(*parts)]


def test_several_descriptions_and_ids() -> None:
    found = patterns("BEGIN , tick-1s,\n\t 17 ,0x10 { }")
    assert found == [
        ProbePattern(name="BEGIN"),
        ProbePattern(name="tick-1s"),
        ProbePattern(id=17),
        ProbePattern(id=16),
    ]
    assert str(ProbePattern(id=17)) == "17"
    assert not ProbePattern(id=17).matches(ProbeName("dtrace", "", "", "BEGIN"))


def test_macros_in_descriptions() -> None:
    macros = Macros(("k", "vfs_read", "19"), {"target": 321})
    assert patterns("kinst::$1:$2, pid$target:::entry { }", macros) == [
        ProbePattern("kinst", "", "vfs_read", "19"),
        ProbePattern("pid321", "", "", "entry"),
    ]


@pytest.mark.parametrize(
    ("option", "text", "parts"),
    [
        ("P", "kinst", ("kinst", "", "", "")),
        ("m", "ext4", ("", "ext4", "", "")),
        ("m", "kinst:ext4", ("kinst", "ext4", "", "")),
        ("f", "vfs_read", ("", "", "vfs_read", "")),
        ("f", "kinst::vfs_read", ("kinst", "", "vfs_read", "")),
        ("n", "kinst::vfs_read:4", ("kinst", "", "vfs_read", "4")),
        ("f", "int", ("", "", "int", "")),
    ],
)
def test_probe_options(option: str, text: str, parts: tuple[str, ...]) -> None:
    for suffix in ("", " { trace(1); }", " /pid == 1/ { }"):
        program = parse_option(option, text + suffix)
        assert [d.pattern for d in program.clauses[0].descriptions] == [ProbePattern(*parts)]
        assert (program.clauses[0].predicate is not None) == ("pid" in suffix)


def test_probe_option_errors_name_the_option() -> None:
    for option, text, ordinal, place, tag in (
        ("n", "BEGIN { nope(; }", 1, "-n argument:1:14", "D_SYNTAX"),
        ("f", "a:b:c:d", 1, "-f argument:1:1", "D_PDESC_INVAL"),
        ("P", "a:b", 2, "-P argument 2:1:1", "D_PDESC_INVAL"),
        ("m", "12 { }", 1, "-m argument:1:1", "D_PDESC_INVAL"),
    ):
        with pytest.raises(Exception) as found:
            parse_option(option, text, ordinal=ordinal)
        assert (str(found.value.span), found.value.tag) == (place, tag)
    assert parse_option("i", "12, 13 { }").clauses[0].descriptions[1].pattern.id == 13
    with pytest.raises(Exception, match="is not a probe id"):
        parse_option("i", "BEGIN")


def test_first_lines_comments_and_control_lines() -> None:
    program = parse_text(
        "#!/usr/bin/env kinst -s\n#pragma D option quiet\n  # pragma D option strsize=64\n"
        '#pragma ident "x"\n#pragma once\n#ident "y"\n#\nint x, *p; string s; uint64_t*q;\n'
        "/* c */ BEGIN /* c */ /x/ /* c */ { /* c */ x /* c */ = 1 /* c */ }\n"
        "END {\n#pragma D option bufsize=8m\n}\n",
        "t.d",
    )
    assert [(o.name, o.value) for o in program.options] == [
        ("quiet", ""), ("strsize", "64"), ("bufsize", "8m"),
    ]  # fmt: skip
    assert [(d.name, d.type.words, d.type.stars) for d in program.declarations] == [
        ("x", ("int",), 0), ("p", ("int",), 1), ("s", ("string",), 0), ("q", ("uint64_t",), 1),
    ]  # fmt: skip
    assert len(program.clauses) == 2


# each expression, and the same with every operator's parentheses written out
PRECEDENCE = [
    ("1 + 2 * 3", "(1 + (2 * 3))"),
    ("1 * 2 + 3", "((1 * 2) + 3)"),
    ("1 - 2 - 3", "((1 - 2) - 3)"),
    ("a = b = 3", "(a = (b = 3))"),
    ("a += b ? 1 : 2", "(a += (b ? 1 : 2))"),
    ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
    ("a ? b , c : d", "(a ? (b , c) : d)"),
    ("a || b && c", "(a || (b && c))"),
    ("a || b ^^ c", "(a || (b ^^ c))"),
    ("a ^^ b && c", "(a ^^ (b && c))"),
    ("a && b | c", "(a && (b | c))"),
    ("a | b ^ c & d == e", "(a | (b ^ (c & (d == e))))"),
    ("a == b < c", "(a == (b < c))"),
    ("a < b << c", "(a < (b << c))"),
    ("a << b + c", "(a << (b + c))"),
    ("a >> b >> c", "((a >> b) >> c)"),
    ("a / b % c", "((a / b) % c)"),
    ("-a + !b", "((-a) + (!b))"),
    ("- -a", "(-(-a))"),
    ("!~*&a", "(!(~(*(&a))))"),
    ("*a++", "(*(a++))"),
    ("++a--", "(++(a--))"),
    ("(int)a + b", "((int)(a) + b)"),
    ("(int)-a", "(int)((-a))"),
    ("*(char *)a[1]", "(*(char *)(a[1]))"),
    ("(unsigned long **)a", "(unsigned long **)(a)"),
    ("sizeof (int) + 1", "(sizeof(int) + 1)"),
    ("sizeof a + 1", "((sizeof a) + 1)"),
    ("stringof a == b", "((stringof a) == b)"),
    ("stringof(a)", "(stringof a)"),
    ("a , b = 1 , c", "((a , (b = 1)) , c)"),
    ("f(a, (b, c))", "f(a,(b , c))"),
    ("f(2).b->c[1]", "f(2).b->c[1]"),
    ("(a, b)", "(a , b)"),
    ("@a[1, 2] = f()", "(@a[1,2] = f())"),
    ("@ = f()", "(@ = f())"),
    ("a---b", "((a--) - b)"),
    ("a&&&b", "(a && (&b))"),
]


def bracketed(e: tree.ExprNode) -> str:
    """Return every operator in parentheses: an independent printer."""
    match e:
        case tree.IntegerNode():
            return e.text
        case tree.NameNode():
            return e.name
        case tree.AggregationNode():
            return f"@{e.name}"
        case tree.IndexNode():
            return f"{bracketed(e.base)}[{','.join(map(bracketed, e.arguments))}]"
        case tree.CallNode():
            return f"{bracketed(e.function)}({','.join(map(bracketed, e.arguments))})"
        case tree.MemberNode():
            return f"{bracketed(e.base)}{e.op}{e.name}"
        case tree.PrefixNode():
            return f"({e.op}{' ' if e.op.isalpha() else ''}{bracketed(e.operand)})"
        case tree.PostfixNode():
            return f"({bracketed(e.operand)}{e.op})"
        case tree.InfixNode() | tree.AssignmentNode():
            return f"({bracketed(e.left)} {e.op} {bracketed(e.right)})"
        case tree.TernaryNode():
            parts = (e.condition, e.then, e.otherwise)
            return "({} ? {} : {})".format(*map(bracketed, parts))
        case tree.CastNode():
            stars = " " + "*" * e.type.stars if e.type.stars else ""
            return f"({' '.join(e.type.words)}{stars})({bracketed(e.operand)})"
        case tree.SizeofTypeNode():
            return f"sizeof({' '.join(e.type.words)})"
    raise AssertionError(e)


@pytest.mark.parametrize(("text", "expected"), PRECEDENCE)
def test_precedence(text: str, expected: str) -> None:
    statement = parse_text(f"BEGIN {{ {text}; }}", "t.d").clauses[0].statements[0]
    assert bracketed(statement) == expected
    again = parse_text(f"BEGIN {{ {unparse_expression(statement)} }}", "t.d")
    assert without_spans(again.clauses[0].statements[0]) == without_spans(statement)


@pytest.mark.parametrize(
    ("text", "number", "type_"),
    [
        ("0", 0, "int"),
        ("2147483647", 2**31 - 1, "int"),
        ("2147483648", 2**31, "long"),
        ("0x7fffffff", 2**31 - 1, "int"),
        ("0x80000000", 2**31, "unsigned int"),
        ("0xffffffff", 2**32 - 1, "unsigned int"),
        ("0X100000000", 2**32, "long"),
        ("0xffffffffffffffff", 2**64 - 1, "unsigned long"),
        ("017", 15, "int"),
        ("037777777777", 2**32 - 1, "unsigned int"),
        ("1u", 1, "unsigned int"),
        ("4294967296U", 2**32, "unsigned long"),
        ("1l", 1, "long"),
        ("1L", 1, "long"),
        ("1ul", 1, "unsigned long"),
        ("1UL", 1, "unsigned long"),
        ("1ll", 1, "long long"),
        ("1ull", 1, "unsigned long long"),
        ("18446744073709551615u", 2**64 - 1, "unsigned long"),
        ("'a'", 97, "int"),
        (r"'\n'", 10, "int"),
        (r"'\0'", 0, "int"),
        (r"'\377'", 255, "int"),
        (r"'\x41'", 65, "int"),
        (r"'\''", 39, "int"),
        ("'\"'", 34, "int"),
        ("'ab'", 0x6162, "int"),
        ("'abcdefgh'", 0x6162636465666768, "long"),
        ("sizeof (long)", 8, "size_t"),
        ('sizeof "abc"', 4, "size_t"),
        ("sizeof (char)", 1, "size_t"),
        ("sizeof execname", 256, "size_t"),
        ("sizeof (string)", 256, "size_t"),
        ("sizeof (void *)", 8, "size_t"),
    ],
)
def test_integer_constants(text: str, number: int, type_: str) -> None:
    found = value(text)
    assert isinstance(found, typed.IntConst)
    assert (found.value, str(found.type)) == (number, type_)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (r"a\tb\n", b"a\tb\n"),
        (r"\101\x42\q", b"ABq"),
        (r"\\ \"", b'\\ "'),
        (r"\0011", b"\x011"),
        ("é", "é".encode()),
        (r"ab\0cd", b"ab"),
    ],
)
def test_strings(text: str, data: bytes) -> None:
    found = value(f'"{text}"')
    assert isinstance(found, typed.StrConst)
    assert (found.value, str(found.type)) == (data, "string")
    assert unescape(escape(data)) == data


def test_macro_arguments() -> None:
    macros = Macros(("script.d", "42", "name", "a b", "-5", "0x10", '"q"'), {"pid": 7})
    assert [
        (type(e).__name__, getattr(e, "value", None))
        for e in (
            compile_(f"BEGIN {{ name = 1; trace({text}); }} END {{ trace($6); }}", macros)
            .clauses[0].actions[1].expr
            for text in ("$1", "$$1", "$2", "$$2", "$3", "$4", "$5", "$6", "$$6", "$0", "$pid",
                         "$$pid")
        )
    ] == [
        ("IntConst", 42), ("StrConst", b"42"), ("GlobalRead", None), ("StrConst", b"name"),
        ("StrConst", b"a b"), ("IntConst", -5), ("IntConst", 16), ("StrConst", b"q"),
        ("StrConst", b'"q"'), ("StrConst", b"script.d"), ("IntConst", 7), ("StrConst", b"7"),
    ]  # fmt: skip


def test_defaultargs() -> None:
    text = "#pragma D option defaultargs\nBEGIN { trace($1); trace($$2); }"
    first, second = compile_(text, Macros(("k",))).clauses[0].actions
    assert isinstance(first, typed.TraceAction) and isinstance(second, typed.TraceAction)
    assert isinstance(first.expr, typed.IntConst) and first.expr.value == 0
    assert isinstance(second.expr, typed.StrConst) and second.expr.value == b""
    compile_("BEGIN { }", Macros(("k", "unused"), defaultargs=True))
    assert error("BEGIN { }", Macros(("k", "unused"))).tag == "D_MACRO_UNUSED"


def test_unparse_has_the_layout_of_the_status_report() -> None:
    """The D that FreeBSD's status report of 2023Q1 shows for dtrace -d."""
    shown = (
        "kinst::cam_iosched_get_trim:13,\n"
        "kinst::cam_iosched_next_bio:13,\n"
        "kinst::cam_iosched_schedule:40\n"
        "{\n"
        '\tprintf("\\t%d\\t%s", pid, execname);\n'
        "}\n"
    )
    program = parse_text(shown, "t.d")
    assert unparse(program) == shown


PROGRAMS = [
    "BEGIN",
    "BEGIN, END /pid || *(int *)arg0/ { trace(1); exit(0) } tick-1s { @[execname] = count(); }",
    "#pragma D option quiet\nint x; char **p; string s;\nBEGIN { x = - -1; x = - --x; x = &b; }",
    "17 / 1 / 2 / { a = (1, 2); f((1, 2), 3); (a = 1) + 2; (a ? b : c) ? d : e; }",
    "a:b:c:d /* x */ / (*p) / { x = (char)(y + 1)[2]; x = ((char)y)[2]; @[1,(2,3)] = sum(-1); }",
    r'BEGIN { printf("a\n\t\"%s\"\\ \001", execname, "\377"); x = sizeof (int) + sizeof x; }',
    "BEGIN { x = 1 - (2 - 3); y = (1 << 2) + 3; z = !(a && b); w = (a = b) = c; v = -(1 + 2); }",
    "BEGIN { x = a->b.c[d]; self->x = 1; x = stringof(p) == stringof p + 1; }",
]  # fmt: skip


@pytest.mark.parametrize("text", PROGRAMS)
def test_unparse_parses_to_the_same_tree(text: str) -> None:
    program = parse_text(text, "t.d")
    printed = unparse(program)
    again = parse_text(printed, "t.d")
    assert without_spans(again) == without_spans(program)
    assert unparse(again) == printed


def test_nesting_is_bounded_but_generous() -> None:
    assert isinstance(value("(" * 60 + "1" + ")" * 60), typed.IntConst)
    assert isinstance(value("+".join(["pid"] * 90)), typed.Binary)
    for text in ("(" * 200 + "1" + ")" * 200, "!" * 101 + "1", "+".join(["pid"] * 102)):
        found = error(f"BEGIN {{ trace({text}); }}")
        assert (found.tag, "more than 100 levels deep" in found.message) == ("D_SYNTAX", True)


def test_literal_defaults() -> None:
    assert IntLiteral(5) == IntLiteral(5, "", True)
