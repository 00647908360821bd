"""Enabling of descriptions: those without a match, with and without -Z."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kinst.core.errors import DError
from kinst.core.kernel import Found, Kernel, Provider, Timer
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE
from kinst.core.probe import Argument, ProbePattern, Selection
from kinst.dlang import typed
from kinst.dlang.api import Environment, compile_programs, parse_option
from kinst.isa import load
from kinst.providers import load_all
from kinst.session.descriptions import naming, wants_kernel
from kinst.session.enable import (
    enable,
    unassigned_told,
    with_conditions,
    with_few_conditions,
    with_read_arguments,
)
from kinst.session.values import EnabledSite
from tests.fake_kernel import FakeKernel

KERNEL = FakeKernel([("plain", 0x1000, ["0f1f440000", "c3"])])


def program(*texts: str) -> typed.TypedProgram:
    return compile_programs([parse_option("n", text) for text in texts], Environment())


def names(*texts: str, zero: bool = False, absent: bool = False) -> list[str]:
    enabled, _ = enable(program(*texts), load_all(), KERNEL, zero=zero, absent=absent)
    return [str(e.probe.name) for e in enabled]


ABSENT = ["kinst::absent:5", "fbt::absent:entry", "absent:entry", "fbt:module:plain:return"]


@pytest.mark.parametrize("text", ABSENT)
def test_a_function_that_is_not_there(text: str) -> None:
    """An error, also with -l (zero alone); not with -Z, where the others are still traced."""
    for zero in (False, True):
        with pytest.raises(DError, match="no function named"):
            names(text + " {}", zero=zero)
    assert names(text + " {}", "BEGIN {}", zero=True, absent=True) == ["dtrace:::BEGIN"]


def test_z_is_not_for_offsets_that_cannot_be() -> None:
    with pytest.raises(DError, match=r"plain\+3 is inside an instruction"):
        names("kinst::plain:3 {}", zero=True, absent=True)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        (ProbePattern("kinst", "", "plain", "foo"), "kinst::FUNCTION:OFFSET"),
        (ProbePattern("fbt", "", "", ""), "fbt::FUNCTION:entry"),
        (ProbePattern("profile", "", "", "tock-1s"), "tick-N"),
        *((ProbePattern("absent", "", "read", "entry"), name) for name in load_all()),
        (ProbePattern("syscall", "", "read", "foo"), "syscall::NAME:entry"),
        (ProbePattern("", "vmlinux", "", ""), "fbt::FUNCTION:entry"),
        (ProbePattern(id=999), "kinst -l"),
        (ProbePattern("", "", "", "plain"), "plain is a function: plain:entry and plain:return"),
        (ProbePattern("", "", "", "absent"), "fbt::FUNCTION:entry"),
    ],
)
def test_what_matches_nothing_says_how_probes_are_named(pattern: ProbePattern, hint: str) -> None:
    assert hint in naming(pattern, load_all(), KERNEL)


@pytest.mark.parametrize("provider", ["kinst", "fbt"])
def test_a_function_of_another_module(provider: str) -> None:
    with pytest.raises(DError, match=r"\"plain\" in module \"other\" \(it is in vmlinux\)"):
        names(f"{provider}:other:plain: {{}}")


@pytest.mark.parametrize(
    ("pattern", "fired", "listed"),
    [
        (ProbePattern("dtrace", "", "", "BEGIN"), False, False),
        (ProbePattern("", "", "", "tick-1s"), False, False),
        (ProbePattern("profile", "", "", "profile-97"), True, False),
        (ProbePattern("", "", "", "profile-10ms"), True, False),
        (ProbePattern("profile", "", "", ""), True, False),
        (ProbePattern("", "", "plain", "entry"), True, True),
        (ProbePattern("kinst", "", "plain", ""), True, True),
    ],
)
def test_what_boots_a_kernel(pattern: ProbePattern, fired: bool, listed: bool) -> None:
    """Descriptions of a kernel's probes, and of samples of its CPUs (Guide, ch. 19: profile-N
    fires on every CPU)."""
    providers = load_all()
    assert wants_kernel([pattern], providers, fired=True) is fired
    assert wants_kernel([pattern], providers, fired=False) is listed
    began = ProbePattern("", "", "", "BEGIN")
    assert wants_kernel([began, pattern], providers, fired=True) is fired


def test_no_more_than_there_is_room_for() -> None:
    """Later probes are left out, and the first of them is reported once."""
    left: list[str] = []
    enabled, matched = enable(
        program("kinst::plain: {}", "kinst::plain:0, kinst::plain:, fbt::plain:entry, BEGIN {}"),
        load_all(), KERNEL, zero=False, most=1, on_full=lambda one: left.append(str(one.name)),
    )  # fmt: skip
    assert [str(e.probe.name) for e in enabled] == ["kinst:vmlinux:plain:0", "dtrace:::BEGIN"]
    assert enabled[0].clauses == (0, 1, 1) and left == ["kinst:vmlinux:plain:5"]
    assert matched == {0: 1, 1: 3}


INDIRECT = FakeKernel([(f"f{n}", 0xFFFFFFFF81000000 + 64 * n, ["90", "ffe0"]) for n in range(40)])


def returns_of(kernel: FakeKernel, text: str) -> tuple[typed.TypedProgram, tuple[EnabledSite, ...]]:
    compiled = program(text)
    return compiled, enable(compiled, load_all(), kernel, zero=False)[0]


def test_conditions_that_differ_in_addresses_are_one() -> None:
    compiled, before = returns_of(INDIRECT, "fbt:::return { @ = count(); }")
    assert len({e.condition for e in before}) == 40
    after = with_few_conditions(before)
    (condition,) = {e.condition for e in after}
    for one, other in zip(before, after, strict=True):
        values = {
            f"(uint64_t)arg{n}": f"{argument.value % (1 << 64):#x}"
            for n, argument in enumerate(other.arguments)
            if argument.kind == ARGUMENT_CONSTANT and n > 1
        }
        again = condition
        for name, value in values.items():
            again = again.replace(name, value)
        assert again == one.condition and other.arguments[:2] == one.arguments
    clauses = with_conditions(compiled, after, load("amd64"))[0].clauses
    assert len(clauses) == len(compiled.clauses) + 1


def test_few_conditions_stay() -> None:
    """A predicate on constants can be tested without a call."""
    few = FakeKernel(INDIRECT.sources[:8])
    _, before = returns_of(few, "fbt:::return { @ = count(); }")
    assert with_few_conditions(before) == before


@pytest.mark.parametrize(
    ("text", "read"),
    [("@ = count()", ()), ("@[arg0] = count()", (0,)), ("@[arg1] = count()", (1,))],
)
def test_arguments_that_no_clause_reads(text: str, read: tuple[int, ...]) -> None:
    compiled, before = returns_of(KERNEL, f"fbt:::return {{ {text}; }}")
    (site,), (whole,) = with_read_arguments(compiled, before), before
    kept = {n: one for n, one in enumerate(site.arguments) if one.kind != ARGUMENT_NONE}
    assert kept == {n: whole.arguments[n] for n in read}


def test_a_probe_keeps_each_property_on_its_way() -> None:
    """What a provider says of a probe stays beside it, each under its own name."""
    timer, argument = Timer(1, each_cpu=False), Argument(ARGUMENT_CONSTANT, 5)
    selection = Selection(argument, (1,))
    said: dict[str, object] = {
        "timer": timer, "arguments": (argument,), "condition": "1", "switch": 7,
        "selection": selection, "never": "it is never reached",
    }  # fmt: skip
    (found,) = load_all()["fbt"].match(ProbePattern("fbt", "", "plain", "entry"), KERNEL)
    assert {*said} | {"name", "site"} == {one.name for one in fields(Found)}

    class Saying(Provider):
        name = "fbt"

        def match(self, pattern: ProbePattern, kernel: Kernel | None) -> list[Found]:
            return [replace(found, **said)]  # type: ignore[arg-type]

    compiled = program("fbt::plain:entry {}")
    before, _ = enable(compiled, {"fbt": Saying()}, KERNEL, zero=False)
    refused = replace(before[0], refusal="its code differs")
    (after,) = with_read_arguments(compiled, [refused])
    assert {one: getattr(before[0], one) for one in said} == said
    assert after == replace(refused, arguments=())


def test_a_clause_local_variable_without_a_value_is_told() -> None:
    """Only if no probe of the clause has a clause before it that assigns the variable."""
    checked = program(
        "fbt::plain:entry { this->t = 1; this->used = 1; }",
        "fbt::plain:return { trace(this->t); }",
        "fbt::plain:return, fbt::plain:entry { trace(this->used); this->own++; trace(this->own); }",
    )
    enabled, _ = enable(checked, load_all(), KERNEL, zero=False)
    (told,) = unassigned_told(checked, enabled)
    assert told.startswith("this->t has no value at fbt:vmlinux:plain:return: no clause")
