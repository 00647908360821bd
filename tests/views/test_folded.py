"""Folded stacks and flame graphs: totals are those of the aggregation, and each box is as wide as
its values."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.errors import KinstError
from kinst.events import Aggregation, Frame, Key, Stack
from kinst.views.flame import NARROWEST, flame_svg
from kinst.views.folded import FoldedStack, fold, folded_text, stacks_of
from kinst.views.picture import Heading

READ = Frame(0x100, "vmlinux", "vfs_read", 16, "fs/read_write.c", 450)
INLINE = Frame(0x200, "vmlinux", "do_syscall_x64", inlined=True)
CALL = Frame(0x200, "vmlinux", "do_syscall_64", 93)
MODULE = Frame(0x300, "ext4", "ext4_readdir", 4)
NAMELESS = Frame(0xABC)


def counted(rows: dict[Key, int], keys: tuple[str, ...], function: str = "count") -> Aggregation:
    return Aggregation("", function, keys, rows)


def test_outermost_first_and_inlined_frames_are_marked() -> None:
    stack = Stack("kernel", (READ, INLINE, CALL))
    text = folded_text(fold(counted({(stack,): 7}, ("stack",))))
    assert text == "do_syscall_64;do_syscall_x64_[i];vfs_read 7\n"


def test_other_keys_come_below_and_both_kinds_of_stack_are_told_apart() -> None:
    user = Stack("user", (Frame(0x1, "a.out", "main"),), 12)
    kernel = Stack("kernel", (MODULE, NAMELESS))
    rows: dict[Key, int] = {(kernel, "a;b", user): 3}
    text = folded_text(fold(counted(rows, ("stack", "string", "stack"), "sum")))
    assert text == "a:b;a.out`main;0xabc_[k];ext4`ext4_readdir_[k] 3\n"


def test_stacks_that_differ_by_address_alone_are_one() -> None:
    first = Stack("kernel", (READ,))
    second = Stack("kernel", (Frame(0x108, "vmlinux", "vfs_read", 24),))
    assert fold(counted({(first,): 2, (second,): 3}, ("stack",))) == (
        FoldedStack(("vfs_read",), 5),
    )


def test_which_aggregation() -> None:
    a = Aggregation("a", "count", ("stack",), {(Stack("kernel", (READ,)),): 1})
    b = Aggregation("b", "max", ("stack",), {(Stack("kernel", (READ,)),): 1})
    plain = Aggregation("c", "count", ("string",), {("x",): 1})
    assert stacks_of([plain, a]) is stacks_of([a, b], "@a") is stacks_of([a, b], "a") is a
    for wrong, name, said in (
        ([plain], "", "no aggregation has stacks"),
        ([a, b], "", "2 aggregations have stacks"),
        ([a, b], "c", "no aggregation @c with stacks"),
        ([b], "", "do not add up"),
    ):
        with pytest.raises(KinstError, match=said):
            stacks_of(wrong, name)


COUNTS = Aggregation("", "count", ("stack",), {})
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
    narrow = NARROWEST * whole / 100

    root = ElementTree.fromstring(flame_svg(stacks, Heading("a < b & c"), COUNTS).encode())
    boxes = root.findall(".//{*}g[@data-n]")
    totals = sorted(int(box.attrib["data-w"]) for box in boxes)
    assert totals == sorted(total for total in prefixes.values() if total >= narrow)
    for box in boxes:
        rect = box.find("{*}rect")
        assert rect is not None
        drawn = float(rect.attrib["width"].rstrip("%")) / 100
        assert drawn == pytest.approx(int(box.attrib["data-w"]) / whole, abs=1e-4)
    text = "".join(root.itertext())
    assert "a < b & c" in text and f"n = {whole:,}" in text


def legend(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg.encode())
    found = root.findall("{*}g[@id='legend']/{*}text")
    return ["".join(one.itertext()).removeprefix(one[0].text or "") for one in found]


def test_the_legend_has_the_kinds_of_frames_that_there_are() -> None:
    plain = FoldedStack(("a", "b"), 1)
    both = FoldedStack(("main", "sys_[k]", "copy_[i]"), 1)
    assert legend(flame_svg([plain], Heading(""), COUNTS)) == ["function"]
    assert legend(flame_svg([both], Heading(""), COUNTS)) == [
        "function", "kernel", "inlined",
    ]  # fmt: skip
    assert 'class="inlined t' in flame_svg([both], Heading(""), COUNTS)


def test_what_was_measured_stands_above() -> None:
    table = Aggregation("", "sum", ("stack",), {}, "timestamp - t", "ns", ("stack()",))
    svg = flame_svg([FoldedStack(("a",), 1_500_000)], Heading("ls -l", "BEGIN", ["Linux 6"]), table)
    text = " ".join(ElementTree.fromstring(svg.encode()).itertext())
    assert "ls -l" in text and "BEGIN" in text and "a (1.5 ms, 100.00%)" in text
    assert "sum(timestamp - t) = 1.5 ms · by stack() · Linux 6" in text


def test_siblings_do_not_overlap() -> None:
    stacks = [FoldedStack(("a", "b"), 3), FoldedStack(("a", "c"), 5), FoldedStack(("d",), 2)]
    root = ElementTree.fromstring(flame_svg(stacks, Heading(""), COUNTS).encode())
    found = {}
    for box in root.findall(".//{*}g[@data-n]"):
        start, size = int(box.attrib["data-x"]), int(box.attrib["data-w"])
        found[box.attrib["data-n"]] = (start, start + size)
    assert found == {"all": (0, 10), "a": (0, 8), "b": (0, 3), "c": (3, 8), "d": (8, 10)}
