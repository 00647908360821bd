"""Probes that each provider makes from a description."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kinst.core.columns import Scanned, columns_of
from kinst.core.errors import AbsentError, KinstError
from kinst.core.instruction import Instruction
from kinst.core.kernel import Exits, Timer
from kinst.core.probe import Function, Gap, ProbePattern
from kinst.core.system import Tracepoint
from kinst.providers import load_all
from kinst.providers.profile import timer_of
from kinst.session.descriptions import wants_kernel

FUNCTION = Function("vmlinux", "vm_fault", 0x1000, 10)
CODE = [(0x1000, b"\x55"), (0x1001, b"\x48\x89\xe5"), (0x1004, b"\x41\x57"), (0x1006, b"\x90" * 4)]


class FakeKernel:
    def find(self, module: str, function: str) -> Sequence[Function]:
        return [FUNCTION] if function in ("vm_fault", "vm_*") else []

    def suggest(self, function: str) -> str:
        return "did you mean vm_fault?"

    def instructions(self, function: Function) -> Sequence[Instruction]:
        return [Instruction(a, c, "?") for a, c in CODE]

    def exits(self, functions: Sequence[Function]) -> Sequence[Exits]:
        return [Exits([one], []) for one in functions]

    def gaps(self, functions: Sequence[Function]) -> Sequence[Gap]:
        return []

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return ()

    def columns(self, functions: Sequence[Function]) -> Scanned:
        assert list(functions) == [FUNCTION]
        return Scanned(columns_of([a for a, _ in CODE], [c for _, c in CODE]), np.array([0, 4]))


def match(provider: str, function: str, name: str) -> list[str]:
    pattern = ProbePattern(provider, "", function, name)
    return [str(f.name) for p in load_all().values() for f in p.match(pattern, FakeKernel())]


def test_every_file_is_a_provider() -> None:
    assert set(load_all()) == {"dtrace", "fbt", "kinst", "pid", "profile", "sdt", "syscall"}


@pytest.mark.parametrize("name", ["BEGIN", "END", "ERROR"])
def test_dtrace(name: str) -> None:
    assert match("dtrace", "", name) == [f"dtrace:::{name}"]
    assert match("", "", name) == [f"dtrace:::{name}"]


def test_all_instructions() -> None:
    offsets = ["0", "1", "4", "6"]
    assert match("kinst", "vm_fault", "") == [f"kinst:vmlinux:vm_fault:{o}" for o in offsets]
    assert match("kinst", "vm_*", "") == [f"kinst:vmlinux:vm_fault:{o}" for o in offsets]


@pytest.mark.parametrize("text", ["4", "0x4", "04"])
def test_one_instruction(text: str) -> None:
    assert match("kinst", "vm_fault", text) == ["kinst:vmlinux:vm_fault:4"]


def test_nothing_without_a_function() -> None:
    """dtrace_kinst(4): -l -P kinst matches no probes."""
    assert match("kinst", "", "") == []
    pattern = ProbePattern("", "", "vm_fault", "")
    assert list(load_all()["kinst"].match(pattern, FakeKernel())) == []


def test_a_kernel_is_not_booted_for_no_function() -> None:
    """The error comes before a kernel is booted."""
    providers = load_all()
    patterns = [ProbePattern("kinst", "", "", ""), ProbePattern("kinst", "ext4", "", "7")]
    assert not wants_kernel(patterns, providers, fired=True)
    for pattern in patterns:
        with pytest.raises(AbsentError, match=r"names no function \(.*kinst::\*:.*-x batch"):
            list(providers["kinst"].match(pattern, None))
    assert wants_kernel([ProbePattern("kinst", "", "*", "")], providers, fired=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("3", "inside an instruction (the nearest are +1 and +4)"),
        ("5", "inside an instruction (the nearest are +4 and +6)"),
        ("7", "inside an instruction (the nearest is +6)"),
        ("10", "outside the function (it is 10 bytes long; its last instruction is +6)"),
        ("99", "outside the function"),
    ],
)
def test_offset_errors(name: str, message: str) -> None:
    with pytest.raises(KinstError) as caught:
        match("kinst", "vm_fault", name)
    assert message in str(caught.value)


def test_unknown_function() -> None:
    with pytest.raises(KinstError, match=r'no function named "vm_falt" \(did you mean vm_fault'):
        match("kinst", "vm_falt", "")
    assert match("kinst", "nosuch*", "") == []


@pytest.mark.parametrize(
    ("name", "timer"),
    [
        ("tick-1s", Timer(10**9, False)),
        ("tick-1", Timer(10**9, False)),
        ("tick-1sec", Timer(10**9, False)),
        ("tick-500ms", Timer(500 * 10**6, False)),
        ("tick-300us", Timer(300_000, False)),
        ("tick-2000000ns", Timer(2_000_000, False)),
        ("tick-2min", Timer(120 * 10**9, False)),
        ("profile-997hz", Timer(10**9 // 997, True)),
        ("profile-997", Timer(10**9 // 997, True)),
    ],
)
def test_timers(name: str, timer: Timer) -> None:
    assert timer_of(name) == timer
    assert match("profile", "", name) == [f"profile:::{name}"]


@pytest.mark.parametrize(
    ("units", "seconds"),
    [
        (("nsec", "ns"), 1e-9), (("usec", "us"), 1e-6), (("msec", "ms"), 1e-3), (("sec", "s"), 1),
        (("min", "m"), 60), (("hour", "h"), 60 * 60), (("day", "d"), 24 * 60 * 60),
    ],
)  # fmt: skip
def test_units_of_timers(units: tuple[str, str], seconds: float) -> None:
    """Dynamic Tracing Guide, ch. 19, "tick-n probes": the suffixes and their meaning."""
    number = 10**6  # of the shortest unit, too, this is a period that is allowed
    for unit in units:
        assert timer_of(f"tick-{number}{unit}") == Timer(round(number * seconds * 1e9), False)


@pytest.mark.parametrize("name", ["tick-0", "tick-1parsec", "profile-10000hz", "tick-1ns"])
def test_bad_timers(name: str) -> None:
    with pytest.raises(KinstError):
        timer_of(name)


def test_tick_glob_lists_the_usual_ones() -> None:
    assert "profile:::tick-10" in match("profile", "", "tick-*")
