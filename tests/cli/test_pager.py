"""Long text goes through a pager on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kinst.cli import pager

_PROGRAM = "from kinst.cli import pager; pager.show('line\\n' * {lines})"


def on_terminal(lines: int, **environment: str) -> str:
    """Return the output on a terminal of 24 lines."""
    parent, child = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(lines=lines)], stdin=child, stdout=child,
        env={**os.environ, "LINES": "24", "COLUMNS": "80", **environment},
    )  # fmt: skip
    os.close(child)
    found = b""
    try:
        while piece := os.read(parent, 4096):
            found += piece
    except OSError:  # the other end is closed
        pass
    os.close(parent)
    assert done.wait(60) == 0
    return found.decode().replace("\r", "")


@pytest.mark.parametrize("name", ["KINST_PAGER", "PAGER"])
def test_long_text_goes_through_it(name: str) -> None:
    assert on_terminal(30, **{name: "sed s/line/paged/"}) == "paged\n" * 30


def test_short_text_does_not() -> None:
    assert on_terminal(20, KINST_PAGER="sed s/line/paged/") == "line\n" * 20


@pytest.mark.parametrize("value", ["", "cat", "/nosuch/pager", "sh -c 'exit 127'"])
def test_without_one(value: str) -> None:
    assert on_terminal(30, KINST_PAGER=value) == "line\n" * 30


def test_not_into_files(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as out:
        subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(lines=30)], stdout=out, check=True,
            env={**os.environ, "KINST_PAGER": "sed s/line/paged/"},
        )  # fmt: skip
    assert path.read_text() == "line\n" * 30


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pager.has_colours()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert pager.has_colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not pager.has_colours()
