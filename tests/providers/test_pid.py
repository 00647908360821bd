"""pid: entries, returns and instructions of a program, and the forms of their names."""

from __future__ import annotations

import pytest

from kinst.core.errors import KinstError
from kinst.core.kernel import Found
from kinst.core.probe import ProbePattern
from kinst.providers.pid import PROVIDER
from tests.fake_kernel import FakeKernel

LANDING = "f30f1efa"
# Offsets of main's instructions: 0, 4, 5, 7, 9, a, f, 14.
KERNEL = FakeKernel(
    [
        ("main", 0x1000, [LANDING, "55", "85c0", "74 >out/8", "c3", "b801000000", "out:",
                          "e8 >0x1100/32", "e9 >0x1100/32"]),
        ("work", 0x1100, ["55", "c3"]),
        ("work.cold", 0x1200, ["90", "e9 >0x1101/32"]),
    ],
    module="a.out",
)  # fmt: skip
OFFSETS = ["0", "4", "5", "7", "9", "a", "f", "14"]


def match(function: str, name: str, module: str = "a.out", process: int = 77) -> list[Found]:
    return list(
        PROVIDER.match(ProbePattern("pid", module, function, name, process=process), KERNEL)
    )


def names(function: str, name: str, module: str = "a.out") -> list[str]:
    found = [str(one.name) for one in match(function, name, module)]
    assert all(one.startswith("pid77:a.out:") for one in found)
    return [one.removeprefix("pid77:a.out:") for one in found]


def addresses(function: str, name: str) -> list[int]:
    return [one.site.address for one in match(function, name) if one.site is not None]


def test_entry_is_after_a_landing_pad_and_return_where_control_leaves() -> None:
    assert addresses("main", "entry") == [0x1004]
    assert addresses("main", "return") == [0x1009, 0x1014]
    assert names("main", "return") == ["main:return"] * 2
    entry, leaving = match("work", "entry"), match("work", "return")
    assert len(entry[0].arguments) == 10 and len(leaving[0].arguments) == 2


def test_offsets_are_hexadecimal() -> None:
    assert names("main", "a") == names("main", "0xa") == names("main", "0A") == ["main:a"]
    assert addresses("main", "14") == [0x1014]
    assert names("main", "[0-9]") == [f"main:{one}" for one in OFFSETS[:5]]
    assert names("w*", "0") == ["work:0", "work.cold:0"]


def test_no_name_is_every_probe_of_the_function() -> None:
    """As with dtrace(1): dt_pid_per_sym()."""
    every = ["main:entry", "main:return", "main:return", *(f"main:{one}" for one in OFFSETS)]
    assert names("main", "") == names("main", "*") == every
    assert names("main", "e*") == ["main:entry"]


@pytest.mark.parametrize("module", ["", "a.out", "*", "a.*"])
def test_modules_that_mean_the_program(module: str) -> None:
    assert names("main", "entry", module) == ["main:entry"]


def test_all_functions() -> None:
    assert names("", "entry") == ["main:entry", "work:entry"]  # a cold part is not entered
    assert {one.partition(":")[0] for one in names("", "")} == {"main", "work", "work.cold"}


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        ("main", "b", r"main\+0xb is inside an instruction \(the nearest are \+0xa and \+0xf\)"),
        ("main", "100", r"main\+0x100 is outside the function \(it is 25 bytes long"),
        ("mane", "entry", r'no function named "mane" in a.out$'),
    ],
)
def test_errors(function: str, name: str, message: str) -> None:
    with pytest.raises(KinstError, match=message):
        match(function, name)


def test_other_files_than_the_traced_one_are_refused() -> None:
    with pytest.raises(KinstError, match=r"libc.so.6 is not the file whose instructions"):
        match("malloc", "entry", "libc.so.6")


def test_other_providers_probes_are_not_its_own() -> None:
    assert not list(PROVIDER.match(ProbePattern("", "", "main", "entry"), KERNEL))
    assert not list(PROVIDER.match(ProbePattern("fbt", "", "main", "entry"), KERNEL))
    assert not list(PROVIDER.match(ProbePattern("pid", "", "main", "entry", process=0), None))
    assert match("main", "entries") == []
