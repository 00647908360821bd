"""Units of aggregations: they come from D's clocks, and from nothing else."""

from __future__ import annotations

import pytest

import kinst
from kinst.core.units import scaled
from kinst.dlang.api import compile_text


def measure(program: str, name: str = "") -> tuple[str, str, tuple[str, ...]]:
    _, compiled = compile_text(program, "test")
    found = next(one.measure for one in compiled.aggregations if one.name == name)
    return found.expression, found.unit, found.keys


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("timestamp - self->t", "ns"),
        ("(timestamp - self->t) / 1000", "us"),
        ("(int)(vtimestamp - 5) / 1000000", "ms"),
        ("timestamp / 1000000000", "s"),
        ("timestamp / 7", ""),
        ("timestamp * 2", ""),
        ("cpu", ""),
        ("cpu ? timestamp - 1 : 0", "ns"),
        ("self->t ? timestamp : cpu", ""),
        ("walltimestamp - (timestamp / 1000)", ""),
    ],
)
def test_units(value: str, unit: str) -> None:
    assert measure(f"BEGIN {{ self->t = cpu; @ = quantize({value}); }}")[1] == unit


def test_variables_have_the_unit_of_what_they_are_given() -> None:
    program = (
        "BEGIN { self->t = timestamp; this->d = timestamp - self->t; "
        "a[1] = this->d; self->t = 0; @ = sum(a[1] / 1000); x = timestamp; x = cpu; "
        "@mixed = max(x); }"
    )
    assert measure(program) == ("a[1] / 1000", "us", ())
    assert measure(program, "mixed")[1] == ""
    assert measure(program.replace("this->d = t", "this->d = cpu; this->d = t"))[1] == ""


def test_statements_that_differ() -> None:
    program = "BEGIN { @[cpu, pid] = sum(1); } END { @[cpu, pid] = sum(2); @c[tid] = count(); }"
    assert measure(program) == ("", "", ("cpu", "pid"))
    assert measure(program, "c") == ("", "", ("tid",))


def test_normalized_values_have_another_unit() -> None:
    text = (
        "tick-1ms { @a = max(timestamp); @q = quantize(timestamp); "
        "normalize(@a, 1000000); normalize(@q, 1000); exit(0); }"
    )
    with kinst.host() as machine, machine.trace(text) as trace:
        list(trace)
        found = trace.aggregations()
    assert (found["a"].unit, found["q"].unit) == ("ms", "ns")
    assert [scaled("us", n) for n in (1, 1000, 10**6, 10**9, 10, 0)] == [
        "us",
        "ms",
        "s",
        "",
        "",
        "",
    ]
