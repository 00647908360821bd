"""Messages about a trace without output, by its state."""

from __future__ import annotations

import pytest

from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core.probe import ProbeName
from kinst.dlang.api import compile_text, parse_text
from kinst.session.silence import (
    SilentTrace,
    has_predicates,
    message_at_end,
    message_while_silent,
    records_under_predicates,
)

Silent = SilentTrace
# No hit of the sites need leave a record: each clause has a predicate.
UNTRUE = {"each_hit_records": False, "records_under_predicates": True}


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            Silent(1, False, False, True),
            "1 instruction is planted, and none has run for 2 s: it was planted after the guest's",
        ),
        (
            Silent(75, False, False, True),
            "they were planted after the guest's boot, and the guest is idle; -c or --shell gives"
            " it work, --boot traces its boot",
        ),
        (
            Silent(75, False, False, False),
            "75 instructions are planted, and none has run for 2 s: noth",
        ),
        (Silent(75, False, True, True, "do_syslog"), "the command waits in do_syslog()"),
        (Silent(75, False, True, True), "none has run for 2 s: the command has not come to them"),
        (Silent(1, False, True, False), "none has run for 2 s: the command has not come to it"),
        (
            Silent(75, False, False, True, each_hit_records=False),
            "75 instructions are planted, and no clause has recorded anything for 2 s: they were",
        ),
        (
            Silent(75, True, False, True),
            "probes fire; aggregations are printed when the trace ends",
        ),
    ],
)
def test_what_is_said(trace: SilentTrace, said: str) -> None:
    assert said in message_while_silent(trace)


@pytest.mark.parametrize(
    "trace",
    [
        Silent(0, False, False, True),  # BEGIN and tick alone
        Silent(75, False, True, True, each_hit_records=False),  # a predicate may wait
        Silent(75, True, True, True),  # its end prints aggregations
    ],
)
def test_nothing_to_say(trace: SilentTrace) -> None:
    assert not message_while_silent(trace)


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (Silent(1, False, True, True), "no probe fired: 1 instruction was planted while the comm"),
        (Silent(75, False, False, False), "75 instructions were planted while the trace ran"),
        (
            Silent(1, False, False, True),
            "planted while the trace ran, after the guest's boot (--boot traces its boot)",
        ),
        (Silent(75, False, True, True, each_hit_records=False), ""),
        (
            Silent(75, False, True, True, **UNTRUE),
            "kinst: nothing was recorded: 75 instructions were planted, and no probe fired, or no",
        ),
        (
            Silent(1, False, True, True, **UNTRUE, has_predicates=False),
            "1 instruction was planted, and no probe whose clauses record anything fired",
        ),
        (Silent(75, True, True, True, **UNTRUE), ""),
        (Silent(75, True, True, True), ""),
        (Silent(0, False, False, True), ""),
    ],
)
def test_the_end_of_a_silent_trace(trace: SilentTrace, said: str) -> None:
    assert said in message_at_end(trace)
    assert bool(said) == bool(message_at_end(trace))


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("kinst::f:5 /pid == 1/ { @ = count(); }", True),
        ("kinst::f:5 { @ = count(); }", False),
        ("kinst::f:5 /pid == 1/ { @ = count(); } tick-1s { clear(@); }", False),
        ("kinst::f:5 /pid == 1/ { @ = count(); } tick-1s { trunc(@); }", False),
    ],
)
def test_predicates_may_never_have_been_true(text: str, known: bool) -> None:
    _, program = compile_text(text, "test")
    clauses = tuple(range(len(program.clauses)))
    name = ProbeName("kinst", "vmlinux", "f", "5")
    layout = lay_out_program(program, [(name, 5, clauses)], 256, 1 << 20)
    assert records_under_predicates(program, layout, [(0,)]) == known


@pytest.mark.parametrize(
    ("predicate", "written"), [("", False), ("/pid != 7/", False), ("/pid/", True)]
)
def test_predicates_of_the_user(predicate: str, written: bool) -> None:
    program = parse_text(f"fbt::vfs_read:entry {predicate} {{ trace(1); }}", "t.d")
    assert has_predicates(program, 7) == written
