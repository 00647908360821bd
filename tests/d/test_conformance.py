"""Every program of the conformance suite, run by the command (README.md in this folder)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.d import server
from tests.d.cases import Case, all_cases, tidy

SECONDS = 60.0  # long enough for a busy machine; only a hang takes longer
CASES = all_cases()
WORKERS = 3  # a run waits more than it computes

# Parts of tags that code puts together, and the tag of errors that have none.
PREFIXES = ("D_CLEAR", "D_NORMALIZE", "D_PRINT", "D_TRACE", "D_TRUNC", "D_UNKNOWN")
# Only a traced kernel or a TEST clause can raise these tags: tests/dlang and tests/vm raise them.
ELSEWHERE = ("D_AGG_MISUSE", "D_ARGS_TYPE", "D_SYM_BADREF", "D_SYM_NOTYPES")


class Server:
    """A process of server.py, which has imported the command."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.d.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
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


@dataclass(frozen=True)
class Result:
    """Exit status and output of one run of the command."""

    status: int
    out: str
    err: str


class ForkServer:
    """A server that forks this process instead, so that runs have the code that tests changed
    here."""

    def run(self, argv: list[str], cwd: Path) -> int:
        answer = server.run({"argv": argv, "cwd": str(cwd), "seconds": SECONDS})
        return int(str(answer["status"]))

    def close(self) -> None:
        pass


class Runs:
    """Runs of cases in parallel, each in its own folder.

    Args:
        here: run in forks of this process, when a result is asked for.
    """

    def __init__(self, folder: Path, here: bool) -> None:
        self._folder = folder
        self._here = here
        self._pool = ThreadPoolExecutor(WORKERS)
        self._own = threading.local()
        self._servers: list[Server | ForkServer] = []
        self._results: dict[str, Future[Result]] = {}
        self._numbers: dict[str, int] = {}

    def start(self, number: int, case: Case) -> None:
        self._numbers[name_of(case)] = number
        if not self._here:
            self._results[name_of(case)] = self._pool.submit(self._run, number, case)

    def result(self, case: Case) -> Result:
        if self._here:
            return self._run(self._numbers[name_of(case)], case)
        return self._results[name_of(case)].result()

    def _run(self, number: int, case: Case) -> Result:
        if not hasattr(self._own, "server"):
            self._own.server = ForkServer() if self._here else Server()
            self._servers.append(self._own.server)
        folder = self._folder / str(number)
        folder.mkdir()
        for name, text in case.files.items():
            (folder / name).write_text(text)
        (folder / "prog.d").write_text(case.program + "\n")
        (folder / "stdin").write_text(case.input)
        status = self._own.server.run(case.command, folder)
        texts = [
            (folder / name).read_text(errors="surrogateescape") for name in ("stdout", "stderr")
        ]
        return Result(status, *texts)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for each in self._servers:
            each.close()


def name_of(case: Case) -> str:
    return f"{case.chapter}: {case.title}"


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """Start all selected cases in order."""
    made = Runs(tmp_path_factory.mktemp("d"), bool(os.environ.get("KINST_MUTATED")))
    for number, item in enumerate(request.session.items):
        call = getattr(item, "callspec", None)
        case = call.params.get("case") if call is not None else None
        if isinstance(case, Case):
            made.start(number, case)
    yield made
    made.close()


def _in_order(wanted: list[str], text: str) -> str:
    """Return the first of `wanted` that is not found, in order, in the lines of text, or ""."""
    lines = iter(text.splitlines())
    for part in wanted:
        if not any(part.strip() in line for line in lines):
            return part
    return ""


@pytest.mark.parametrize("case", CASES, ids=[name_of(c) for c in CASES])
def test_case(case: Case, runs: Runs) -> None:
    result = runs.result(case)
    status, out, err = result.status, result.out, result.err
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
    """Every case expects something (tests/dlang/vocabulary checks which words of D the cases
    have)."""
    silent = [
        f"{c.chapter}: {c.title}"
        for c in CASES
        if c.out is None and c.err is None and c.status is None and not c.no_err
    ]
    assert not silent


def test_every_error_tag_has_a_program() -> None:
    """A program here raises each tag that the checker can raise."""
    source = ROOT / "kinst/dlang"
    code = "\n".join(path.read_text() for path in source.rglob("*.py"))
    tags = set(re.findall(r'"(D_[A-Z_]+[A-Z])"', code)) - set(PREFIXES)
    expected = {t for c in CASES for line in c.err or () for t in re.findall(r"\[(D_\w+)\]", line)}
    assert sorted(tags - expected - set(ELSEWHERE)) == []
