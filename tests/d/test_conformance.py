"""Every program of the conformance suite, by the command (README.md beside)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import Case, all_cases, tidy

SECONDS = 60.0  # of a run that hangs; a busy machine is slow
CASES = all_cases()


class Server:
    """server.py: the command, once imported."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, argv: list[str], cwd: Path) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"argv": argv, "cwd": str(cwd), "seconds": SECONDS}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert not answer["timeout"], f"still running after {SECONDS} s: {argv}"
        return int(answer["status"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def _in_order(wanted: list[str], text: str) -> str:
    """The first line of `wanted` that is not found in order in the lines of text, or ""."""
    lines = iter(text.splitlines())
    for part in wanted:
        if not any(part.strip() in line for line in lines):
            return part
    return ""


@pytest.mark.parametrize("case", CASES, ids=[f"{c.chapter}: {c.title}" for c in CASES])
def test_case(case: Case, server: Server, tmp_path: Path) -> None:
    for name, text in case.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "prog.d").write_text(case.program + "\n")
    (tmp_path / "stdin").write_text(case.input)
    status = server.run(case.command, tmp_path)
    out = (tmp_path / "stdout").read_text(errors="surrogateescape")
    err = (tmp_path / "stderr").read_text(errors="surrogateescape")
    told = f"\n{case.chapter}.cases:{case.line}\n{case.program}\nstatus {status}\nstderr:\n{err}"
    assert tidy(out) == (case.out or ""), told
    if case.err is not None:
        missing = _in_order(case.err, err)
        assert not missing, f"{missing!r} is not there{told}"
    elif case.no_err:
        assert err == "", told
    else:
        assert "failed" not in err and "error on enabled" not in err, told
    assert status == case.expected_status, told


def test_the_suite_is_whole() -> None:
    """The issue asks for at least 600 programs, and every case must expect something."""
    silent = [
        f"{c.chapter}: {c.title}"
        for c in CASES
        if c.out is None and c.err is None and c.status is None and not c.no_err
    ]
    assert not silent
