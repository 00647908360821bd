"""kinst -d's text parses to the tree that it was made from: declarations, types, and random
trees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.core.dtypes import INT
from kinst.core.errors import Span
from kinst.dlang.api import parse_text
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.unparse import unparse
from tests.dlang.syntax.test_parse import without_spans
from tests.tiers import draws

SPAN = Span("t.d", 1, 1)
TEXTS = [
    "struct s { int a; char *b; unsigned c : 3; int : 2; int (*f)(int, ...); };",
    "struct s { struct { int x; } in, *ip; union { int u; long v; }; enum { A, B } e, f; };",
    "struct { int a; } x, *y; int z;",
    "self struct { int a; } x; this struct { int a; } y;",
    "typedef struct { int a; } t, *tp; t z; tp w;",
    "struct c { const int a; } *v; struct fwd; struct empty { };",
    "enum e { A, B = 3 + 1, C = A ? 2 : 1 }; enum e q; enum { D } r;",
    "int (*f)(void); int *(*(*g)[3])(char, const char *); int (h)[3]; int (**i)[2]; int (*w);",
    "int k[3]; int m[int, string]; int n[char *, struct s *]; self int o; this char **p;",
    "typedef int (*fn)(int (*)[4], void *); typedef int arr[2][3]; typedef int (*up[2])(fn, arr);",
    "inline int C = 1, 2; inline int D[int a, char *b] = a + *b; inline string E = \"x\";",
    "struct o { int a; }; translator struct o < struct i *p > { a = p->b + 1; };"
    " translator struct o < int n > { a = n ? 1 : 2; };",
    "#pragma D option quiet\n#pragma D option bufsize=4m\nint z;",
]  # fmt: skip
BODIES = [
    "x = (int (*)[4])p; y = sizeof (struct { int a; int b; } *); w = (int (*)(void))0",
    "z = offsetof(struct s, a.b) + sizeof (int [4]); q = -offsetof(struct s, c)",
    "x = *(struct file **)(regs[R_RBP] - 8); y = ((struct s *)p)->a[1].b",
    "x = xlate < struct o * > (p)->a; y = xlate < struct o > (p + 1)",
    "x = `max_pfn + vmlinux`jiffies; y = sizeof `jiffies; curpsinfo->pr_psargs",
]


def same_again(text: str) -> None:
    program = parse_text(text, "t.d")
    printed = unparse(program)
    again = parse_text(printed, "t.d")
    assert without_spans(again) == without_spans(program), printed
    assert unparse(again) == printed


@pytest.mark.parametrize("text", TEXTS)
def test_declarations(text: str) -> None:
    same_again(f"{text}\nBEGIN {{ x = 1; }}")


@pytest.mark.parametrize("text", BODIES)
def test_types_in_expressions(text: str) -> None:
    same_again(f"BEGIN {{ {text}; }}")


def test_the_parts_of_an_if_are_shown() -> None:
    """Their names are libdtrace's own (dt_sugar.c), which no program can write."""
    shown = unparse(parse_text("BEGIN /a/ { if (x) { y = 1; } else z = 2; }", "t.d"))
    assert shown.count("BEGIN\n") == 4
    assert "this->%condition_2 = x ? 1 : 2;" in shown
    assert "/!this->%error && this->%condition_2 == 2/" in shown


NAMES = st.sampled_from(["a", "b", "foo", "next_one"])
PLAIN = st.sampled_from([("int",), ("unsigned", "long"), ("const", "char"), ("struct", "s"),
                         ("uint64_t",), ("enum", "e"), ("string",)])  # fmt: skip
COUNTS = st.sampled_from(["1", "4 + 2", "sizeof (int)", "A ? 1 : 2"])


@st.composite
def declarators(draw: st.DrawFn, name: str) -> str:
    """Make a declarator of C around a name, "" for an abstract one."""
    text = name
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["*", "[]", "()"])):
            case "*":
                text = f"(*{text})"
            case "[]":
                # No C type is an array of functions, or a function that returns an array.
                text = f"(*{text})[{draw(COUNTS)}]"
            case "()":
                text = f"(*{text})({draw(st.sampled_from(['void', 'int, char *', 'int, ...']))})"
    return "*" * draw(st.integers(0, 2)) + text


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0) -> str:
    rows = []
    for number in range(draw(st.integers(0, 4))):
        if depth < 2 and draw(st.booleans()):
            base = f"struct {draw(st.sampled_from(['', 't']))} {draw(bodies(depth + 1))}"
        else:
            base = " ".join(draw(PLAIN))
        names = [draw(declarators(f"m{number}_{i}")) for i in range(draw(st.integers(1, 2)))]
        rows.append(f"{base} {', '.join(names)};")
        if draw(st.booleans()):
            rows.append(f"int w{number} : {draw(COUNTS)};")
    return f"{{ {' '.join(rows)} }}"


@st.composite
def declarations(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["variable", "typedef", "struct", "anonymous", "cast"]))
    base = " ".join(draw(PLAIN))
    name = draw(NAMES)
    match kind:
        case "variable":
            scope = draw(st.sampled_from(["", "self", "this"]))
            return f"{scope} {base} {draw(declarators(name))};"
        case "typedef":
            return f"typedef {base} {draw(declarators(name + '_t'))};"
        case "struct":
            return f"struct s {draw(bodies())} {draw(st.sampled_from(['', 'x', '*x, y']))};"
        case "anonymous":
            head = draw(st.sampled_from(["", "typedef"]))
            return f"{head} union {draw(bodies())} x_t, *y_t;"
    one, two = draw(declarators("")), draw(declarators(""))
    return f"END {{ x = ({base} {one})p + sizeof ({base} {two}); }}"


@settings(deadline=None, max_examples=draws(40, 100))
@given(st.lists(declarations(), min_size=1, max_size=4))
def test_any_declarations(texts: list[str]) -> None:
    same_again(" ".join(texts) + " BEGIN { }")


BINARY = ["+", "-", "*", "/", "%", "<<", "<", "==", "&&", "||", "^^", "^", "&", "|", ",", "=", "+="]
PREFIXES = ["*", "&", "-", "+", "~", "!", "++", "--", "sizeof", "stringof"]
EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "1", "'c'", '"s"', "self->x", "@", "arg0"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(BINARY), inner),
        st.builds("({}){}".format, st.sampled_from(["int", "char *", "int (*)[2]"]), inner),
        st.builds("{}({})".format, st.sampled_from(PREFIXES), inner),
        st.builds("({}){}".format, inner, st.sampled_from(["++", "[1]", ".m", "->m"])),
        st.builds("({})(2, {})".format, st.sampled_from(["a", "trace"]), inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=draws(25, 60))
@given(EXPRESSIONS, EXPRESSIONS)
def test_any_expressions(predicate: str, statement: str) -> None:
    same_again(f"BEGIN /({predicate})/ {{ {statement}; }}")


def test_a_tree_that_no_text_makes() -> None:
    """A tree that kinst itself makes: the type of a local variable."""
    one = tree.TypedNode(SPAN, INT, tree.NameNode(SPAN, "a"), True)
    clause = tree.ClauseNode(SPAN, (), None, (tree.PrefixNode(SPAN, "*", one),))
    assert "*(int *)a;" in unparse(tree.ProgramNode((clause,)))
