"""Stacks and symbols as text.  Expected output: libdtrace's dt_print_stack() and dt_print_sym()
as the Dynamic Tracing Guide shows them ("stack()", "sym()")."""

from __future__ import annotations

import struct
from dataclasses import replace

from kinst.consumer.convert import Spec
from kinst.consumer.symbols import Names, Process, ResolvedSymbol
from kinst.core.dtypes import StackType, SymbolType
from kinst.render.dtrace.symbols import SymbolText

FUNCTIONS = {0x1000: ("vmlinux", "inner"), 0x2000: ("vmlinux", "outer"), 0x3000: ("ext4", "far")}


def kernel(address: int) -> ResolvedSymbol | None:
    start = address & ~0xFFF
    return ResolvedSymbol(*FUNCTIONS[start], start) if start in FUNCTIONS else None


def user(process: Process, address: int) -> ResolvedSymbol | None:
    if address == 0x400000:
        return ResolvedSymbol(f"{process.program}{process.pid}", "", 0)
    return ResolvedSymbol(process.program, "main", 0x600000) if address >> 12 == 0x600 else None


NAMES = SymbolText(Names(kernel, user))


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def process(pid: int) -> bytes:
    """Return the words before data about a process."""
    return words(pid, 0x400000) + b"program\0".ljust(32, b"x")


def test_a_stack_ends_at_the_first_zero() -> None:
    text = NAMES.data(words(0x1000, 0x2013, 0x9999, 0, 0x3000), StackType(5))
    assert text == (
        "\n              vmlinux`inner\n              vmlinux`outer+0x13\n              0x9999\n"
    )


def test_a_full_and_an_empty_stack() -> None:
    assert NAMES.data(words(0x3001), StackType(1)) == "\n              ext4`far+0x1\n"
    assert NAMES.data(words(0, 0), StackType(2)) == "\n"


def test_inlined_functions_stand_above_their_frame() -> None:
    """The second frame is a return address: the copy that called ends just before it."""
    asked = []

    def copies(address: int) -> list[str]:
        asked.append(address)
        return ["deep", "shallow"] if address == 0x2012 else []

    text = SymbolText(Names(kernel, user, copies), indent=2).data(
        words(0x1004, 0x2013), StackType(2)
    )
    assert asked == [0x1004, 0x2012]
    assert text.splitlines() == [
        "",
        "  vmlinux`inner+0x4",
        "  vmlinux`deep (inlined)",
        "  vmlinux`shallow (inlined)",
        "  vmlinux`outer+0x13",
    ]


def test_a_user_stack_begins_with_the_process() -> None:
    text = NAMES.data(process(7) + words(0x400000, 0x500000, 0), StackType(3, True))
    assert text == "\n              program7`0x400000\n              0x500000\n"


def test_symbols_take_fifty_columns() -> None:
    for kind, shown in (("sym", "vmlinux`outer"), ("func", "vmlinux`outer"), ("mod", "vmlinux")):
        assert NAMES.data(words(0x2013), SymbolType(kind)) == "  " + shown.ljust(50)
    assert NAMES.data(words(5), SymbolType("mod")).rstrip() == "  0x5"
    assert NAMES.data(process(7) + words(0x400000), SymbolType("umod")).rstrip() == "  program7"
    assert NAMES.data(process(7) + words(5), SymbolType("uaddr")).rstrip() == "  0x5"


def test_a_call_that_does_not_return_is_its_callers() -> None:
    """After it another function begins, or none."""
    assert NAMES.data(words(0x1800, 0x2000, 0x4000), StackType(3)).split() == [
        "vmlinux`inner+0x800",
        "vmlinux`inner+0x1000",
        "ext4`far+0x1000",
    ]


def test_keys_that_are_shown_alike_are_one() -> None:
    """dt_aggregate_sym(), dt_aggregate_usym() and dt_aggregate_mod() join keys; uaddr() tells
    addresses apart."""
    names = Names(lambda a: replace(s, base=0x1000) if (s := kernel(a)) else None, user)
    text = SymbolText(names)
    for kind in ("sym", "func", "mod"):
        one, other = (names.merged(words(a), SymbolType(kind)) for a in (0x2004, 0x2FFF))
        assert one == other and text.data(one, SymbolType(kind)).split()[0].startswith("vmlinux")
    assert names.merged(words(0x1001), SymbolType("mod")) == names.merged(
        words(0x2002), SymbolType("mod")
    )
    assert names.merged(words(0x1001), SymbolType("sym")) != names.merged(
        words(0x2002), SymbolType("sym")
    )
    assert names.merged(words(0x9001), SymbolType("sym")) == words(0x9001)
    for kind, same in (("usym", True), ("ufunc", True), ("uaddr", False)):
        one, other = (
            names.merged(process(7) + words(a), SymbolType(kind)) for a in (0x600004, 0x600008)
        )
        assert (one == other) is same
        assert text.data(one, SymbolType(kind)).split() == [
            "program`main" if same else "program`main+0x4"
        ]


def test_conversions() -> None:
    spec = Spec("k", "-", 4, None, False)
    assert NAMES.formatted(words(0x1000), StackType(1), spec) == "\n    vmlinux`inner\n"
    spec = Spec("a", "", 20, None, False)
    assert NAMES.formatted(words(0x1001), SymbolType("sym"), spec) == "vmlinux`inner".rjust(20)
