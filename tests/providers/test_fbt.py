"""fbt: where a function is entered and left, and its arguments there."""

from __future__ import annotations

import pytest

from kinst.core.dtypes import CHAR, INT, INT64, DType, FunctionType, VoidType
from kinst.core.errors import AbsentError, KinstError
from kinst.core.kernel import Found
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE, ARGUMENT_SLOT, ARGUMENT_STACK
from kinst.core.probe import Argument, ProbePattern
from kinst.providers.fbt import PROVIDER
from tests.fake_kernel import ISA, FakeKernel

NOP = "0f1f440000"
KERNEL = FakeKernel(
    [
        ("plain", 0x1000, [NOP, "85c0", "74 >out/8", "90", "c3", "out:", "c3"]),
        ("thunked", 0x1100, [NOP, "e9 >0x9000/32"]),
        ("tail", 0x1200, [NOP, "85c0", "0f84 >0x1000/32", "e9 >0x1100/32"]),
        ("again", 0x1300, [NOP, "85c0", "74 >0x1300/8", "c3"]),
        ("landing", 0x1400, ["f30f1efa", NOP, "c3"]),
        ("indirect", 0x1500, [NOP, "ffe0"]),
        ("split", 0x1600, [NOP, "85c0", "0f84 >0x1700/32", "back:", "c3"]),
        ("split.cold", 0x1700, ["90", "7402", "eb02", "90", "90", "e9 >0x1100/32"]),
        ("dies", 0x1800, [NOP, "e8 >0x1000/32"]),
        ("runs_on", 0x1900, ["90", "90"]),
        ("__x86_return_thunk", 0x9000, ["c3"]),
    ]
)
SLOT = {r.gdb_name: r.slot for r in ISA.registers}


def match(function: str, name: str, module: str = "") -> list[Found]:
    return list(PROVIDER.match(ProbePattern("fbt", module, function, name), KERNEL))


def returns(function: str) -> list[tuple[int, str, bool]]:
    """Return (address, condition, whether the result is known) of each site."""
    found = match(function, "return")
    assert {str(f.name) for f in found} == {f"fbt:vmlinux:{function}:return"}
    start = KERNEL.labels[function]
    for one in found:
        assert one.site is not None
        assert one.arguments[0] == Argument(ARGUMENT_CONSTANT, one.site.address - start)
        assert one.arguments[1] in (
            Argument(ARGUMENT_SLOT, SLOT["rax"]), Argument(ARGUMENT_NONE),
        )  # fmt: skip
    return [
        (f.site.address, f.condition, f.arguments[1].kind == ARGUMENT_SLOT)
        for f in found
        if f.site is not None
    ]


def test_entry_and_its_arguments() -> None:
    (found,) = match("plain", "entry")
    assert str(found.name) == "fbt:vmlinux:plain:entry" and found.site is not None
    assert (found.site.address, found.site.code.hex()) == (0x1000, NOP)
    registers = [SLOT[n] for n in ("rdi", "rsi", "rdx", "rcx", "r8", "r9")]
    # System V ABI 3.2.3: the seventh is above the return address.
    assert found.arguments == (
        *(Argument(ARGUMENT_SLOT, slot) for slot in registers),
        *(Argument(ARGUMENT_STACK, at) for at in (8, 16, 24, 32)),
    )


def test_a_landing_pad_is_passed_over() -> None:
    (found,) = match("landing", "entry")
    assert found.site is not None and found.site.offset == 4


def entry(lines: list[str], *left: int) -> int:
    """Return the offset of the entry probe of a function with these lines.

    Code at some offsets is left to the kernel's own tracer.
    """
    kernel = FakeKernel([("f", 0x1000, lines)], call_sites=[0x1000 + at for at in left])
    (found,) = PROVIDER.match(ProbePattern("fbt", "", "f", "entry"), kernel)
    assert found.site is not None
    return found.site.offset


def test_a_call_site_that_is_left_alone_is_passed_over() -> None:
    assert entry([NOP, "85c0", "c3"]) == 0
    assert entry([NOP, "85c0", "c3"], 0) == 5
    assert entry(["f30f1efa", NOP, "85c0", "c3"], 4) == 9
    assert entry(["90", "90", "85c0", "c3"], 0, 1) == 2  # of two instructions
    # The instruction after it can also be reached from within: then the call site itself is meant,
    # which is refused.
    assert entry([NOP, "loop:", "ffc8", "75 >loop/8", "c3"], 0) == 0
    assert entry([NOP, "ffc8", "on:", "75 >on/8", "c3"], 0) == 5
    assert entry([NOP], 0) == 0


def test_a_jump_to_a_call_site_that_is_left_alone_is_a_call() -> None:
    lines = ["start:", NOP, "85c0", "74 >start/8", "c3"]
    kernel = FakeKernel([("f", 0x1000, lines)], call_sites=[0x1000])
    found = PROVIDER.match(ProbePattern("fbt", "", "f", "return"), kernel)
    assert [(one.site.offset, one.condition) for one in found if one.site] == [(7, ZERO), (9, "")]


ZERO = "(regs[R_RFL] & 0x40) != 0"


def test_ways_out() -> None:
    assert returns("plain") == [(0x100A, "", True), (0x100B, "", True)]
    assert returns("thunked") == [(0x1105, "", True)]
    # Tail calls: when taken, and without a result.
    assert returns("tail") == [(0x1207, ZERO, False), (0x120D, "", False)]
    # A jump to its own start is a call of itself.
    assert returns("again") == [(0x1307, ZERO, False), (0x1309, "", True)]
    assert returns("indirect") == [
        (0x1505, "(regs[R_RAX] < 0x1500 || regs[R_RAX] >= 0x1507)", False)
    ]
    assert returns("split") == [(0x160D, "", True), (0x1707, "", False)]
    assert returns("landing") == [(0x1409, "", True)]
    assert returns("runs_on") == [(0x1901, "", False)]
    assert match("dies", "return") == []


def test_globs() -> None:
    names = {str(f.name) for f in match("*l*", "entry")}
    assert names == {f"fbt:vmlinux:{n}:entry" for n in ("plain", "tail", "landing", "split")}
    assert {f.name.name for f in match("plain", "")} == {"entry", "return"}
    assert match("no_*", "entry") == []
    assert match("plain", "12") == []  # as any name without a match: D_PDESC_ZERO, or -Z
    every = {str(f.name) for f in match("", "entry")}
    # Not the second parts of functions.
    assert every == {f"fbt:vmlinux:{f.name}:entry" for f in KERNEL.find("", "*") if f.size} - {
        "fbt:vmlinux:split.cold:entry"
    }
    assert match("", "entry", module="vmlinux") == match("", "entry")
    assert match("", "entry", module="other") == []


def test_errors() -> None:
    with pytest.raises(KinstError, match='no function named "plane"'):
        match("plane", "entry")


class Types:
    """A kernel's types with two functions."""

    def function(self, name: str, module: str = "") -> FunctionType | None:
        results: dict[str, DType] = {"gives": INT64, "silent": VoidType()}
        return FunctionType(results[name], (CHAR, INT)) if name in results else None


def test_types_of_arguments() -> None:
    """The Guide, "args[]": the function's own for entry, the offset and the result for return.

    Descriptions that name more than one function have none.
    """

    def types(function: str, name: str, provider: str = "fbt", module: str = "") -> object:
        pattern = ProbePattern(provider, module, function, name)
        return PROVIDER.argument_types(pattern, Types())  # type: ignore[arg-type]

    assert types("gives", "entry") == (CHAR, INT)
    assert types("gives@2", "entry") == (CHAR, INT)
    assert types("gives", "return") == (INT, INT64)
    assert types("silent", "return") == (INT,)
    assert types("gi*", "entry") is None and types("gives", "entry", module="a*") is None
    assert types("gives", "4") is None and types("gives", "entry", "kinst") is None
    assert types("", "entry") is None
    with pytest.raises(KinstError, match="no function none"):
        types("none", "entry")
    with pytest.raises(KinstError, match=r"made gives\.isra\.0 of gives and may .*parameters"):
        types("gives.isra.0", "entry")


def test_the_provider_may_be_left_out() -> None:
    """-n vfs_read:entry, -f 'vfs_*', -m vmlinux and -n entry, as with dtrace(1)."""

    def found(function: str, name: str, module: str = "") -> set[str]:
        pattern = ProbePattern("", module, function, name)
        return {str(f.name) for f in PROVIDER.match(pattern, KERNEL)}

    both = {"fbt:vmlinux:plain:entry", "fbt:vmlinux:plain:return"}
    assert found("plain", "entry") | found("plain", "return") == found("plain", "") == both
    assert found("pl*", "") == both
    assert found("", "entry") == {str(f.name) for f in match("", "entry")}
    assert found("", "", "vmlinux") == found("", "*") == found("", "entry") | found("", "return")
    # A name that fbt does not have belongs to another provider; ":::" needs no kernel.
    assert found("plain", "4") == found("", "tick-1s") == found("", "") == set()
    with pytest.raises(AbsentError, match="no function named"):
        found("plane", "entry")
