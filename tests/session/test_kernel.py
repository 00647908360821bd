"""Names to functions: globs, ambiguity, suggestions."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from kinst.core.errors import KinstError, TargetError, UnmappedError
from kinst.core.probe import Function
from kinst.isa import load
from kinst.session.kernel import RunningKernel

FUNCTIONS = [
    Function("vmlinux", "vfs_read", 0x1000, 64),
    Function("vmlinux", "vfs_write", 0x2000, 64),
    Function("vmlinux", "get_order", 0x3000, 16),
    Function("vmlinux", "get_order", 0x2800, 16),
    Function("loop", "loop_init", 0x9000, 16),
    Function("loop", "show", 0x9100, 16),
    Function("vmlinux", "show", 0x1100, 16),
    Function("vmlinux", "finish.isra.0", 0x4000, 16),
    Function("vmlinux", "finish.cold", 0x5000, 16),
]


class FakeSystem:
    def functions(self) -> list[Function]:
        return FUNCTIONS

    def counterpart(self, name: str) -> str:
        return ""

    def lookup(self, name: str) -> list[Function]:
        return [f for f in FUNCTIONS if f.name == name]

    def glob(self, pattern: str) -> list[Function]:
        return [f for f in FUNCTIONS if fnmatchcase(f.name, pattern)]


@pytest.fixture
def kernel() -> RunningKernel:
    return RunningKernel(None, FakeSystem(), None)  # type: ignore[arg-type]


def names(found: object) -> list[str]:
    return sorted(f.name for f in found)  # type: ignore[attr-defined]


def test_plain_and_glob(kernel: RunningKernel) -> None:
    assert names(kernel.find("", "vfs_read")) == ["vfs_read"]
    assert names(kernel.find("", "vfs_*")) == ["vfs_read", "vfs_write"]
    assert names(kernel.find("loop", "*")) == ["loop_init", "show"]
    assert names(kernel.find("loop", "vfs_read")) == []


def test_two_symbols_of_one_name(kernel: RunningKernel) -> None:
    with pytest.raises(KinstError) as caught:
        kernel.find("", "get_order")
    text = str(caught.value)
    assert "names 2 functions" in text
    assert "get_order@1 at 0x2800" in text and "get_order@2 at 0x3000" in text
    assert [f.address for f in kernel.find("", "get_order@2")] == [0x3000]
    assert names(kernel.find("", "get_*")) == ["get_order@1", "get_order@2"]
    assert kernel.find("", "get_order@3") == []


def test_a_function_has_the_same_name_in_every_search(kernel: RunningKernel) -> None:
    """Only functions of one module are numbered: a search in the module gives the same name."""
    everywhere = {(f.module, f.name, f.address) for f in kernel.find("", "*")}
    for module in ("loop", "vmlinux"):
        assert {(f.module, f.name, f.address) for f in kernel.find(module, "*")} <= everywhere
    assert [f.address for f in kernel.find("loop", "show")] == [0x9100]
    assert ("loop", "show", 0x9100) in everywhere
    with pytest.raises(KinstError, match="loop:show at 0x9100, vmlinux:show at 0x1100"):
        kernel.find("", "show")
    assert kernel.find("", "show@2") == []
    assert kernel.suggest("show@2") == "choose one: loop:show, vmlinux:show"


def test_suggestions(kernel: RunningKernel) -> None:
    assert kernel.suggest("vfs_raed").startswith("did you mean vfs_read")
    assert kernel.suggest("zzz") == ""
    # As when __kmalloc() became __kmalloc_noprof().
    assert kernel.suggest("vfs").startswith("did you mean vfs_read or vfs_write")


def test_an_unknown_name_may_be_an_inline_function() -> None:
    kernel = RunningKernel(None, FakeSystem(), None, is_inlined=None)  # type: ignore[arg-type]
    assert kernel.suggest("zzz") == "no debug information says which functions are inline"
    told = kernel.suggest("vfs_raed")
    assert told.startswith("did you mean vfs_read") and "no debug information" in told
    # As long as there is no index, debug information does not tell it either.
    kernel = RunningKernel(None, FakeSystem(), None, is_inlined=lambda _: None)  # type: ignore[arg-type]
    probes = "if it is inline: kinst::vfs_raed:entry and kinst::vfs_raed:return"
    assert kernel.suggest("vfs_raed") == f"did you mean vfs_read or vfs_write? {probes}"


def test_an_inline_function_is_traced_by_its_copies() -> None:
    inline = {"kmalloc"}
    kernel = RunningKernel(None, FakeSystem(), None, is_inlined=inline.__contains__)  # type: ignore[arg-type]
    told = "it is inline: kinst::kmalloc:entry and kinst::kmalloc:return"
    assert kernel.suggest("kmalloc") == told
    assert kernel.suggest("vfs_raed").startswith("did you mean vfs_read")


def test_what_the_compiler_has_made_of_a_function_is_told(kernel: RunningKernel) -> None:
    assert kernel.suggest("finish") == "the compiler has made finish.isra.0 of it"


@pytest.mark.parametrize("error", [UnmappedError("nothing is mapped there"), TargetError("gone")])
def test_code_that_is_unmapped_has_no_instructions_and_a_lost_machine_is_told(
    error: KinstError,
) -> None:
    """Code of the boot is unmapped later; a machine that cannot be read is a different error."""

    class Unread(FakeSystem):
        def code(self, address: int, size: int) -> bytes:
            raise error

    kernel = RunningKernel(None, Unread(), load("amd64"))  # type: ignore[arg-type]
    if isinstance(error, UnmappedError):
        assert kernel.instructions(FUNCTIONS[0]) == ()
    else:
        with pytest.raises(TargetError, match="gone"):
            kernel.instructions(FUNCTIONS[0])
