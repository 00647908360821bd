"""Suggestions in messages: names of D, local variables, descriptions."""

from __future__ import annotations

import pytest

from kinst.codegen.subroutines import prototypes
from kinst.core.dtypes import INT, DType
from kinst.core.errors import DError
from kinst.core.probe import ProbePattern
from kinst.dlang.api import Environment, compile_text, parse_text
from kinst.providers import load_all
from kinst.session.descriptions import naming
from kinst.sugar.locals import provisional

ENVIRONMENT = Environment(subroutines=prototypes())


def hint_of(text: str) -> str:
    with pytest.raises(DError) as caught:
        compile_text(text, "t.d", environment=ENVIRONMENT)
    return caught.value.hint


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('BEGIN { pritnf("x"); }', "did you mean printf()?"),
        ("BEGIN { @ = cuont(); }", "did you mean count()?"),
        ('BEGIN { trace(strlne("x")); }', "did you mean strlen()?"),
        ("inline int twice[int x] = 2 * x; BEGIN { trace(twcie(1)); }", "did you mean twice()?"),
        ("BEGIN { trace(exename); }", "did you mean execname?"),
        ("BEGIN { trace(qqqq(1)); }", ""),
    ],
)
def test_names_of_d(text: str, meant: str) -> None:
    assert hint_of(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("BEGIN /execname == 'ls'/ {}", 'strings have double quotes: "ls"'),
        ("BEGIN /execname == pid/ {}", ""),
        ("BEGIN { x = \"a\"; x = 'b'; }", 'strings have double quotes: "ls"'),
        ("BEGIN { trace(1);", "} is missing"),
        ("/* { */ BEGIN /", ""),
        ("BEGIN { x = '}'; trace(1);", "} is missing"),
    ],
)
def test_quotes_and_braces(text: str, meant: str) -> None:
    assert hint_of(text) == meant


def test_members_of_args_are_meant_to_be_variables() -> None:
    for text in ("BEGIN { trace(args->count); }", "BEGIN { x = args->count->y; }"):
        assert "locals->count" in hint_of(text) and "args[0]" in hint_of(text)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("cuont", "did you mean locals->count?"), ("zzz", "there are file, count, ret")],
)
def test_local_variables(name: str, meant: str) -> None:
    def type_of(pattern: ProbePattern, name: str) -> DType | None:
        return INT if name in ("file", "count", "ret") else None

    program = parse_text(f"kinst::f:0 {{ trace(locals->{name}); }}", "t.d")
    with pytest.raises(DError) as caught:
        provisional(program, type_of, lambda _: ["file", "count", "ret"])
    assert caught.value.hint == meant


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        (ProbePattern("", "kinst", "vfs_read", "19"), "did you mean kinst::vfs_read:19?"),
        (ProbePattern("", "fbt", "vfs_read", "entry"), "did you mean fbt::vfs_read:entry?"),
        (ProbePattern("", "", "kinst", "vfs_read"), "did you mean kinst::vfs_read:?"),
        (ProbePattern("", "kinst", "", "vfs_read"), "did you mean kinst::vfs_read:?"),
        (ProbePattern("", "fbt", "", "vfs_read"), "did you mean fbt::vfs_read:entry?"),
        (ProbePattern("", "syscall", "", "read"), "did you mean syscall::read:entry?"),
        (ProbePattern("", "", "syscall", "read"), "did you mean syscall::read:entry?"),
        (ProbePattern("", "sdt", "sched", "wakeup"), "did you mean sdt:sched::wakeup?"),
        (ProbePattern("", "", "profile", "tick-1s"), "did you mean profile:::tick-1s?"),
        (ProbePattern("", "profile", "", "tick-1s"), "did you mean profile:::tick-1s?"),
        (ProbePattern("ftb", "", "vfs_read", "entry"), "did you mean fbt::vfs_read:entry?"),
        (ProbePattern("kisnt", "", "vfs_read", ""), "did you mean kinst::vfs_read:?"),
    ],
)
def test_descriptions_with_a_field_too_few_or_a_wrong_provider(
    pattern: ProbePattern, meant: str
) -> None:
    assert naming(pattern, load_all(), None) == meant


def test_other_descriptions_are_told_how_probes_are_named() -> None:
    found = naming(ProbePattern("absent", "", "read", "entry"), load_all(), None)
    assert found.startswith("providers are ") and "did you mean" not in found
