"""Tests run in a forked process: once with coverage, and on one mutant."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tools.mutation.mutants import Mutant, mutated

# Nothing of kinst's: imported once, here, and there in every forked process.
HEAVY = (
    "capstone", "hypothesis", "llvmlite.binding", "llvmlite.ir", "numba", "numpy", "rich.console",
    "unicorn",
)  # fmt: skip
COPIED = ("compiled",)  # of the cache: what a mutant could spoil
EMPTY = ("guests", "planted")
OPENED = ("tests",)  # each file there is a link
MEMORY = 4 << 30  # bytes that a run may really use: of addresses an emulator takes many more


@dataclass(frozen=True)
class Recorded:
    """What each test reaches.  lines: "path:line" -> tests; seconds: of each test."""

    lines: dict[str, list[str]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, path: Path) -> Recorded:
        return cls(**json.loads(path.read_text()))

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those that run the line, or, of a line that importing runs, any line of the file.  The
        quickest first."""
        found = set(self.lines.get(f"{mutant.path}:{mutant.line}", ()))
        if not found:
            start = f"{mutant.path}:"
            of_file = (tests for line, tests in self.lines.items() if line.startswith(start))
            found = {test for tests in of_file for test in tests}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))


class _Contexts:
    """A pytest plugin: tells coverage which test runs, and notes how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        yield
        self.seconds[item.nodeid] = time.monotonic() - began


class _Failures:
    """A pytest plugin: which tests failed, in order."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests.append(report.nodeid)


def record(root: Path, folder: str, tests: list[str], result: Path) -> None:
    """Run the tests, and write what they reach of the folder.  Those that fail are left out, and
    said."""

    def child() -> int:
        coverage = importlib.import_module("coverage").Coverage(
            data_file=None, source=[str(root / "kinst" / folder)], config_file=False
        )
        contexts, failures = _Contexts(coverage), _Failures()
        coverage.start()
        pytest.main([*_OPTIONS, *tests], plugins=[contexts, failures])
        coverage.stop()
        data = coverage.get_data()
        lines: dict[str, list[str]] = {}
        for path in data.measured_files():
            name = str(Path(path).relative_to(root))
            for line, reached in data.contexts_by_lineno(path).items():
                if by := [test for test in reached if test and test not in failures.tests]:
                    lines[f"{name}:{line}"] = by
        result.write_text(json.dumps({"lines": lines, "seconds": contexts.seconds}))
        said.write_text("\n".join(failures.tests))
        return 0

    said = result.with_suffix(".failed")
    status, _ = _forked(child, root, 7200.0, log=result.with_suffix(".log"))
    if status:
        raise RuntimeError(f"status {status}, see {result.with_suffix('.log')}")
    for test in said.read_text().splitlines():
        print(f"fails without a mutant, and is left out: {test}", file=sys.stderr)


_OPTIONS = (
    "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow and not vm", "--tb=line",
    "-W", "ignore",
)  # fmt: skip


def run(
    root: Path, mutant: Mutant, tests: list[str], results: Path, limit: float
) -> tuple[str, str]:
    """("killed", the test that failed), ("crashed", why), ("too much", "") of time or memory,
    ("survived", "")."""
    path = root / mutant.path
    code = mutated(path.read_text(), mutant, str(path))

    def child() -> int:
        if "/dwarf/scan/" in mutant.path:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
        _put(path, code)
        # Before pytest: it loads the modules of its plugins, and so kinst's, in its own way.
        importlib.import_module(_module(mutant.path))
        failures = _Failures()
        status = int(pytest.main([*_OPTIONS, "-x", *tests], plugins=[failures]))
        said.write_text("".join(failures.tests[:1]))
        return status

    said = results / f"said-{os.getpid()}"
    said.unlink(missing_ok=True)
    status, late = _forked(child, root, limit, log=results / f"last-{os.getpid()}.log")
    if late:
        return "too much", ""
    if status == 0:
        return "survived", ""
    failed = said.read_text() if said.exists() else ""
    return ("killed", failed) if failed else ("crashed", f"status {status}")


def _put(path: Path, code: CodeType) -> None:
    """Have this code run when the module of this file is imported."""
    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.get_filename(fullname)) == path:
            return code
        return usual(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _forked(child: Callable[[], int], root: Path, limit: float, log: Path) -> tuple[int, bool]:
    """(the status of child(), run in a process of its own, whether it was ended at the limit).
    Nothing of what it started is left."""
    for name in HEAVY:
        importlib.import_module(name)
    assert not any(name.partition(".")[0] == "kinst" for name in sys.modules)
    with tempfile.TemporaryDirectory(prefix="kinst-mutant-") as own:
        pid = os.fork()
        if not pid:
            status = 99
            try:
                os.setsid()
                _prepare(Path(own), log)
                os.chdir(root)
                status = child()
            finally:
                sys.stdout.flush()
                os._exit(status)
        return _waited(pid, limit)


def _prepare(own: Path, log: Path) -> None:
    """In the new process: output to a file, a cache folder and TMPDIR in `own`."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    real = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinst"
    mine = own / "kinst"
    mine.mkdir()
    for entry in real.iterdir():
        if entry.name in COPIED:
            shutil.copytree(entry, mine / entry.name)
        elif entry.name in OPENED:
            (mine / entry.name).mkdir()
            for file in entry.iterdir():
                (mine / entry.name / file.name).symlink_to(file)
        elif entry.name not in EMPTY:
            (mine / entry.name).symlink_to(entry)
    (own / "tmp").mkdir()
    os.environ.update(XDG_CACHE_HOME=str(own), TMPDIR=str(own / "tmp"))
    tempfile.tempdir = None


def _waited(pid: int, limit: float) -> tuple[int, bool]:
    ends = time.monotonic() + limit
    pause = 0.01
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        late = time.monotonic() > ends or _resident(pid) > MEMORY
        if done or late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if not done:
                _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status), late and not done
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)


def _resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0
