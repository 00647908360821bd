"""--help and wrong command lines are answered without loading the modules for tracing: numpy alone
takes longer than all of the answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kinst import api
from kinst.cli import command
from kinst.cli.commands import commands

HEAVY = (
    "numpy",
    "llvmlite",
    "capstone",
    "rich",
    "kinst.api.machine",
    "kinst.events",
    "kinst.views",
)
WRONG = {
    "annotate": ["-c", "ls"],
    "boot": ["--nosuch"],
    "cache": ["--nosuch"],
    "count": ["-n", "BEGIN"],
    "cover": ["-c", "ls"],
    "diff": ["a"],
    "flame": ["a", "b"],
    "flow": ["-c", "ls"],
    "inject": ["-c", "ls"],
    "plot": ["-n", "BEGIN"],
    "race": ["-c", "ls"],
    "test": [],
    "top": ["-l"],
}
SCRIPT = """
import sys
from kinst.cli import command
status = command.main(sys.argv[1:])
print(status, *(name for name in HEAVY if name in sys.modules))
"""


def answered(*words: str) -> str:
    """Return the exit status and the heavy modules that answering these words loads."""
    script = f"HEAVY = {HEAVY!r}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["", *commands()])
def test_help_and_a_wrong_command_line_load_little(name: str) -> None:
    words = [name] if name else []
    wrong = WRONG[name] if name else ["--live", "--cpus", "2", "-n", "BEGIN"]
    assert answered(*words, "--help") == "0"
    assert answered(*words, *wrong) == "2"


def test_a_guest_that_was_started_early_ends_with_a_wrong_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    class Early:
        def load(self) -> None:
            called.append("load")

        def close(self) -> None:
            called.append("close")

    monkeypatch.setattr(api, "start_early", lambda request: Early())
    assert command.main(["-n", "kinst::vfs_read:0 { x = ; }", "-c", "true"]) == 1
    assert called == ["close"] and "syntax error" in capsys.readouterr().err
