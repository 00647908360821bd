"""-x fail: the exit status of a trace in which something happened that must not."""

from __future__ import annotations

import pytest

import kinst
from kinst.cli import command
from kinst.core.endings import DROPS, ERRORS, HANG, OOPS, PANIC, STATUS_OF, WARN
from kinst.dlang.vocabulary.d_options import Options
from kinst.errors import GoneError
from kinst.events import End, Lost, Message, Output
from kinst.session.fail_option import FailOption

# No timer: its firings may be missed on a busy machine, which are drops.
FAULT = "BEGIN { @ = count(); trace(*(int *)8); } BEGIN { exit(3); }"
LOST = Lost("record", 5, 0, "5 drops")


def test_the_documented_numbers() -> None:
    """docs/kinst.1, EXIT STATUS; tests/test_docs.py compares the page with these names."""
    assert (PANIC, HANG, OOPS, WARN, ERRORS, DROPS) == (110, 111, 112, 113, 114, 115)


@pytest.mark.parametrize(
    ("fail", "status"), [("", 0), ("drops", 115), ("warn", 113), ("all", 112), ("none", 0),
                         ("drops,warn", 113), ("hang,errors", 0)],
)  # fmt: skip
def test_the_worst_that_was_asked_for_counts(fail: str, status: int) -> None:
    judge = FailOption(Options().with_option("fail", fail).fail if fail else "")
    seen = (LOST, Output(b"Oops: "), Message("said", "oops"), Message("said", "warn"), Message("x"))
    for event in seen:
        judge.see(event)
    found, why = judge.verdict(End("command", 0))
    assert found == status
    assert (why != "") == (status != 0) and (not why or f"exit status {status}: " in why)


def test_what_ended_the_trace_counts_more() -> None:
    judge = FailOption("drops")
    judge.see(LOST)
    assert judge.verdict(End("panic", PANIC, "the guest is gone")) == (PANIC, "")
    assert judge.verdict(End("exit", 7))[0] == DROPS


@pytest.mark.parametrize(("kind", "status"), [("panic", 110), ("hang", 111), ("", 1)])
def test_a_guest_that_is_gone(kind: str, status: int) -> None:
    assert GoneError("the guest is gone", kind).status == status


@pytest.mark.parametrize(
    ("words", "status"),
    [([], 3), (["-x", "fail=drops"], 3), (["-x", "fail=errors"], 114), (["-x", "fail=all"], 114)],
)
def test_the_command(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A clause faults; exit() has its own status if fail has none."""
    assert command.main(["-q", *words, "-n", FAULT]) == status
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (2 if status == 114 else 1)
    if status == 114:
        assert said[1] == "kinst: exit status 114: an action failed (fail=errors)"


def test_a_program_may_say_it_itself() -> None:
    with kinst.host() as machine:
        result = machine.run(f"#pragma D option fail=errors,drops\n{FAULT}")
        assert (result.status, result.reason) == (ERRORS, "exit")
        assert result.messages == ("kinst: exit status 114: an action failed (fail=errors)",)


@pytest.mark.parametrize("value", ["", "=", "=drop", "=drops,", "=all,drops"])
def test_what_fail_takes(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["-x", f"fail{value}", "-n", "BEGIN { exit(0); }"]) == 1
    assert f"{', '.join(STATUS_OF)}, with commas; all or none" in capsys.readouterr().err
