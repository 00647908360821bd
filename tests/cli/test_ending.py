"""Messages of a trace that its time limit ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.cli import command
from kinst.cli.ending import ending_text
from kinst.events import End


def test_only_a_timeout_is_told() -> None:
    assert ending_text(End("command", 0), 4.0, "ls") == ""
    assert ending_text(End("interrupted", 0), 4.0, "") == ""
    assert ending_text(End("timeout", 124), 4.0, "sleep 9") == (
        "kinst: the trace ended after 4 s, by --timeout, while 'sleep 9' still ran"
    )
    assert ending_text(End("timeout", 0), 2.5, "") == (
        "kinst: the trace ended after 2.5 s, by --timeout"
    )


@pytest.mark.parametrize("view", [[], ["plot", "-o", "-"]])
def test_the_commands_tell_it(
    view: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ["-q", "-n", "tick-10ms { @ = quantize(1); }", "--timeout", "0.3"]
    assert command.main([*view, *program]) == 0
    # On a busy machine firings are missed, which is reported before.
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "kinst: the trace ended after 0.3 s, by --timeout"
