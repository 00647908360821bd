"""Messages about the end of a trace: by its time limit, or since the guest lacks the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.api import Request
from kinst.cli import command
from kinst.cli.ending import ending_text
from kinst.cli.options import parse
from kinst.events import End


def request_of(*words: str) -> Request:
    return parse(["-n", "fbt::vfs_read:entry", *words]).request


def test_a_timeout_is_told() -> None:
    limited = request_of("-c", "sleep 9", "--timeout", "4")
    assert ending_text(End("command", 0), limited) == ""
    assert ending_text(End("interrupted", 0), limited) == ""
    assert ending_text(End("timeout", 124), limited) == (
        "kinst: the trace ended after 4 s, by --timeout, while 'sleep 9' still ran"
    )
    assert ending_text(End("timeout", 0), request_of("--timeout", "2.5")) == (
        "kinst: the trace ended after 2.5 s, by --timeout"
    )


def test_a_program_of_this_machine_is_not_in_the_guest(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    request = request_of("-c", f"{program} --size 3")
    assert ending_text(End("command", 127), request) == ""  # it is not executable
    program.chmod(0o755)
    assert ending_text(End("command", 127), request) == (
        f"kinst: {program} is a program of this machine, not of the guest (--copy {program} copies"
        " it if it is linked statically, -c program runs it then; --root / runs all programs of"
        " this machine)"
    )
    assert ending_text(End("command", 1), request) == ""
    assert ending_text(End("command", 127), request_of("-c", "nosuch")) == ""
    assert ending_text(End("command", 127), request_of("--root", "/", "-c", str(program))) == ""


@pytest.mark.parametrize(
    "command", ["true; nosuch", "true && nosuch", "ls | nosuch", "x=$(nosuch)"]
)
def test_of_several_programs_none_is_blamed(command: str) -> None:
    """`true` is in the guest; the guest's shell has named the program that is not."""
    told = ending_text(End("command", 127), request_of("-c", command))
    assert told.startswith(
        "kinst: status 127: a program of the command is not in the guest (--copy"
    )
    assert "true" not in told


@pytest.mark.parametrize("view", [[], ["plot", "-o", "-"]])
def test_the_commands_tell_it(
    view: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ["-q", "-n", "tick-10ms { @ = quantize(1); }", "--timeout", "0.3"]
    assert command.main([*view, *program]) == 0
    # On a busy machine firings are missed, which is reported before.
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "kinst: the trace ended after 0.3 s, by --timeout"
