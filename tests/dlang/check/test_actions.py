"""Actions, formats and aggregations that are right."""

from __future__ import annotations

import pytest

from kinst.core.dtypes import INT, INT64, UINT64, StringType
from tests.dlang.dhelp import actions, compile_, typed
from tests.dlang.types.test_conversions import shape


def parts(format_: str, arguments: str = "") -> list[tuple[object, ...]]:
    (action,) = actions(f'printf("{format_}"{", " if arguments else ""}{arguments});')
    assert isinstance(action, typed.PrintfAction)
    return [
        (p.literal, p.conversion, p.flags, p.width, p.precision, p.size)
        for p in action.format.parts
    ]


@pytest.mark.parametrize(
    ("format_", "arguments", "expected"),
    [
        ("hello", "", [(b"hello", "", "", None, None, 0)]),
        ("100%%\\n", "", [(b"100%\n", "", "", None, None, 0)]),
        ("%d", "1", [(b"", "d", "", None, None, 4)]),
        ("a%%b%d", "1", [(b"a%b", "d", "", None, None, 4)]),
        ("%d!", "timestamp", [(b"", "d", "", None, None, 8), (b"!", "", "", None, None, 0)]),
        ("%-5s|", "execname",
         [(b"", "s", "-", 5, None, 0), (b"|", "", "", None, None, 0)]),
        ("%+05d", "1", [(b"", "d", "+0", 5, None, 4)]),
        ("%#x", "(char)1", [(b"", "x", "#", None, None, 1)]),
        ("%08.3u", "(short)1", [(b"", "u", "0", 8, 3, 2)]),
        ("%10.0d", "1", [(b"", "d", "", 10, 0, 4)]),
        ("%.d", "1", [(b"", "d", "", None, 0, 4)]),
        ("%-08d", "1", [(b"", "d", "0", 8, None, 4)]),
        ("%0-8d", "1", [(b"", "d", "-", 8, None, 4)]),
        ("% 'd", "1", [(b"", "d", " '", None, None, 4)]),
        ("%*d", "5, 1", [(b"", "d", "", "*", None, 4)]),
        ("%-*.*s", "5, 6, execname", [(b"", "s", "-", "*", "*", 0)]),
        ("%hhd%hx%ld%llu", "1, 1, 1, 1",
         [(b"", c, "", None, None, 4) for c in "dxdu"]),
        ("%p%p", "curthread, arg0", [(b"", "p", "", None, None, 8)] * 2),
        ("%?x", "arg0", [(b"", "x", "", 16, None, 8)]),
        ("%a%A", "caller, caller",
         [(b"", "a", "", None, None, 8), (b"", "A", "", None, None, 8)]),
        ("%c%C", "'a', (char)1",
         [(b"", "c", "", None, None, 4), (b"", "C", "", None, None, 1)]),
        ("%i%o%X", "1, 2, 3", [(b"", c, "", None, None, 4) for c in "ioX"]),
        ("%S", '\\"x\\"'.replace("\\", ""), [(b"", "S", "", None, None, 0)]),
        ("%Y%T", "walltimestamp, timestamp",
         [(b"", "Y", "", None, None, 8), (b"", "T", "", None, None, 8)]),
    ],
)  # fmt: skip
def test_printf_formats(format_: str, arguments: str, expected: list[tuple[object, ...]]) -> None:
    assert parts(format_, arguments) == expected


def test_star_arguments_become_int() -> None:
    (action,) = actions('printf("%*.*d", arg0, (char)2, arg1);')
    assert isinstance(action, typed.PrintfAction)
    assert [shape(a) for a in action.args] == ["<int>arg0", "2:int", "arg1"]


def test_simple_actions() -> None:
    made = actions("trace(pid); exit(arg0); x = 1; (void)x++; pid;")
    assert [type(a).__name__ for a in made] == [
        "TraceAction", "ExitAction", "EvaluateAction", "EvaluateAction", "EvaluateAction",
    ]  # fmt: skip
    assert isinstance(made[1], typed.ExitAction) and shape(made[1].status) == "<int>arg0"
    assert isinstance(made[3], typed.EvaluateAction) and shape(made[3].expr) == "(x post 1)"
    assert made[1].span.column == len("BEGIN { trace(pid); ") + 1


@pytest.mark.parametrize(
    ("call", "params", "shown", "weight"),
    [
        ("count()", (), None, None),
        ("sum(pid)", (), "<int64_t>pid", None),
        ("min(uid)", (), "<uint64_t>uid", None),
        ("max(-1)", (), "-1:int64_t", None),
        ("avg(timestamp)", (), "timestamp", None),
        ("stddev(curthread)", (), "<uint64_t>curthread", None),
        ("quantize(arg0)", (), "arg0", None),
        ("quantize(arg0, pid)", (), "arg0", "<int64_t>pid"),
        ("lquantize(arg0, 0, 100)", (0, 100, 1), "arg0", None),
        ("lquantize(arg0, -10, 10, 5)", (-10, 10, 5), "arg0", None),
        ("lquantize(arg0, 0, 11, 5)", (0, 10, 5), "arg0", None),
        ("lquantize(arg0, 0, 10, 5, 2)", (0, 10, 5), "arg0", "2:int64_t"),
        ("llquantize(arg0, 10, 0, 6, 20)", (10, 0, 6, 20), "arg0", None),
        ("llquantize(arg0, 2, 3, 61, 2, uid)", (2, 3, 61, 2), "arg0", "<int64_t>uid"),
    ],
)
def test_aggregating_functions(
    call: str, params: tuple[int, ...], shown: str | None, weight: str | None
) -> None:
    (action,) = actions(f"@a = {call};")
    assert isinstance(action, typed.AggregateAction)
    assert action.aggregation.function == typed.AggFunction(call.split("(")[0], params)
    assert (shape(action.value) if action.value else None) == shown
    assert (shape(action.weight) if action.weight else None) == weight
    if action.value is not None:
        assert action.value.type in (INT64, UINT64)
        assert action.aggregation.signed == (action.value.type == INT64)


def test_keys_have_one_type_over_the_whole_program() -> None:
    program = compile_(
        "BEGIN { @a[pid, execname, (char)1] = count(); }\n"
        'END { @a[timestamp, "longer than sixteen", 300] = count(); }'
    )
    (aggregation,) = program.aggregations
    assert [str(k) for k in aggregation.keys] == ["uint64_t", "string", "int"]
    assert aggregation.keys[1] == StringType(20)
    first, second = (c.actions[0] for c in program.clauses)
    assert isinstance(first, typed.AggregateAction) and isinstance(second, typed.AggregateAction)
    assert [shape(k) for k in first.keys] == ["<uint64_t>pid", "execname", "1:int"]
    assert [shape(k) for k in second.keys] == ["timestamp", "b'longer than sixteen'", "300:int"]


def test_aggregations_are_collected_first() -> None:
    program = compile_(
        'BEGIN { printa("%d %@u\\n", @a); printa(@a, @b); clear(@a); trunc(@); trunc(@a, 5); '
        "normalize(@a, 1000); denormalize(@a); }\n"
        "END { @ = count(); @b[arg0] = sum(1); @a[pid] = count(); @_ = count(); }"
    )
    assert [(a.name, a.index, a.function.name) for a in program.aggregations] == [
        ("", 0, "count"), ("b", 1, "sum"), ("a", 2, "count"),
    ]  # fmt: skip
    made = program.clauses[0].actions
    assert [type(a).__name__ for a in made] == [
        "PrintaAction", "PrintaAction", "ClearAction", "TruncAction", "TruncAction",
        "NormalizeAction", "NormalizeAction",
    ]  # fmt: skip
    first = made[0]
    assert isinstance(first, typed.PrintaAction) and first.format is not None
    assert [(p.literal, p.conversion, p.size) for p in first.format.parts] == [
        (b"", "d", 4), (b" ", "@u", 8), (b"\n", "", 0),
    ]  # fmt: skip
    assert [a.name for a in made[1].aggregations] == ["a", "b"]  # type: ignore[attr-defined]
    assert isinstance(made[3], typed.TruncAction) and made[3].count is None
    assert isinstance(made[4], typed.TruncAction) and shape(made[4].count) == "5:int64_t"
    assert isinstance(made[5], typed.NormalizeAction) and shape(made[5].divisor) == "1000:uint64_t"
    assert isinstance(made[6], typed.NormalizeAction) and made[6].divisor is None


def test_printa_formats() -> None:
    for format_ in ("%@d", "%s: %@d", "%s", "%@x %s", "%-20s %@8u\\n", "no conversion", "%@d %@d"):
        compile_(f'BEGIN {{ printa("{format_}", @a); @a[execname] = sum(1); }}')


def test_two_aggregations_with_keys_of_like_types() -> None:
    compile_("BEGIN { @a[pid] = count(); @b[arg0] = sum(1); printa(@a, @b); }")


def test_options_reach_the_typed_program() -> None:
    program = compile_("#pragma D option quiet\n#pragma D option bufsize=1m\nBEGIN { }")
    assert program.options == (("quiet", ""), ("bufsize", "1m"))
    program = compile_("#pragma D option scratch=64m\nBEGIN { }")
    assert program.options == (("scratch", "64m"),)


def test_patterns_and_spans() -> None:
    clause = compile_("BEGIN,\nkinst::f:1 /pid/ { trace(1); }").clauses[0]
    assert [str(p) for p in clause.patterns] == [":::BEGIN", "kinst::f:1"]
    assert [(s.line, s.column, s.length) for s in clause.pattern_spans] == [(1, 1, 5), (2, 1, 10)]
    assert clause.predicate is not None and clause.predicate.type.size == INT.size  # type: ignore[attr-defined]
