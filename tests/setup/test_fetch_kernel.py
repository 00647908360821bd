"""setup/fetch_kernel.py: its output while it fetches a kernel, and that it tries again."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.kernels.fake_apt import Machine, installed

SOURCES = "deb http://a.test/debian bookworm main\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = installed(tmp_path, monkeypatch, SOURCES)
    machine.add_kernel(30, name="6.12.5+deb13-cloud-amd64")
    return machine


@pytest.fixture
def fetch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run the script with these words.  Return its status and output."""

    def run(*words: str) -> tuple[int, str]:
        script = runpy.run_path(str(ROOT / "setup/fetch_kernel.py"))
        monkeypatch.setitem(script["main"].__globals__, "PAUSES", (0.0, 0.0))
        monkeypatch.setattr(sys, "argv", ["fetch_kernel.py", *words])
        return script["main"](), capsys.readouterr().out

    return run


def test_a_kernel_by_version_and_the_second_time_nothing(
    machine: Machine, fetch: Callable[..., tuple[int, str]]
) -> None:
    status, said = fetch("amd64", "6.12")
    assert status == 0
    assert "kernel 6.12.5+deb13-cloud-amd64 is ready in " in said
    assert "reading the package lists of Debian trixie" in said
    assert fetch("amd64", "6.12") == (0, "")


def test_a_download_that_breaks_off_is_asked_for_again(
    machine: Machine, fetch: Callable[..., tuple[int, str]]
) -> None:
    machine.breaks_off(2)
    status, said = fetch("amd64", "6.12")
    assert status == 0 and "is ready in" in said
    assert said.count("Connection timed out") == said.count("  again in 0 s") == 2


def test_after_three_attempts_it_says_why_and_ends(
    machine: Machine, fetch: Callable[..., tuple[int, str]]
) -> None:
    machine.breaks_off(9)
    status, said = fetch("amd64", "6.12")
    assert status == 1
    assert said.count("Connection timed out") == 3
    # Complete files are kept: the next run fetches only the others.
    machine.breaks_off(0)
    assert fetch("amd64", "6.12")[0] == 0


def test_what_no_repetition_helps_is_said_once(
    machine: Machine, fetch: Callable[..., tuple[int, str]]
) -> None:
    status, said = fetch("amd64", "5.10")
    assert status == 1
    assert said.count("no kernel 5.10 for amd64") == 1 and "again in" not in said
    assert fetch()[0] == 2
