"""Trees of calls, from records that are written out here."""

from __future__ import annotations

from kinst.core.dtypes import VOID, EnumType, FunctionType, IntType, PointerType
from kinst.core.probe import Function
from kinst.core.source import InlinedCode, SourceFunction
from kinst.views.call_tracing import (
    arguments_text,
    declared_at,
    finding_program,
    result_text,
    value_of,
)
from kinst.views.call_tree import (
    Call,
    EntryRecord,
    ReturnRecord,
    build_tree,
    move_into_copies,
    tree_text,
)

Row = EntryRecord | ReturnRecord


def into(name: str, time: int, back: int, *arguments: int) -> Row:
    return EntryRecord(0, time, ("vmlinux", name), back, arguments)


def back(name: str, time: int, result: int = 0) -> Row:
    return ReturnRecord(0, time, ("vmlinux", name), False, result)


def jump(name: str, time: int) -> Row:
    return ReturnRecord(0, time, ("vmlinux", name), True, 0)


def shape(call: Call) -> str:
    """a(b c(d))"""
    inside = " ".join(map(shape, call.calls))
    mark = "*" if call.inlined else ""
    return call.function[1] + mark + (f"({inside})" if inside else "")


def built(*rows: Row) -> str:
    tree = build_tree(rows)
    assert tree is not None
    return shape(tree.root)


def test_calls_are_within_one_another() -> None:
    rows = [into("a", 1, 9), into("b", 2, 10), back("b", 3), into("c", 4, 11), into("d", 5, 12),
            back("d", 6), back("c", 7), back("a", 8)]  # fmt: skip
    assert built(*rows) == "a(b c(d))"


def test_a_function_that_was_jumped_to_is_within_the_one_that_jumped() -> None:
    rows = [into("a", 1, 9), into("b", 2, 10), jump("b", 3), into("c", 4, 10), back("c", 6, 7),
            into("d", 7, 11), back("d", 8), back("a", 9)]  # fmt: skip
    assert built(*rows) == "a(b(c) d)"
    tree = build_tree(rows)
    assert tree is not None
    jumped = tree.root.calls[0]
    assert (jumped.end, jumped.result, jumped.calls[0].end) == (6, 7, 6)


def test_a_jump_to_what_is_not_traced_ends_the_call_there() -> None:
    rows = [into("a", 1, 9), into("b", 2, 10), jump("b", 3), into("d", 7, 11), back("d", 8),
            back("a", 9)]  # fmt: skip
    assert built(*rows) == "a(b d)"
    tree = build_tree(rows)
    assert tree is not None and (tree.root.calls[0].end, tree.root.calls[0].result) == (3, None)


def test_recursion_and_a_second_call() -> None:
    rows = [into("a", 1, 9), into("a", 2, 10), back("a", 3, 1), back("a", 4, 2), into("a", 5, 9),
            into("b", 6, 11), back("b", 7), back("a", 8)]  # fmt: skip
    assert built(*rows) == "a(a)"


def test_returns_that_were_not_seen_are_counted() -> None:
    rows = [into("a", 1, 9), into("b", 2, 10), into("c", 3, 11), back("e", 4), back("a", 8)]
    tree = build_tree(rows)
    assert tree is not None and shape(tree.root) == "a(b(c))"
    assert tree.unmatched == {("vmlinux", n): 1 for n in "bce"}
    assert build_tree([]) is None


def by_interrupt(name: str, time: int, caller: str) -> Row:
    return EntryRecord(0, time, ("vmlinux", name), 90, (), ("vmlinux", caller))


def test_calls_by_interrupt_entry_and_exit_are_left_out() -> None:
    # As Linux does: the count that tells interrupts apart rises in irq_enter_rcu, so that its
    # return has no record, and falls in __irq_exit_rcu before that calls handle_softirqs.
    interrupt = [by_interrupt("irq_enter_rcu", 2, "sysvec_timer"),
                 by_interrupt("handle_softirqs", 3, "__irq_exit_rcu"), into("work", 4, 91),
                 back("work", 5), back("handle_softirqs", 6)]  # fmt: skip
    rows = [into("a", 1, 9), *interrupt, into("b", 7, 10), back("b", 8), *interrupt, back("a", 9)]
    tree = build_tree(rows)
    assert tree is not None and shape(tree.root) == "a(b)"
    assert tree.interrupted == 4 and not tree.unmatched


def test_a_call_of_interrupt_exit_itself_has_its_calls() -> None:
    rows = [into("__irq_exit_rcu", 1, 9), by_interrupt("handle_softirqs", 2, "__irq_exit_rcu"),
            back("handle_softirqs", 3), back("__irq_exit_rcu", 4)]  # fmt: skip
    assert built(*rows) == "__irq_exit_rcu(handle_softirqs)"


def test_a_jump_in_an_interrupt_is_left_out_with_what_it_leads_to() -> None:
    rows = [into("a", 1, 9), by_interrupt("b", 2, "sysvec_timer"), jump("b", 3),
            by_interrupt("c", 4, "sysvec_timer"), back("c", 5), into("d", 6, 10), back("d", 7),
            back("a", 8)]  # fmt: skip
    tree = build_tree(rows)
    assert tree is not None and shape(tree.root) == "a(d)" and not tree.unmatched


def test_calls_from_inlined_copies_are_in_those() -> None:
    outer = InlinedCode("outer", "f.c", 1, 100, ((100, 140),))
    inner = InlinedCode("inner", "f.c", 2, 110, ((110, 120),))
    part = SourceFunction(Function("a", 90, 100, "vmlinux"), "a", "f.c", 1, (), (inner, outer))
    rows = [into("a", 1, 9), into("b", 2, 96), back("b", 3), into("c", 4, 111), back("c", 5),
            into("d", 6, 120), back("d", 7), into("e", 8, 130), back("e", 9), into("f", 10, 150),
            back("f", 11), back("a", 12)]  # fmt: skip
    tree = build_tree(rows)
    assert tree is not None
    move_into_copies(tree.root, {("vmlinux", "a"): [part]})
    assert shape(tree.root) == "a(b outer*(inner*(c d) e) f)"


def test_text() -> None:
    rows = [into("a", 0, 9, 5), into("b", 500, 10), back("b", 1500, 7), back("a", 2_000_000, 3)]
    tree = build_tree(rows)
    assert tree is not None
    text = tree_text(tree.root, lambda c: ", ".join(map(str, c.arguments)), lambda c: str(c.result))
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "CPU FUNCTION", "0 -> a(5)", "0 -> b()", "0 <- b = 7 1 µs", "0 <- a = 3 2 ms",
    ]  # fmt: skip
    assert text.splitlines()[2].startswith("  0   -> b")


def test_functions_of_the_same_name_have_their_source_lines() -> None:
    function = Function("a@2", 90, 100, "vmlinux")
    parts = {("vmlinux", "a@2"): [SourceFunction(function, "a", "f.c", 7, (), ())]}
    assert declared_at(("vmlinux", "a@2"), parts) == "f.c:7"
    assert declared_at(("vmlinux", "a@1"), parts) == declared_at(("vmlinux", "a"), parts) == ""
    tree = build_tree([into("a@2", 0, 9, 5), back("a@2", 1, 0)])
    assert tree is not None
    text = tree_text(
        tree.root, lambda _: "", lambda _: "", lambda c: declared_at(c.function, parts)
    )
    assert "-> a@2() [f.c:7]\n" in text


def test_values_by_their_types() -> None:
    int32, uint64 = IntType(4, True, "int"), IntType(8, False, "uint64_t")
    colour = EnumType(4, False, "enum colour", values=(("RED", 1),))
    pointer = PointerType(int32)
    assert value_of(0xFFFFFF9C, int32) == "-100"
    assert value_of(0x1_0000_0005, int32) == "5"
    assert value_of(832, uint64) == "832"
    assert value_of(0xFFFF888000000000, uint64) == "0xffff888000000000"
    assert value_of(1, colour) == "RED"
    assert value_of(0xFFFFFFFFFFFFFFFE, pointer) == "-2"
    assert value_of(0, pointer) == "0x0"
    prototype = FunctionType(VOID, (int32, pointer), True)
    assert arguments_text((1, 2, 3), prototype) == "1, 0x2, ..."
    assert arguments_text((1,), None) == "" and result_text(1, prototype) == ""
    assert result_text(1, FunctionType(int32, ())) == "1" and result_text(None, prototype) == ""


def test_the_program_that_finds_functions() -> None:
    text = finding_program(("vmlinux", "vfs_read"), "pid == 1", whole=False)
    assert "fbt:vmlinux:vfs_read:entry" in text and "(pid == 1)" in text and "exit(0);" in text
    assert "exit" not in finding_program(("", "vfs_read"), "", whole=True)
