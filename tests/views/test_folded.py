"""Folded stacks and flame graphs: totals are those of the aggregation, and each box is as wide as
what is in it."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.errors import KinstError
from kinst.events import Aggregation, Frame, Key, Stack
from kinst.views.flame import NARROWEST, WIDTH, flame_svg
from kinst.views.folded import FoldedStack, fold, folded_text

READ = Frame(0x100, "vmlinux", "vfs_read", 16, "fs/read_write.c", 450)
INLINE = Frame(0x200, "vmlinux", "do_syscall_x64", inlined=True)
CALL = Frame(0x200, "vmlinux", "do_syscall_64", 93)
MODULE = Frame(0x300, "ext4", "ext4_readdir", 4)
NAMELESS = Frame(0xABC)


def counted(rows: dict[Key, int], keys: tuple[str, ...], function: str = "count") -> Aggregation:
    return Aggregation("", function, keys, rows)


def test_outermost_first_and_inlined_frames_are_marked() -> None:
    stack = Stack("kernel", (READ, INLINE, CALL))
    text = folded_text(fold([counted({(stack,): 7}, ("stack",))]))
    assert text == "do_syscall_64;do_syscall_x64_[i];vfs_read 7\n"


def test_other_keys_come_below_and_both_kinds_of_stack_are_told_apart() -> None:
    user = Stack("user", (Frame(0x1, "a.out", "main"),), 12)
    kernel = Stack("kernel", (MODULE, NAMELESS))
    rows: dict[Key, int] = {(kernel, "a;b", user): 3}
    text = folded_text(fold([counted(rows, ("stack", "string", "stack"), "sum")]))
    assert text == "a:b;a.out`main;0xabc_[k];ext4`ext4_readdir_[k] 3\n"


def test_stacks_that_differ_by_address_alone_are_one() -> None:
    first = Stack("kernel", (READ,))
    second = Stack("kernel", (Frame(0x108, "vmlinux", "vfs_read", 24),))
    assert fold([counted({(first,): 2, (second,): 3}, ("stack",))]) == (
        FoldedStack(("vfs_read",), 5),
    )


def test_which_aggregation() -> None:
    a = Aggregation("a", "count", ("stack",), {(Stack("kernel", (READ,)),): 1})
    b = Aggregation("b", "max", ("stack",), {(Stack("kernel", (READ,)),): 1})
    plain = Aggregation("c", "count", ("string",), {("x",): 1})
    assert fold([plain, a]) == fold([a, b], "@a") == fold([a, b], "a")
    for wrong, name, said in (
        ([plain], "", "no aggregation has stacks"),
        ([a, b], "", "2 aggregations have stacks"),
        ([a, b], "c", "no aggregation @c with stacks"),
        ([b], "", "do not add up"),
    ):
        with pytest.raises(KinstError, match=said):
            fold(wrong, name)


FRAMES = st.lists(st.sampled_from(["a", "b", "c", "<&>", 'd"']), min_size=1, max_size=6)
STACKS = st.lists(
    st.builds(FoldedStack, FRAMES.map(tuple), st.integers(1, 1000)), min_size=1, max_size=30
)


@given(STACKS)
def test_boxes_are_as_wide_as_what_was_seen_in_them(stacks: list[FoldedStack]) -> None:
    """Against sums over all prefixes, from the stacks themselves."""
    prefixes: Counter[tuple[str, ...]] = Counter()
    for stack in stacks:
        for depth in range(len(stack.frames) + 1):
            prefixes[stack.frames[:depth]] += stack.value
    whole = prefixes[()]
    narrow = NARROWEST * whole / (WIDTH - 20)

    root = ElementTree.fromstring(flame_svg(stacks, "a < b & c", "seen").encode())
    boxes = root.findall(".//{*}g[@data-n]")
    totals = sorted(int(box.attrib["data-w"]) for box in boxes)
    assert totals == sorted(total for total in prefixes.values() if total >= narrow)
    for box in boxes:
        rect = box.find("{*}rect")
        assert rect is not None
        drawn = float(rect.attrib["width"]) / (WIDTH - 20)
        assert drawn == pytest.approx(int(box.attrib["data-w"]) / whole, abs=1e-3)
    assert root.find("{*}text[@id='title']").text == "a < b & c"  # type: ignore[union-attr]


def test_siblings_do_not_overlap() -> None:
    stacks = [FoldedStack(("a", "b"), 3), FoldedStack(("a", "c"), 5), FoldedStack(("d",), 2)]
    root = ElementTree.fromstring(flame_svg(stacks, "", "seen").encode())
    found = {}
    for box in root.findall(".//{*}g[@data-n]"):
        start, size = int(box.attrib["data-x"]), int(box.attrib["data-w"])
        found[box.attrib["data-n"]] = (start, start + size)
    assert found == {"all": (0, 10), "a": (0, 8), "b": (0, 3), "c": (3, 8), "d": (8, 10)}
