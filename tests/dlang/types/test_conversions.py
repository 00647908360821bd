"""Types and conversions: C99 6.3 on LP64, written down by hand; D's own rules for variables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.core.dtypes import INT, UINT64, IntType, PointerType, StringType
from kinst.dlang.api import Environment, combine, compile_programs, parse_text
from kinst.dlang.types.conversions import same
from tests.dlang.dhelp import actions, compile_, typed, value

VARIABLES = (
    "char c; unsigned char uc; short s; unsigned short us; int i; unsigned int u;"
    "long l; unsigned long ul; long long ll; char *p; int *ip; int **ipp; void *v; string str; "
)


@pytest.mark.parametrize(
    ("expression", "type_"),
    [
        ("c", "char"), ("c + c", "int"), ("uc + us", "int"), ("s * us", "int"),
        ("c + i", "int"), ("i + u", "unsigned int"), ("u + i", "unsigned int"),
        ("i + l", "long"), ("u + l", "long"), ("l + u", "long"), ("l + ul", "unsigned long"),
        ("i + ul", "unsigned long"), ("ul + i", "unsigned long"), ("ll + ul", "unsigned long"),
        ("c << l", "int"), ("uc >> 1", "int"), ("u << l", "unsigned int"), ("l >> u", "long"),
        ("-c", "int"), ("~uc", "int"), ("+s", "int"), ("-u", "unsigned int"), ("~ul",
         "unsigned long"),
        ("!l", "int"), ("!p", "int"), ("c == l", "int"), ("p == v", "int"), ("p == 0", "int"),
        ("l && p", "int"), ("l ^^ c", "int"), ("ul < i", "int"), ("str == execname", "int"),
        ("str == p", "int"), ("p == ip + 0 ? 1 : 2", None),
        ("i ? c : c", "char"), ("i ? c : s", "int"), ("i ? u : l", "long"),
        ("i ? p : 0", "char *"), ("i ? 0 : p", "char *"), ("i ? v : p", "char *"),
        ("i ? p : v", "char *"), ("i ? str : execname", "string"), ("i ? str : p", "string"),
        ("*p", "char"), ("*ip", "int"), ("*ipp", "int *"), ("**ipp", "int"), ("ip[2]", "int"),
        ("2[ip]", "int"), ("&*p", "char *"), ("&ip[2]", "int *"), ("p + 1", "char *"),
        ("1 + p", "char *"), ("ip - 1", "int *"), ("ip - ip", "long"),
        ("(char)l", "char"), ("(uint8_t)l", "uint8_t"), ("(void *)l", "void *"),
        ("(int)p", "int"), ("(string)p", "string"), ("stringof(l)", "string"),
        ("stringof(str)", "string"), ("i, l", "long"), ("(c = 5)", "char"), ("c++", "char"),
        ("++ip", "int *"), ("sizeof (int)", "size_t"), ("sizeof ip[0]", "size_t"),
        ("(const char *)l", "char *"), ("(unsigned)l", "unsigned int"),
        ("(long unsigned int)l", "unsigned long"), ("(signed char)l", "char"),
        ("pid", "pid_t"), ("uid", "uid_t"), ("timestamp", "uint64_t"), ("arg0", "int64_t"),
        ("regs[R_RAX]", "uint64_t"), ("curthread", "void *"), ("caller", "uintptr_t"),
        ("R_RAX", "int"), ("regs[R_RAX] - arg0", "uint64_t"), ("pid - uid", "uid_t"),
        ("timestamp - timestamp", "uint64_t"), ("pid + 1", "pid_t"), ("1 + pid", "int"),
    ],
)  # fmt: skip
def test_types(expression: str, type_: str | None) -> None:
    if type_ is None:
        with pytest.raises(Exception, match="incompatible"):
            value(expression, VARIABLES)
        return
    assert str(value(expression, VARIABLES).type) == type_


def shape(e: typed.Expr) -> str:
    """Return a typed expression as text in which every conversion can be seen."""
    match e:
        case typed.IntConst():
            return f"{e.value}:{e.type}"
        case typed.StrConst():
            return repr(e.value)
        case typed.Builtin():
            return e.name
        case typed.RegisterRead():
            return f"regs[{shape(e.index)}]"
        case typed.GlobalRead():
            return e.variable.name
        case typed.Assign():
            return f"({e.variable.name} = {shape(e.value)})"
        case typed.Step():
            return f"({e.variable.name} {'post' if e.post else 'pre'} {e.by})"
        case typed.Unary():
            return f"({e.op} {shape(e.operand)})"
        case typed.Binary() | typed.Logical():
            return f"({shape(e.left)} {e.op}:{e.type} {shape(e.right)})"
        case typed.Conditional():
            return f"({shape(e.condition)} ? {shape(e.then)} : {shape(e.otherwise)})"
        case typed.Comma():
            return f"({shape(e.left)}, {shape(e.right)})"
        case typed.Cast():
            return f"<{e.type}>{shape(e.operand)}"
        case typed.Load():
            return f"load:{e.type} {shape(e.address)}"
    raise AssertionError(e)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("c + l", "(<long>c +:long l)"),
        ("c + 1", "(<int>c +:int 1:int)"),
        ("i == ul", "(<unsigned long>i ==:int ul)"),
        ("c << l", "(<int>c <<:int l)"),
        ("p + i", "<char *>(<uint64_t>p +:uint64_t (<uint64_t>i *:uint64_t 1:uint64_t))"),
        ("ip + 2", "<int *>(<uint64_t>ip +:uint64_t 8:uint64_t)"),
        ("ip[3]", "load:int <int *>(<uint64_t>ip +:uint64_t 12:uint64_t)"),
        ("ip - 2", "<int *>(<uint64_t>ip -:uint64_t 8:uint64_t)"),
        ("ip[0]", "load:int ip"),
        ("ip - ip", "((<long>ip -:long <long>ip) /:long 4:long)"),
        ("p - p", "(<long>p -:long <long>p)"),
        ("p == 0", "(p ==:int 0:char *)"),
        ("v == p", "(<char *>v ==:int p)"),
        ("*(uint64_t *)arg0", "load:uint64_t <uint64_t *>arg0"),
        ("*(int *)(regs[R_RDI] + 8)",
         "load:int <int *>(regs[8:int] +:uint64_t 8:uint64_t)"),
        ("stringof(arg0)", "load:string <char *>arg0"),
        ("(string)p", "load:string p"),
        ("execname == \"sh\"", "(execname ==:int b'sh')"),
        ("p == \"sh\"", "(load:string p ==:int b'sh')"),
        ("i = l", "(i = <int>l)"),
        ("i += l", "(i = <int>(<long>i +:long l))"),
        ("c <<= 2", "(c = <char>(<int>c <<:int 2:int))"),
        ("ip += 2", "(ip = <int *>(<uint64_t>ip +:uint64_t 8:uint64_t))"),
        ("str = p", "(str = load:string p)"),
        ("p = 0", "(p = 0:char *)"),
        ("ip++", "(ip post 4)"),
        ("--i", "(i pre -1)"),
        ("ipp--", "(ipp post -8)"),
        ("i ? c : l", "(i ? <long>c : l)"),
        ("1 ? c : l", "<long>c"),
        ("0 ? c : l", "l"),
        ("(void)i, l", "(i, l)"),
        ("(bool)l", "<bool>(l !=:int 0:long)"),
        ("-c", "(- <int>c)"),
        ("!c", "(! c)"),
        ("i && l", "(i &&:int l)"),
    ],
)  # fmt: skip
def test_conversions(expression: str, expected: str) -> None:
    assert shape(value(expression, VARIABLES)) == expected


@pytest.mark.parametrize(
    ("expression", "number", "type_"),
    [
        ("2 + 3 * 4", 14, "int"),
        ("2147483647 + 1", 2**31, "int64_t"),
        ("0xffffffff + 1", 0, "unsigned int"),
        ("-7 / 2", -3, "int"),
        ("-7 % 2", -1, "int"),
        ("7 % -2", 1, "int"),
        ("7u / 2", 3, "unsigned int"),
        ("-1 < 1u", 0, "int"),
        ("-1 < 1", 1, "int"),
        ("-1L < 1u", 1, "int"),
        ("1 << 31", 2**31, "int64_t"),
        ("1 << 32", 2**32, "int64_t"),
        ("0x40000000u << 2", 0, "unsigned int"),
        ("(int)(1 << 32)", 0, "int"),
        ("1L << 40", 2**40, "long"),
        ("-8 >> 1", -4, "int"),
        ("0xf0 & 0x3c | 1 ^ 3", 0x32, "int"),
        ("~0", -1, "int"),
        ("~0u", 2**32 - 1, "unsigned int"),
        ("!5", 0, "int"),
        ("!0", 1, "int"),
        ("2 && 3", 1, "int"),
        ("0 || 0", 0, "int"),
        ("1 ^^ 2", 0, "int"),
        ("1 ^^ 0", 1, "int"),
        ("(char)300", 44, "char"),
        ("(char)200", -56, "char"),
        ("(unsigned char)-1", 255, "unsigned char"),
        ("(bool)256", 1, "bool"),
        ("(uint64_t)-1", 2**64 - 1, "uint64_t"),
        ("(long)0xffffffff", 2**32 - 1, "long"),
        ("(long)(int)0xffffffff", -1, "long"),
        ("-9223372036854775807 - 1", -(2**63), "long"),
        ("(-9223372036854775807 - 1) / -1", -(2**63), "long"),
        ("1 == 1L", 1, "int"),
        ("R_RDI + 1", 9, "int"),
        ("5 ? 1 : 2L", 1, "long"),
    ],
)
def test_constants_fold(expression: str, number: int, type_: str) -> None:
    found = value(expression)
    assert isinstance(found, typed.IntConst), found
    assert (found.value, str(found.type)) == (number, type_)


@settings(deadline=None)
@given(
    st.sampled_from(["+", "-", "*", "&", "|", "^", "/", "%"]),
    st.integers(-(2**31) + 1, 2**31 - 1),
    st.integers(-(2**31) + 1, 2**31 - 1).filter(bool),
)
def test_folding_is_exact(op: str, a: int, b: int) -> None:
    """Values that int cannot hold are int64_t (docs/d.md)."""
    quotient = int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    exact = {
        "+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b,
        "/": quotient, "%": a - b * quotient,
    }[op]  # fmt: skip
    found = value(f"({a}) {op} ({b})")
    assert isinstance(found, typed.IntConst)
    assert found.value == exact
    assert str(found.type) == ("int" if -(2**31) <= exact < 2**31 else "int64_t")


def test_no_binary_mixes_types() -> None:
    """typed.py promises codegen operands of one type, shifts and strings excepted."""
    everything = [
        f"trace({a} {op} {b});"
        for a in ("c", "us", "u", "l", "ul", "p", "v", "str", "execname")
        for b in ("uc", "i", "ll", "ul", "p", "v", "0", '"x"')
        for op in ("+", "-", "/", "%", "&", "<", "==", "!=")
    ]
    checked = 0

    def walk(e: object) -> None:
        nonlocal checked
        if isinstance(e, typed.Binary):
            checked += 1
            if not isinstance(e.left.type, StringType):
                assert e.left.type == e.right.type
            if e.op in ("<", "==", "!="):
                assert e.type == INT
        for name in ("expr", "left", "right", "operand", "address"):
            if hasattr(e, name):
                walk(getattr(e, name))

    for text in everything:
        try:
            found = actions(text, VARIABLES)
        except Exception as error:
            assert getattr(error, "tag", "").startswith("D_OP_") or "by zero" in str(error)
            continue
        walk(found[0])
    assert checked > 150


def test_variables_take_the_type_of_their_first_assignment() -> None:
    program = compile_(
        'string d; BEGIN { a = 1; b = timestamp; s = execname; t = "x"; p = (char *)arg0; n++; '
        "d = s; a = b; }"
    )
    assert [(v.name, str(v.type), v.index) for v in program.variables] == [
        ("d", "string", 0), ("a", "int", 1), ("b", "uint64_t", 2), ("s", "string", 3),
        ("t", "string", 4), ("p", "char *", 5), ("n", "int64_t", 6),
    ]  # fmt: skip
    assert all(v.type == StringType(0) for v in program.variables if v.name in "st")


def test_the_predicate_may_create_what_the_body_reads() -> None:
    program = compile_("BEGIN /x++ < 5/ { trace(x); }")
    assert [v.name for v in program.variables] == ["x"]
    program = compile_("BEGIN /x == 5/ { x = 1; }")
    assert shape(program.clauses[0].predicate) == "(x ==:int 5:int)"


def test_variables_are_shared_between_clauses_and_programs() -> None:
    texts = ["BEGIN { x = timestamp; @a[pid] = count(); }", "END { trace(x); printa(@a); }"]
    programs = [parse_text(t, f"-n {i}") for i, t in enumerate(texts)]
    made = compile_programs(programs, Environment())
    assert [c.index for c in made.clauses] == [0, 1]
    assert [str(c.span) for c in made.clauses] == ["-n 0:1:1", "-n 1:1:1"]
    assert len(made.variables) == 1 and len(made.aggregations) == 1
    assert len(combine(programs).clauses) == 2
    trace = made.clauses[1].actions[0]
    assert isinstance(trace, typed.TraceAction) and trace.expr.type == UINT64


def test_builtins() -> None:
    for name, type_ in {
        "arg0": "int64_t", "arg9": "int64_t", "probeprov": "string", "probemod": "string",
        "probefunc": "string", "probename": "string", "id": "uint_t", "epid": "uint_t",
        "timestamp": "uint64_t", "vtimestamp": "uint64_t", "walltimestamp": "uint64_t",
        "cpu": "int", "pid": "pid_t", "tid": "id_t", "ppid": "pid_t", "uid": "uid_t",
        "gid": "gid_t", "execname": "string", "curthread": "void *", "caller": "uintptr_t",
    }.items():  # fmt: skip
        found = value(name)
        assert isinstance(found, typed.Builtin)
        assert (found.name, str(found.type)) == (name, type_)
    assert value("execname").type == StringType(16)
    assert value('"abc"').type == StringType(4)
    assert value("pid").type == IntType(4, True, "pid_t")
    assert isinstance(value("curthread").type, PointerType)


def test_char_pointers_of_any_sign_are_one_type() -> None:
    """char is unsigned in many kernels and signed in D."""
    plain = PointerType(IntType(1, False, "char", plain_char=True))
    bytes_ = PointerType(IntType(1, False, "unsigned char"))
    mine = value("p", VARIABLES).type
    assert same(mine, plain) and same(plain, mine) and not same(mine, bytes_)


def test_an_empty_body_is_the_default_action() -> None:
    for text in ("BEGIN", "BEGIN { }", "BEGIN { ; ; }", "BEGIN /1/ { }"):
        assert compile_(text).clauses[0].actions == ()


def test_typed_trees_are_bounded() -> None:
    value("p[" * 30 + "0" + "]" * 30, VARIABLES)
    with pytest.raises(Exception, match="nested too deeply"):
        value("p[" * 90 + "0" + "]" * 90, VARIABLES)
