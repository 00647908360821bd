"""Recorder of the tests that run each line of kinst, and of the time that each test takes."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from _pytest.outcomes import OutcomeException

from tools.mutation.mutants import Mutant

LONGEST = 3.0  # CPU seconds; a longer test is cut off, here and on mutants
AGAIN, SOON = 2.0, 0.01  # CPU seconds until the next cut; until a cut that failed is tried again
WHOLE = ("coverage", "importlib", "llvmlite", "numba")  # libraries that must not be interrupted
IMPORT = "(import)"  # stands for code that runs before the first test


@dataclass
class Recorded:
    """The tests that reach each line of kinst, and their times.

    Attributes:
        lines: by "path:line", the tests that reach the line; IMPORT if it runs before the first
            test.
        seconds: CPU seconds of each test, including the fixtures that it shares with other tests.
    """

    lines: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Iterable[Path]) -> Recorded:
        every = cls()
        for file in files:
            kept = json.loads(file.read_text())
            for line, tests in kept["lines"].items():
                every.lines[line].update(kept["tests"][index] for index in tests)
            every.seconds.update(kept["seconds"])
        return every

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the mutant's statement, the quickest first. If the statement
        runs at import, return the tests that run any line of the file."""
        found = self._reached(mutant)
        if self.runs_at_import(mutant):
            start = f"{mutant.path}:"
            of_file = (tests for line, tests in self.lines.items() if line.startswith(start))
            found = {test for tests in of_file for test in tests}
        return sorted(found - {IMPORT}, key=self.cost)

    def others(self, tests: Iterable[str]) -> list[str]:
        """Return all tests except these, the quickest first: any test may use a table that is made
        at import."""
        return sorted(set(self.seconds).difference(tests), key=self.cost)

    def runs_at_import(self, mutant: Mutant) -> bool:
        return not mutant.function[0] or IMPORT in self._reached(mutant)

    def neighbours(self, tests: Iterable[str]) -> list[str]:
        """Return all tests that are in the same files as these tests, the quickest first: a test
        may use what another test of its file has made."""
        files = {test.partition("::")[0] for test in tests}
        same = (test for test in self.seconds if test.partition("::")[0] in files)
        return sorted(same, key=self.cost)

    def cost(self, test: str) -> tuple[float, str]:
        return self.seconds.get(test, 0.0), test

    def _reached(self, mutant: Mutant) -> set[str]:
        first, last = mutant.lines
        tests: set[str] = set()
        for line in {mutant.line, *range(first, last + 1)}:
            tests |= self.lines.get(f"{mutant.path}:{line}", set())
        return tests


class _Forks:
    """Collector of the lines of kinst that forks of this process run. (Some tests run the command
    in a fork.) A fork writes its lines to a file when it ends by os._exit()."""

    def __init__(self, coverage: Any, folder: Path) -> None:
        self._coverage, self._folder = coverage, folder
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        leave = os._exit

        def ended(status: int) -> NoReturn:
            with contextlib.suppress(Exception):
                self._coverage.stop()
                data = self._coverage.get_data()
                lines = {path: data.lines(path) or [] for path in data.measured_files()}
                (self._folder / str(os.getpid())).write_text(json.dumps(lines))
            leave(status)

        os._exit = ended

    def collect(self) -> dict[str, set[int]]:
        """Return the lines, by file, of the forks that have ended since the last call."""
        found: dict[str, set[int]] = defaultdict(set)
        for file in self._folder.iterdir():
            for path, lines in json.loads(file.read_text()).items():
                found[path].update(lines)
            file.unlink()
        return found


class _Contexts:
    """A pytest plugin that tells coverage which test runs, and measures the time of each test.

    Attributes:
        forked: for each test, the lines by file that forks of the process ran.
        failed: tests that failed.
        cut: tests that were cut off.
    """

    def __init__(self, coverage: Any, forks: _Forks) -> None:
        self._coverage = coverage
        self._forks = forks
        self.forked: dict[str, dict[str, set[int]]] = {}
        self._fixtures: dict[tuple[str, str], float] = {}
        self._within: list[float] = []  # for each fixture being set up: seconds of inner ones
        self._shared = 0.0
        self._own: dict[str, float] = {}
        self._uses: dict[str, list[tuple[str, str]]] = {}
        self.failed: set[str] = set()
        self.cut: set[str] = set()

    @property
    def seconds(self) -> dict[str, float]:
        # A test that was cut off takes at least LONGEST. Its own time may be short: if the making
        # of a fixture was cut off in an earlier test, pytest fails the next test at once.
        return {
            test: max(
                own + sum(self._fixtures.get(name, 0.0) for name in self._uses[test]),
                LONGEST if test in self.cut else 0.0,
            )
            for test, own in self._own.items()
        }

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        self._shared = 0.0
        began = _computed()
        signal.setitimer(signal.ITIMER_PROF, LONGEST, AGAIN)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        if more := self._forks.collect():
            self.forked[item.nodeid] = more
        self._own[item.nodeid] = max(0.0, _computed() - began - self._shared)
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
        self._uses[item.nodeid] = [(d[-1].baseid, d[-1].argname) for d in definitions]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        began = _computed()
        self._within.append(0.0)
        yield
        took = _computed() - began
        alone = took - self._within.pop()
        if self._within:
            self._within[-1] += took
        if fixturedef.scope != "function":
            self._shared += alone
            self._fixtures[fixturedef.baseid, fixturedef.argname] = alone

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            cut = _Cut.__name__ in str(report.longrepr)
            (self.cut if cut else self.failed).add(report.nodeid)


class _Cut(OutcomeException):
    """A test has taken too long. The class derives from pytest's own exception, so that pytest
    tears down what an interrupted fixture has set up."""


def _cut(own: tuple[str, ...], signal_number: int, frame: FrameType | None) -> None:
    """Handle SIGPROF: raise _Cut if code of these folders runs and no library of WHOLE does;
    otherwise try again soon.

    An exception would leave these libraries in an inconsistent state: coverage keeps its lock and
    waits for it when the next test begins; llvmlite keeps a lock, and another thread that needs
    LLVM waits forever; numba never learns the types that it was about to learn.

    Args:
        own: paths of the folders, which end in a slash.
        signal_number: SIGPROF.
        frame: the interrupted code.
    """
    if frame is not None and frame.f_code.co_filename.startswith(own):
        around: FrameType | None = frame
        while around and around.f_globals.get("__name__", "").partition(".")[0] not in WHOLE:
            around = around.f_back
        if around is None:
            raise _Cut
    signal.setitimer(signal.ITIMER_PROF, SOON, AGAIN)


def _computed() -> float:
    """Return the CPU seconds that this process and its ended children have used."""
    return sum(os.times()[:4])


def record(root: Path, arguments: list[str], result: Path) -> int:
    """Run tests with coverage, and write the lines of kinst that they reach and their times. Return
    the exit status. Tests that fail are reported and left out.

    Args:
        root: top folder of the repository.
        arguments: arguments for pytest.
        result: file to write.
    """
    coverage = importlib.import_module("coverage").Coverage(
        data_file=None, source=[str(root / "kinst")], config_file=False
    )
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    contexts = _Contexts(coverage, _Forks(coverage, folder))
    own = tuple(f"{root / folder}{os.sep}" for folder in ("kinst", "tests"))
    signal.signal(signal.SIGPROF, partial(_cut, own))
    coverage.start()
    coverage.switch_context(IMPORT)
    status = pytest.main(arguments, plugins=[contexts])
    coverage.stop()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return int(status)
    tests = sorted(set(contexts.seconds) - contexts.failed)
    index = {test: number for number, test in enumerate([*tests, IMPORT])}
    lines: dict[str, list[int]] = {}
    data = coverage.get_data()
    for path in data.measured_files():
        with contextlib.suppress(ValueError):
            name = str(Path(path).relative_to(root))
            for line, reached in data.contexts_by_lineno(path).items():
                if by := [index[test] for test in reached if test in index]:
                    lines[f"{name}:{line}"] = by
    for test, files in contexts.forked.items():
        for path, reached in files.items():
            with contextlib.suppress(ValueError, KeyError):
                name = str(Path(path).relative_to(root))
                for line in reached:
                    lines.setdefault(f"{name}:{line}", []).append(index[test])
    seconds = {test: round(contexts.seconds[test], 4) for test in tests}
    result.write_text(json.dumps({"tests": [*tests, IMPORT], "lines": lines, "seconds": seconds}))
    for test in sorted(contexts.failed):
        print(f"fails without a mutant, and is left out: {test}", file=sys.stderr)
    return 0
