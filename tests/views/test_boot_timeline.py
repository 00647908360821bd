"""Parts of a boot from records: nested, in several threads, left without a return."""

from __future__ import annotations

from kinst.core.probe import Probe, ProbeName
from kinst.events import Frame, Record, Value
from kinst.views.boot_timeline import (
    BootPart,
    parts_of,
    program_of,
    slowest_text,
    timeline_svg,
)
from kinst.views.picture import Heading


def record(at: int, probe: str, thread: int, called: str = "") -> Record:
    function, _, name = probe.partition(":")
    values = [Value("tid", "pid_t", thread)]
    if called:
        values.append(Value("arg0", "uint64_t", Frame(0x1000, "vmlinux", called)))
    return Record(Probe(1, ProbeName("fbt", "vmlinux", function, name)), 0, at, 0, tuple(values))


RECORDS = [
    record(500, "setup:entry", 0),
    record(700, "setup:return", 0),
    record(1_000_500, "call:entry", 1, "first_init"),
    record(1_200_500, "call:entry", 7, "of_module"),
    record(1_300_500, "call:entry", 1, "inner_init"),
    record(2_300_500, "call:return", 1),
    record(4_000_500, "call:return", 1),
    record(5_000_500, "call:entry", 1, "last_init"),
    record(6_000_500, "call:return", 1),
]


def test_parts_are_nested_by_thread_and_begin_at_the_first_record() -> None:
    """A part that has not returned ends with the last record."""
    assert parts_of(RECORDS) == [
        BootPart("setup", 0, 0, 200, 0),
        BootPart("first_init", 1, 1_000_000, 4_000_000, 0),
        BootPart("of_module", 7, 1_200_000, 6_000_000, 0),
        BootPart("inner_init", 1, 1_300_000, 2_300_000, 1),
        BootPart("last_init", 1, 5_000_000, 6_000_000, 0),
    ]


def test_a_return_ends_the_parts_that_were_left_by_a_jump() -> None:
    records = [record(0, "a:entry", 1), record(10, "b:entry", 1), record(30, "a:return", 1)]
    assert parts_of(records) == [BootPart("a", 1, 0, 30, 0), BootPart("b", 1, 10, 30, 1)]


def test_nothing_was_traced() -> None:
    assert parts_of([]) == []
    assert "0 calls" in timeline_svg([], Heading("none"), 0)


def test_the_table_has_the_slowest_first() -> None:
    lines = slowest_text(parts_of(RECORDS), 1_000_000).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [
        "of_module", "first_init", "inner_init", "last_init",
    ]  # fmt: skip
    assert lines[1].split()[:4] == ["4.8", "ms", "1.2", "ms"]


def test_the_picture_has_a_bar_for_each_part_that_is_long_enough() -> None:
    svg = timeline_svg(parts_of(RECORDS), Heading("Boot"), 1_000_000)
    assert svg.count('class="part d') == 4 and svg.count('class="part d1"') == 1
    assert "5 calls in 6 ms" in svg and "1 of less than 1 ms not shown" in svg
    assert "inner_init: 1 ms, from 1.3 ms on, thread 1" in svg


def test_the_program_names_each_function() -> None:
    text = program_of(["call"], ["setup", "other"])
    assert text.count("fbt::setup:") == 2 and "fbt::call:entry\n{ trace(tid); sym(arg0); }" in text
