"""sdt: which tracepoints a description means, their sites, types and refusals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kinst.core.dtypes import INT, UINT8, VOID, FunctionType, PointerType, StructType
from kinst.core.errors import AbsentError, KinstError
from kinst.core.layout import ARGUMENT_SLOT
from kinst.core.probe import Argument, ProbePattern
from kinst.core.system import Tracepoint, TracepointSite
from kinst.providers.sdt import PROVIDER
from tests.fake_kernel import FakeKernel

NOP = "0f1f440000"
ARGUMENTS = (Argument(ARGUMENT_SLOT, 3),)


class Traced(FakeKernel):
    """A kernel with a tracepoint at two places, another at a function's entry, and a refused
    one."""

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return [Tracepoint("irq", "hit"), Tracepoint("sched", "hit_too"), Tracepoint("", "never")]

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        plain, other = self.functions
        if name == "never":
            raise KinstError("the tracepoint never cannot be traced")
        if name == "hit_too":
            return [TracepointSite(other, b"", other.address, ARGUMENTS, 8)]
        return [
            TracepointSite(plain, b"\x90", plain.address + 5, ARGUMENTS, 7),
            TracepointSite(plain, b"\xc3", plain.address + 6, ARGUMENTS, 7),
        ]


KERNEL = Traced([
    ("plain", 0x1000, [NOP, "90", "c3"]), ("landing", 0x2000, ["f30f1efa", NOP, "c3"]),
])  # fmt: skip


def found(*fields: str) -> dict[str, list[int]]:
    """Return the addresses of the sites of each probe that a description means."""
    sites: dict[str, list[int]] = {}
    for one in PROVIDER.match(ProbePattern(*fields), KERNEL):
        assert one.site is not None and one.arguments == ARGUMENTS
        assert one.switch == (8 if one.name.name == "hit_too" else 7)
        sites.setdefault(str(one.name), []).append(one.site.address)
    return sites


def test_a_tracepoint_is_one_probe_with_all_its_sites() -> None:
    assert found("sdt", "irq", "", "hit") == {"sdt:irq::hit": [0x1005, 0x1006]}
    assert found("sdt", "", "", "hit") == found("", "", "", "hit") == found("sdt", "i*", "", "hit")


def test_an_entry_is_behind_what_must_stay_first() -> None:
    assert found("sdt", "", "", "hit_too") == {"sdt:sched::hit_too": [0x2004]}


def test_globs_leave_out_what_is_refused() -> None:
    assert sorted(found("sdt", "", "", "")) == ["sdt:irq::hit", "sdt:sched::hit_too"]
    assert list(found("sdt", "sched", "", "")) == ["sdt:sched::hit_too"]


@pytest.mark.parametrize("fields", [("sdt", "", "", "never"), ("sdt", "", "", "nev*")])
def test_a_refusal_is_told_where_nothing_else_is_meant(fields: tuple[str, ...]) -> None:
    with pytest.raises(KinstError, match="never cannot be traced"):
        found(*fields)


@pytest.mark.parametrize(
    "fields", [("", "", "", ""), ("fbt", "", "", "hit"), ("", "", "plain", "entry"),
               ("", "irq", "", "hit_too"), ("sdt", "", "plain", "hit"),
               ("sdt", "", "", "unknown")],
)  # fmt: skip
def test_other_descriptions_mean_none(fields: tuple[str, ...]) -> None:
    assert not found(*fields)


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        (("sdt", "", "", "hit_to"), "sdt:sched::hit_too"),
        (("sdt", "irq", "", "hit_too"), "sdt:sched::hit_too"),
    ],
)
def test_a_name_like_that_of_a_tracepoint(fields: tuple[str, ...], meant: str) -> None:
    with pytest.raises(AbsentError, match=rf"\(did you mean {meant}[?]"):
        found(*fields)


class Types:
    """Prototypes of two tracepoints."""

    def tracepoint(self, name: str) -> FunctionType | None:
        pointer = PointerType(VOID)
        if name == "whole":
            whole = StructType("struct", "pair", 16, "0", None)  # type: ignore[arg-type]
            return FunctionType(INT, (pointer, whole))
        names = ("__data", "preempt", "state")
        return FunctionType(INT, (pointer, UINT8, INT), names=names) if name == "hit" else None


def types_at(*fields: str) -> object:
    return PROVIDER.argument_types(ProbePattern(*fields), Types())  # type: ignore[arg-type]


def test_names_are_those_of_the_prototype_without_the_tracers_own() -> None:
    for name, names in (("hit", ("preempt", "state")), ("whole", ()), ("unknown", ())):
        pattern = ProbePattern("sdt", "irq", "", name)
        assert PROVIDER.argument_names(pattern, Types()) == names  # type: ignore[arg-type]


def test_types_are_those_of_the_prototype_without_the_tracers_own() -> None:
    assert types_at("sdt", "irq", "", "hit") == types_at("", "", "", "hit") == [UINT8, INT]
    assert types_at("", "", "", "unknown") is None is types_at("sdt", "", "", "h*")
    assert types_at("fbt", "", "hit", "entry") is None
    with pytest.raises(KinstError, match="no tracepoint unknown"):
        types_at("sdt", "", "", "unknown")
    with pytest.raises(KinstError, match="passes a structure"):
        types_at("sdt", "", "", "whole")
