"""syscall: which probes a description means, where they are, and which hits are theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kinst.core.dtypes import CHAR, INT, INT64, FunctionType, PointerType
from kinst.core.errors import AbsentError
from kinst.core.kernel import Found
from kinst.core.layout import ARGUMENT_SLOT
from kinst.core.probe import Argument, ProbePattern, Selection, pointed_at
from kinst.core.system import CallResult, SystemCall
from kinst.providers.syscall import PROVIDER
from tests.fake_kernel import ISA, FakeKernel

NOP = "0f1f440000"
SLOT = {r.gdb_name: r.slot for r in ISA.registers}
RESULT = Argument(ARGUMENT_SLOT, SLOT["rax"])


@dataclass
class CallingKernel(FakeKernel):
    """A kernel with system calls: two that jump to another function, and one of another group."""

    def system_calls(self) -> Sequence[SystemCall]:
        return [
            self.call("close", "vmlinux", 3),
            self.call("read", "compat", 9),
            self.call("read", "vmlinux", 0, 300),
        ]

    def call(self, name: str, module: str, *numbers: int) -> SystemCall:
        (function,) = self.find("", f"{module}_{name}")
        arguments = tuple(pointed_at(SLOT["rdi"], 8 * n) for n in range(6))
        number = pointed_at(SLOT["rbx"], 0x78)
        result = CallResult(self.labels["dispatch.store"], RESULT, Selection(number, numbers))
        never = name == "close"
        return SystemCall(name, function, arguments, module, (result,), never)


KERNEL = CallingKernel(
    [
        ("vmlinux_read", 0x1000, ["f30f1efa", NOP, "e9 >0x1300/32"]),
        ("vmlinux_close", 0x1100, [NOP, "c3"]),
        ("compat_read", 0x1200, [NOP, "e9 >0x1300/32"]),
        ("common", 0x1300, [NOP, "c3"]),
        ("dispatch", 0x1400, [NOP, "e8 >0x1000/32", "store:", "48894350", "c3"]),
    ]
)


def match(module: str, function: str, name: str, provider: str = "syscall") -> list[Found]:
    return list(PROVIDER.match(ProbePattern(provider, module, function, name), KERNEL))


def test_entries_are_at_the_functions_of_the_calls() -> None:
    (found,) = match("vmlinux", "read", "entry")
    assert str(found.name) == "syscall:vmlinux:read:entry" and found.selection is None
    assert found.site is not None and found.site.address == 0x1004  # after endbr64
    assert found.arguments == tuple(pointed_at(SLOT["rdi"], 8 * n) for n in range(6))


def test_returns_are_where_the_result_is_with_their_numbers() -> None:
    found = match("", "", "return")
    assert [str(one.name) for one in found] == [
        "syscall:vmlinux:close:return", "syscall:compat:read:return",
        "syscall:vmlinux:read:return",
    ]  # fmt: skip
    assert {one.site.address for one in found if one.site} == {KERNEL.labels["dispatch.store"]}
    assert [one.selection.values for one in found if one.selection] == [(3,), (9,), (0, 300)]
    assert {one.arguments for one in found} == {(RESULT, RESULT)}


@pytest.mark.parametrize(
    ("module", "function", "name", "count"),
    [
        ("", "", "", 6), ("", "read", "", 4), ("vm*", "", "entry", 2), ("compat", "", "", 2),
        ("", "r*", "return", 2), ("", "nothing*", "", 0), ("kernel", "read", "entry", 0),
    ],
)  # fmt: skip
def test_parts_may_be_globs_or_left_out(module: str, function: str, name: str, count: int) -> None:
    assert len(match(module, function, name)) == count


def test_the_provider_must_be_named() -> None:
    assert match("", "read", "entry", provider="") == match("", "", "", provider="*") == []
    assert len(match("", "read", "entry", provider="sys*")) == 2
    assert list(PROVIDER.match(ProbePattern("syscall", "", "read", "entry"), None)) == []


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(AbsentError, match='no system call named "raed"') as found:
        match("", "raed", "entry")
    assert found.value.hint == "did you mean read?"


class Types:
    """The prototype of read(2), as a kernel's debug information has it."""

    signature = FunctionType(INT64, (INT, PointerType(CHAR), INT64))

    def function(self, name: str, module: str = "") -> FunctionType | None:
        return self.signature if name == "__do_sys_read" else None


def types(function: str, name: str) -> Sequence[object] | None:
    pattern = ProbePattern("syscall", "", function, name)
    return PROVIDER.argument_types(pattern, Types())  # type: ignore[arg-type]


def test_arguments_have_the_types_of_the_parameters() -> None:
    assert types("read", "entry") == (INT, PointerType(CHAR), INT64)
    assert types("close", "entry") == [INT64] * 6
    assert types("read", "return") == (INT64, INT64)
    assert types("r*", "entry") is types("", "entry") is types("read", "") is None


def test_a_call_that_never_returns_says_so_if_it_is_named() -> None:
    assert [one.never for one in match("", "close", "entry")] == [""]
    assert [one.never for one in match("", "c*e", "return")] == [""]
    said = "close() does not return to the program"
    assert [one.never for one in match("", "close", "return")] == [said]
