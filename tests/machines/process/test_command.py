"""Which commands are one program, and where its file is."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.machines.process.command import simple_command


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ls -l 'a file' \"b * c\"", ("ls", "-l", "a file", "b * c")),
        ("sh -c 'a | b; c > d'", ("sh", "-c", "a | b; c > d")),
        (r"ls a\ b \|", ("ls", "a b", "|")),
    ],
)
def test_words_are_those_of_a_shell(command: str, words: tuple[str, ...]) -> None:
    found = simple_command(command)
    assert found.words == words == tuple(shlex.split(command))
    assert os.access(found.path, os.X_OK) and Path(found.path).name == words[0]


def test_variables_before_the_program_are_its_environment() -> None:
    found = simple_command("LANG=C X='a b' ls")
    assert found.words == ("ls",) and found.variables == {"LANG": "C", "X": "a b"}


@pytest.mark.parametrize("character", ["|", "&", ";", ">", "<", "$HOME", "`", "*", "?"])
def test_work_for_a_shell_is_refused(character: str) -> None:
    with pytest.raises(TargetError, match="needs a shell"):
        simple_command(f"ls {character} x")


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh -e\n")
    script.chmod(0o755)
    for command, why in (
        (str(script), "is a script"), ("no-such-program-anywhere", "no program"),
        ("A=1", "no program"), ("ls 'open", "quotation"),
    ):  # fmt: skip
        with pytest.raises(TargetError, match=why):
            simple_command(command)
