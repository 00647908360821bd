"""The tree of a call from blocks that are written out here, as CPUs with and without a link
register execute them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kinst.core.machine import ExecutedBlock
from kinst.core.probe import Function
from kinst.views.call_tree import Call
from kinst.views.executed_call import CallRules, ExecutedCall

SIZE = 0x4000
STACK = 5 * SIZE
NAMES = ("root", "f", "g", "thunk", "tick", "handler")
FUNCTIONS = {0x1000 * (k + 1): Function("vmlinux", name, 0x1000 * (k + 1), 0x100)
             for k, name in enumerate(NAMES)}  # fmt: skip
AT = {one.name: one.address for one in FUNCTIONS.values()}


def followed(link: str, *blocks: ExecutedBlock) -> ExecutedCall:
    rules = CallRules(
        set(FUNCTIONS), lambda address: FUNCTIONS.get(address),
        lambda one: "it is a thunk" if one.name == "thunk" else "", {AT["tick"]},
        ("a0", "a1"), "result", link, SIZE,
    )  # fmt: skip
    call = ExecutedCall(FUNCTIONS[AT["root"]], rules)
    call.take(blocks)
    return call


def block(
    address: int, stack: int, registers: Mapping[str, int] | None = None, cpu: int = 0
) -> ExecutedBlock:
    values = {"a0": 0, "a1": 0, "result": 0, **(registers or {})}
    return ExecutedBlock(cpu, address, STACK + stack, values.__getitem__)


def shape(call: Call) -> str:
    """a(b c(d))"""
    inside = " ".join(map(shape, call.calls))
    return call.function[1] + (f"({inside})" if inside else "")


def shown(call: ExecutedCall) -> str:
    assert call.tree is not None
    return shape(call.tree.root)


# root calls f, which calls g; then root calls g.
X86 = (
    block(AT["g"], 0xE00),  # before the call
    block(AT["root"], 0x1000, {"a0": 7}), block(AT["root"] + 9, 0xF00),
    block(AT["f"], 0xEF8, {"a0": 1, "a1": 2}), block(AT["f"] + 8, 0xE00),
    block(AT["g"], 0xDF8, {"a0": 3}), block(AT["f"] + 20, 0xE00, {"result": 30}),
    block(AT["root"] + 30, 0xF00, {"result": 10}),
    block(AT["g"], 0xEF8, {"a0": 4}), block(AT["root"] + 40, 0xF00, {"result": 40}),
    block(0x99, 0x1008, {"result": 70}), block(AT["g"], 0xEF8),
)  # fmt: skip


def test_calls_are_within_one_another() -> None:
    call = followed("", *X86)
    assert call.is_over and shown(call) == "root(f(g) g)"
    assert call.tree is not None
    rows = [(one.arguments, one.result, one.returns_to) for one in call.tree.root.walk()]
    assert rows == [((7, 0), 70, 0x99), ((1, 2), 10, AT["root"] + 30),
                    ((3, 0), 30, AT["f"] + 20), ((4, 0), 40, AT["root"] + 40)]  # fmt: skip


def test_a_call_that_has_not_returned() -> None:
    for number in range(1, len(X86) - 2):
        assert not followed("", *X86[:number]).is_over
    assert followed("", X86[0]).tree is None


def test_calls_by_a_link_register() -> None:
    """A function without a frame of its own has its caller's stack pointer."""
    back, inside = {"ra": 0x99}, {"ra": AT["root"] + 30}
    call = followed(
        "ra", block(AT["root"], 0x1000, back), block(AT["f"], 0x1000, inside),
        block(AT["f"] + 8, 0x1000), block(AT["root"] + 30, 0x1000, {"result": 5}),
        block(AT["g"], 0xF00, {"ra": AT["root"] + 50}), block(AT["root"] + 50, 0xF00),
        block(0x99, 0x1000),
    )  # fmt: skip
    assert call.is_over and shown(call) == "root(f g)"
    assert call.tree is not None
    assert (call.tree.root.calls[0].result, call.tree.root.returns_to) == (5, 0x99)


def test_a_function_that_was_jumped_to_is_within_the_one_that_jumped() -> None:
    call = followed(
        "", block(AT["root"], 0x1000), block(AT["f"], 0xEF8), block(AT["g"], 0xEF8),
        block(AT["root"] + 9, 0xF00, {"result": 3}), block(0x99, 0x1008),
    )  # fmt: skip
    assert shown(call) == "root(f(g))" and call.tree is not None
    assert [one.returns_to for one in call.tree.root.walk()] == [
        0x99, AT["root"] + 9, AT["root"] + 9,
    ]  # fmt: skip


def test_a_block_once_more_is_no_call() -> None:
    """A loop to a function's first instruction, or a fault there."""
    again = block(AT["f"], 0xEF8)
    call = followed(
        "", block(AT["root"], 0x1000), again, again, again, block(AT["root"] + 9, 0xF00),
        block(0x99, 0x1008),
    )  # fmt: skip
    assert shown(call) == "root(f)"


def test_recursion() -> None:
    call = followed(
        "", block(AT["root"], 0x1000), block(AT["root"], 0xFF0), block(AT["root"] + 9, 0xFF8),
        block(AT["root"] + 9, 0x1001),
    )  # fmt: skip
    assert call.is_over and shown(call) == "root(root)"


def test_other_threads_do_not_count() -> None:
    other = block(AT["g"], 0xEF8 - SIZE), block(AT["g"], 0xEF8 + SIZE, cpu=1)
    one, *rest = X86[1:]
    assert shown(followed("", one, *other, *rest)) == "root(f(g) g)"


def test_what_is_left_out_is_counted_and_its_callees_are_shown() -> None:
    """A thunk that is called is counted; one that is jumped to is not."""
    call = followed(
        "", block(AT["root"], 0x1000), block(AT["thunk"], 0xEF8), block(AT["f"], 0xEF8),
        block(AT["thunk"], 0xEF8), block(AT["root"] + 9, 0xF00), block(0x99, 0x1008),
    )  # fmt: skip
    assert shown(call) == "root(f)"
    assert call.left_out == {("thunk", "it is a thunk"): 1}


@pytest.mark.parametrize("times", [1, 3])
def test_interrupts_are_left_out(times: int) -> None:
    interrupt = (
        block(AT["tick"], 0xD00), block(AT["handler"], 0xC00), block(AT["g"], 0xB00),
        block(AT["tick"] + 9, 0xD00), block(AT["f"] + 8, 0xE00),
    )  # fmt: skip
    call = followed("", *X86[:5], *interrupt * times, *X86[5:])
    assert call.is_over and shown(call) == "root(f(g) g)"
    assert call.tree is not None and call.tree.interrupted == times
