"""Runs of tests on mutants, each in a process that was forked with its modules loaded.

A mutant of a function's body runs in a fork of a process that has imported kinst and collected the
tests; in the fork, the function gets the changed code (warm). A mutant of code that runs at import
needs kinst to be imported after the change; it runs in a fork of a process that has loaded the
heavy libraries but not kinst (fresh).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tools.mutation.mutants import Mutant, mutated

# Heavy modules of other projects. They are imported once, before any fork.
HEAVY = (
    "capstone", "hypothesis", "iced_x86", "llvmlite.binding", "llvmlite.ir", "numba", "numpy",
    "rich.console", "unicorn",
)  # fmt: skip
COPIED = ("compiled",)  # folders of the cache that a mutant could spoil
EMPTY = ("guests", "planted")  # folders of the cache that a mutant gets without their files
OPENED = ("tests",)  # folders of the cache in which each file is a link
MEMORY = 4 << 30  # bytes of memory that a run may use (an emulator reserves many more addresses)
OPTIONS = (
    "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow and not vm", "--tb=line",
    "-W", "ignore", "--capture=sys",
)  # fmt: skip
SLOWER, GRACE = 6.0, 4.0  # a test hangs if it takes SLOWER times its usual time + GRACE seconds
WAITS = 30.0  # wall-clock seconds to allow for each CPU second, on a busy machine


@dataclass(frozen=True)
class Chosen:
    """A mutant and the tests to run on it.

    Attributes:
        mutant: the mutant.
        tests: node id and usual CPU seconds of each test, in the order of the run.
        budget: CPU seconds after which no further test begins.
    """

    mutant: Mutant
    tests: tuple[tuple[str, float], ...]
    budget: float


@dataclass(frozen=True)
class Outcome:
    """Result of running tests on a mutant.

    Attributes:
        what: "killed", "crashed", "too much" (time or memory) or "survived".
        by: the last test that ran.
        ran: number of tests that ran.
    """

    what: str
    by: str = ""
    ran: int = 0


Report = Callable[[Chosen, Outcome], None]


def run_warm(
    root: Path,
    folders: Sequence[str],
    paths: Iterable[str],
    chosen: Iterable[Chosen],
    report: Report,
    log: Path,
) -> None:
    """Run tests on mutants of function bodies, and report each outcome; a mutant whose function is
    not found is not reported.

    Args:
        root: top folder of the repository.
        folders: folders of tests to collect.
        paths: modules with mutants, to import before the forks.
        chosen: the mutants with their tests.
        report: called with each outcome.
        log: file for the output of the tests.
    """

    def child() -> int:
        for path in sorted(paths):
            importlib.import_module(_module(path))
        return int(pytest.main([*OPTIONS, *folders], plugins=[_Warm(root, chosen, report)]))

    with _own_cache() as own:
        _ended(_forked(lambda: _prepared(own, log, child)))


def run_fresh(root: Path, chosen: Chosen, log: Path) -> Outcome:
    """Run tests on a mutant of code that runs at import, and return the outcome."""
    path = root / chosen.mutant.path
    code = mutated(path.read_text(), chosen.mutant, str(path))
    files = sorted({test.partition("::")[0] for test, _ in chosen.tests})
    reader, writer = os.pipe()

    def child() -> int:
        _put(path, code)
        # Import the mutant before pytest, whose plugins import modules of kinst.
        importlib.import_module(_module(chosen.mutant.path))
        return int(pytest.main([*OPTIONS, *files], plugins=[_Fresh(chosen, writer)]))

    with _own_cache() as own:
        pid = _forked(lambda: _prepared(own, log, child))
        os.close(writer)
        return _watched(pid, reader, dict(chosen.tests), start=15.0)


def in_fork(log: Path, child: Callable[[], int]) -> int:
    """Run child() in a process with a cache folder of its own, and return its status.

    Args:
        log: file for its output.
        child: the function to run.
    """
    with _own_cache() as own:
        return _ended(_forked(lambda: _prepared(own, log, child)))


class _Warm:
    """A pytest plugin that, instead of running the collected tests, forks a process for each mutant
    and runs the mutant's tests in it."""

    def __init__(self, root: Path, chosen: Iterable[Chosen], report: Report) -> None:
        self._root = root
        self._chosen = chosen
        self._report = report
        self._cache = _Cache()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        _find_no_smaller_examples(session.items)
        functions: dict[tuple[str, str, int], FunctionType] = {}
        for found in gc.get_objects():
            if type(found) is FunctionType:
                its = found.__code__
                functions[its.co_filename, its.co_qualname, its.co_firstlineno] = found
        gc.collect()
        gc.freeze()
        for chosen in self._chosen:
            mutant = chosen.mutant
            path = self._root / mutant.path
            function = functions.get((str(path), *mutant.function))
            if function is None:
                continue
            code = _code_of(mutated(path.read_text(), mutant, str(path)), mutant.function)
            if code is None or len(code.co_freevars) != len(function.__code__.co_freevars):
                continue
            self._report(chosen, self._run(session, items, chosen, function, code))
        self._cache.remove()
        return True

    def _run(
        self,
        session: pytest.Session,
        items: dict[str, pytest.Item],
        chosen: Chosen,
        function: FunctionType,
        code: CodeType,
    ) -> Outcome:
        tests = [items[test] for test, _ in chosen.tests if test in items]
        if not tests:
            return Outcome("survived")
        reader, writer = os.pipe()

        def child() -> int:
            getattr(session.config, "_tmp_path_factory")._basetemp = own / "tmp"  # noqa: B009
            function.__code__ = code
            _run_until_one_fails(session, tests, writer, chosen.budget)
            return 0

        own = self._cache.clean()
        pid = _forked(child)
        os.close(writer)
        return _watched(pid, reader, dict(chosen.tests), start=GRACE)


class _Cache:
    """A copy of the cache folder that mutants use one after the other. If a mutant has changed the
    copy, the next mutant gets a new one."""

    def __init__(self) -> None:
        self._made = contextlib.ExitStack()
        self._state: list[int] = []
        self._own = Path()
        self._before = {name: os.environ[name] for name in ("XDG_CACHE_HOME", "TMPDIR")}

    def clean(self) -> Path:
        """Return a folder that contains an unchanged copy of the cache and an empty folder tmp. The
        environment variables name both."""
        if not self._state or self._state != self._now():
            self._made.close()
            os.environ.update(self._before)  # the variables name the deleted folder
            tempfile.tempdir = None
            self._own = self._made.enter_context(_own_cache())
            self._state = self._now()
            os.environ.update(XDG_CACHE_HOME=str(self._own), TMPDIR=str(self._own / "tmp"))
            tempfile.tempdir = None
        for entry in (self._own / "tmp").iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        return self._own

    def remove(self) -> None:
        self._made.close()

    def _now(self) -> list[int]:
        every = [self._own / "kinst", *(self._own / "kinst").rglob("*/")]
        return [folder.stat().st_mtime_ns for folder in every if not folder.is_symlink()]


class _Fresh:
    """A pytest plugin that runs chosen tests in their order."""

    def __init__(self, chosen: Chosen, writer: int) -> None:
        self._chosen = chosen
        self._writer = writer

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        _find_no_smaller_examples(session.items)
        tests = [items[test] for test, _ in self._chosen.tests if test in items]
        _run_until_one_fails(session, tests, self._writer, self._chosen.budget)
        return True


class _Failed:
    """A pytest plugin that reports the first test that fails to the watching process, and ends the
    process."""

    def __init__(self, writer: int) -> None:
        self._writer = writer

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._writer, f"-{report.nodeid}\n".encode())
            os._exit(1)


def _run_until_one_fails(
    session: pytest.Session, tests: list[pytest.Item], writer: int, budget: float
) -> None:
    """Run tests until one fails or the CPU time is used up, and end the process.

    Writes lines to a pipe: "+TEST" when a test begins, "-TEST" when it fails, "=" at the end.

    Args:
        session: pytest's session.
        tests: the tests, in the order of the run.
        writer: the pipe.
        budget: CPU seconds.
    """

    def enough(signal_number: int, frame: Any) -> None:
        os.write(writer, b"=\n")
        os._exit(0)

    signal.signal(signal.SIGPROF, enough)
    signal.setitimer(signal.ITIMER_PROF, budget, 1.0)
    session.config.pluginmanager.register(_Failed(writer))
    for item, following in zip(tests, [*tests[1:], None], strict=True):
        os.write(writer, f"+{item.nodeid}\n".encode())
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    os.write(writer, b"=\n")
    os._exit(0)


def _find_no_smaller_examples(items: Iterable[pytest.Item]) -> None:
    """Make hypothesis stop at the first example that fails, without searching for a smaller one,
    and save no examples."""
    hypothesis = importlib.import_module("hypothesis")
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    name = "_hypothesis_internal_use_settings"
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if getattr(function, "is_hypothesis_test", False):
            kept = getattr(function, name, None) or hypothesis.settings.default
            found = hypothesis.settings(
                kept, phases=phases, database=None, report_multiple_bugs=False
            )
            setattr(function, name, found)


def _code_of(module: CodeType, function: tuple[str, int]) -> CodeType | None:
    """Return the code of a function from the code of its module; None if the module does not have
    the function.

    Args:
        module: code of the module, or of a class or function in it.
        function: qualified name and first line.
    """
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == function:
                return constant
            if function[0].startswith(f"{constant.co_qualname}."):
                return _code_of(constant, function)
    return None


def _put(path: Path, code: CodeType) -> None:
    """Make Python's import system use this code for the module of this file."""
    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.get_filename(fullname)) == path:
            return code
        return usual(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def load_heavy_modules(*, jit: bool) -> None:
    """Import the heavy modules. Call this before any fork.

    Args:
        jit: whether numba compiles; otherwise its functions are interpreted.
    """
    for name in HEAVY:
        importlib.import_module(name)
    numba: Any = importlib.import_module("numba")
    if not jit:
        numba.config.DISABLE_JIT = True
        numba.njit = _interpreted
    assert not any(name.partition(".")[0] == "kinst" for name in sys.modules)


def _interpreted(**_options: object) -> Callable[[Any], Any]:
    """Return a decorator in place of numba.njit(), which leaves a function unchanged except that
    the function becomes its own py_func."""

    def decorate(function: Any) -> Any:
        function.py_func = function
        return function

    return decorate


def _forked(child: Callable[[], int]) -> int:
    """Fork a process that runs child() in a session of its own, and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        os.setsid()
        status = child()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _ended(pid: int) -> int:
    """Wait for a process, kill everything that it started, and return its status."""
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _prepared(own: Path, log: Path, child: Callable[[], int]) -> int:
    """Run child() with its output in a file and a cache folder of its own, and return its
    status."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(XDG_CACHE_HOME=str(own), TMPDIR=str(own / "tmp"))
    tempfile.tempdir = None
    return child()


@contextlib.contextmanager
def _own_cache() -> Iterator[Path]:
    """Context manager that yields a temporary folder with a copy of the cache folder, in which most
    files are links to the real ones."""
    real = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinst"
    with tempfile.TemporaryDirectory(prefix="kinst-mutant-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        cache = folder / "kinst"
        cache.mkdir()
        (folder / "tmp").mkdir()
        for entry in real.iterdir():
            if entry.name in COPIED:
                # Hard links are safe: writers rename new files into place.
                shutil.copytree(entry, cache / entry.name, copy_function=os.link)
            elif entry.name in OPENED:
                (cache / entry.name).mkdir()
                for file in entry.iterdir():
                    (cache / entry.name / file.name).symlink_to(file)
            elif entry.name not in EMPTY:
                (cache / entry.name).symlink_to(entry)
        yield folder


def _watched(pid: int, reader: int, seconds: dict[str, float], start: float) -> Outcome:
    """Read the reports of a process that runs tests, kill it if a test takes too much time or
    memory, and return the outcome.

    Args:
        pid: the process.
        reader: pipe with its reports.
        seconds: usual CPU seconds of each test.
        start: CPU seconds that the process may take to begin.
    """
    ran, test, told = 0, "", b""
    may, began = start, 0.0
    ends = time.monotonic() + WAITS * may
    outcome = None
    while outcome is None:
        ready, _, _ = select.select([reader], [], [], 0.5)
        data = os.read(reader, 1 << 16) if ready else b""
        *lines, told = (told + data).split(b"\n")
        for line in lines:
            kind, test = line[:1], line[1:].decode() or test
            if kind == b"+":
                ran += 1
                may, began = SLOWER * seconds.get(test, 1.0) + GRACE, _computed(pid)
                ends = time.monotonic() + WAITS * may
            else:
                outcome = Outcome("survived" if kind == b"=" else "killed", test, ran)
        if outcome is None and ready and not data:
            outcome = Outcome("crashed", test, ran)
        elif outcome is None and (
            _computed(pid) - began > may or time.monotonic() > ends or _resident(pid) > MEMORY
        ):
            outcome = Outcome("too much", test, ran)
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return outcome


def _computed(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _resident(pid: int) -> int:
    """Return the bytes of resident memory of a process."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0
